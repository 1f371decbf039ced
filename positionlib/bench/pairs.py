"""Who is compared with whom: a released attention module, ours with its weights, and the bars that ours has to reach.

Both sides get what a model computes once for all its layers (masks, BLOOM's ALiBi, DeBERTa's relative positions, the Conformer's
sinusoids; ours its geometry) before the clock starts; what belongs to a layer's call is in it. Configurations are made here: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.checkpoints.maps import bert_attention, bloom_attention, conformer_attention, deberta_v2_attention, t5_attention
from positionlib.geometry import AttentionGeometry

BATCH, HEADS, LENGTH, D_HEAD, THREADS = 1, 8, 2048, 64, 2
WIDTH = HEADS * D_HEAD
Run = Callable[[Float[Tensor, "B N D"]], Float[Tensor, "B N D"]]


@dataclass(frozen=True)
class Sides:
    """The two modules as functions of their input, each with the parameters that a backward pass reaches."""

    peer: Run
    ours: Run
    parameters: dict[str, list[nn.Parameter]]


@dataclass(frozen=True)
class Pair:
    """One row of the table. ``forward`` and ``both`` are least speed-ups, ``memory`` is the largest share of the peer's peak."""

    name: str
    mechanism: str
    peer: str
    transformers: int
    forward: float
    both: float
    memory: float
    build: Callable[[int], Sides]


def t5(implementation: str) -> Callable[[int], Sides]:
    """An encoder's first layer, which owns the table."""
    def build(length: int) -> Sides:
        from transformers import T5Config
        from transformers.models.t5.modeling_t5 import T5Attention

        config = T5Config(d_model=WIDTH, d_kv=D_HEAD, num_heads=HEADS, attn_implementation=implementation)
        peer = T5Attention(config, has_relative_attention_bias=True).eval()
        ours, geometry = t5_attention(peer.state_dict(), config.to_dict(), bidirectional=True), AttentionGeometry.encoder(length)
        return sides(lambda x: peer(x)[0], lambda x: ours(x, geometry), peer.parameters(), ours.parameters())

    return build


def bloom(length: int) -> Sides:
    """A causal layer; the residual that it adds is zero."""
    from transformers import BloomConfig
    from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

    config = BloomConfig(hidden_size=WIDTH, n_head=HEADS)
    peer = BloomAttention(config, layer_idx=0).eval()
    ours, geometry = bloom_attention(peer.state_dict(), config.to_dict()), AttentionGeometry.causal_self(length)
    dtype = torch.get_default_dtype()
    alibi, zero = build_alibi_tensor(torch.ones(BATCH, length), HEADS, dtype), torch.zeros(BATCH, length, WIDTH)
    mask = torch.zeros(length, length).masked_fill(~geometry.visible, torch.finfo(dtype).min)[None, None]
    return sides(lambda x: peer(x, zero[:, : x.shape[1]], alibi, mask)[0], lambda x: ours(x, geometry), peer.parameters(), ours.parameters())


def deberta(length: int) -> Sides:
    """DeBERTa-v3's settings: 256 log buckets to 512, both position terms, shared projections."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Attention, build_relative_position

    config = DebertaV2Config(hidden_size=WIDTH, num_attention_heads=HEADS, relative_attention=True, position_buckets=256, max_relative_positions=-1,
                             max_position_embeddings=512, pos_att_type=["p2c", "c2p"], share_att_key=True)
    peer, table = DebertaV2Attention(config).eval(), nn.Parameter(torch.randn(512, WIDTH))
    ours = deberta_v2_attention(peer.state_dict(), config.to_dict(), nn.Parameter(table.detach().clone()))
    geometry, states, mask = AttentionGeometry.encoder(length), torch.empty(length, 1), torch.ones(BATCH, 1, length, length)
    relative = build_relative_position(states, states, 256, 512)
    return sides(lambda x: peer(x, mask, relative_pos=relative, rel_embeddings=table)[0], lambda x: ours(x, geometry),
                 [*peer.parameters(), table], ours.parameters())


def bert(length: int) -> Sides:
    """relative_key_query, which transformers 5 no longer has."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    config = BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, max_position_embeddings=length, position_embedding_type="relative_key_query",
                        attn_implementation="eager")
    peer = BertAttention(config).eval()
    ours, geometry = bert_attention(peer.state_dict(), config.to_dict()), AttentionGeometry.encoder(length)
    return sides(lambda x: peer(x)[0], lambda x: ours(x, geometry), peer.parameters(), ours.parameters())


def conformer(implementation: str) -> Callable[[int], Sides]:
    """Transformer-XL's scores in both directions. The released initial values of u and v are zero, which would compare nothing."""
    def build(length: int) -> Sides:
        from transformers import Wav2Vec2ConformerConfig
        from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as released

        config = Wav2Vec2ConformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type="relative", attn_implementation=implementation)
        peer = released.Wav2Vec2ConformerSelfAttention(config).eval()
        for bias in (peer.pos_bias_u, peer.pos_bias_v):
            nn.init.normal_(bias, std=0.5)
        ours, geometry = conformer_attention(peer.state_dict(), config.to_dict()), AttentionGeometry.encoder(length)
        waves = released.Wav2Vec2ConformerRelPositionalEmbedding(config)(torch.zeros(BATCH, length, WIDTH))
        return sides(lambda x: peer(x, relative_position_embeddings=waves)[0], lambda x: ours(x, geometry), peer.parameters(), ours.parameters())

    return build


def sides(peer: Run, ours: Run, peer_parameters: Iterable[nn.Parameter], our_parameters: Iterable[nn.Parameter]) -> Sides:
    """Both functions, with their parameters by side."""
    return Sides(peer, ours, {"peer": list(peer_parameters), "ours": list(our_parameters)})


PAIRS = {pair.name: pair for pair in [
    Pair("t5-eager", "T5", "HF T5 attention, eager", 5, 4.5, 1.5, 1 / 10, t5("eager")),
    Pair("t5-sdpa", "T5", "HF T5 attention, sdpa", 5, 3.0, 1.5, 1 / 10, t5("sdpa")),
    Pair("alibi", "ALiBi", "HF BLOOM", 5, 2.2, 1.3, 1 / 10, bloom),
    Pair("deberta", "DeBERTa", "HF DeBERTa-v2", 5, 3.0, 1.4, 1 / 5, deberta),
    Pair("shaw", "Shaw", "HF BERT relative_key_query", 4, 3.5, 8.0, 1 / 4, bert),
    Pair("xl-eager", "Transformer-XL", "HF wav2vec2-conformer, eager", 5, 1.8, 1.6, 1 / 2, conformer("eager")),
    Pair("xl-sdpa", "Transformer-XL", "HF wav2vec2-conformer, sdpa", 5, 1.8, 1.6, 1 / 2, conformer("sdpa")),
]}
