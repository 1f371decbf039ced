"""Weight maps and biases against the released modules themselves, at tiny sizes in float64, where the peers are installed (make bench)."""

import pytest
import torch
from torch import nn

import positionlib as pl
from positionlib.bench.pairs import PAIRS
from positionlib.bench.worker import agreement
from positionlib.checkpoints import maps

N, D, H = 11, 24, 4
ENCODER = pl.AttentionGeometry.encoder(N)
five, four = (pytest.mark.peer("transformers", major) for major in (5, 4))


def random(module: nn.Module) -> nn.Module:
    """Every parameter away from zero and from one, or half of the map would be untested."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.double().eval()


def states() -> torch.Tensor:
    return torch.randn(2, N, D, dtype=torch.float64)


def hidden(geometry: pl.AttentionGeometry) -> torch.Tensor:
    return torch.zeros(N, N, dtype=torch.float64).masked_fill(~geometry.visible, -torch.inf)[None, None]


@five
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_t5(decoder, implementation):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=D, d_kv=5, num_heads=H, relative_attention_num_buckets=8, relative_attention_max_distance=20, is_decoder=decoder,
                      attn_implementation=implementation)
    peer = random(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    ours = maps.t5_attention(peer.state_dict(), config.to_dict(), bidirectional=not decoder)
    geometry = pl.AttentionGeometry.causal_self(N) if decoder else ENCODER
    x = states()
    want = peer(x, mask=None if implementation == "eager" and not decoder else hidden(geometry))[0]
    assert torch.allclose(ours(x, geometry), want, atol=1e-12)


@five
@pytest.mark.parametrize("heads", [2, 6])
def test_bloom(heads):
    from transformers import BloomConfig
    from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

    config = BloomConfig(hidden_size=D, n_head=heads)
    peer = random(BloomAttention(config, layer_idx=0))
    geometry, x, residual = pl.AttentionGeometry.causal_self(N), states(), states()
    alibi = build_alibi_tensor(torch.ones(2, N), heads, torch.float64)
    want = peer(x, residual, alibi, hidden(geometry))[0]
    # The source's slopes and softmax are float32, whatever its weights are.
    assert torch.allclose(maps.bloom_attention(peer.state_dict(), config.to_dict())(x, geometry) + residual, want, atol=2e-6)


@five
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("buckets, terms", [(4, ["c2p", "p2c"]), (-1, ["c2p", "p2c"]), (4, ["c2p"]), (4, ["p2c"])])
def test_deberta_v2(shared, buckets, terms):
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

    config = DebertaV2Config(hidden_size=D, num_attention_heads=H, num_hidden_layers=1, intermediate_size=4, relative_attention=True, pos_att_type=terms,
                             position_buckets=buckets, max_relative_positions=8, share_att_key=shared, norm_rel_ebd="layer_norm")
    encoder = random(DebertaV2Encoder(config))
    peer = encoder.layer[0].attention
    own = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith("layer.")}
    ours = maps.deberta_v2_attention(peer.state_dict(), config.to_dict(), maps.deberta_v2_table(own, config.to_dict()))
    x = states()
    want = peer(x, torch.ones(2, 1, N, N), rel_embeddings=encoder.get_rel_embedding())[0]
    assert torch.allclose(ours(x, ENCODER), want, atol=2e-6), "the source's scale is a float32"


@five
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_conformer(implementation):
    from transformers import Wav2Vec2ConformerConfig
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as released

    config = Wav2Vec2ConformerConfig(hidden_size=D, num_attention_heads=H, position_embeddings_type="relative", attn_implementation=implementation)
    peer, x = random(released.Wav2Vec2ConformerSelfAttention(config)), states()
    waves = released.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    ours = maps.conformer_attention(peer.state_dict(), config.to_dict())
    assert torch.allclose(ours(x, ENCODER), peer(x, relative_position_embeddings=waves)[0], atol=2e-6), "the source's waves are float32"


def bert_agrees(**settings) -> None:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention, BertEmbeddings

    config = BertConfig(hidden_size=D, num_attention_heads=H, max_position_embeddings=16, vocab_size=30, attn_implementation="eager", **settings)
    stated = {"position_embedding_type": "absolute", **config.to_dict()}  # transformers 5 has no other and does not say so
    peer, words, x = random(BertAttention(config)), random(BertEmbeddings(config)), states()
    assert torch.allclose(maps.bert_attention(peer.state_dict(), stated)(x, ENCODER), peer(x)[0], atol=1e-12)
    ids, types = torch.randint(0, 30, (2, N)), torch.randint(0, 2, (2, N))
    assert torch.equal(maps.bert_input(words.state_dict(), stated)(ids, ENCODER, types), words(ids, types))


@five
def test_bert_of_transformers_5():
    bert_agrees()


@four
@pytest.mark.parametrize("kind", ["absolute", "relative_key", "relative_key_query"])
def test_bert_of_transformers_4(kind):
    bert_agrees(position_embedding_type=kind)


@pytest.mark.peer("x-transformers", 2)
@pytest.mark.parametrize("queries, keys", [(5, 5), (2, 9)])
def test_the_biases_of_x_transformers(queries, keys):
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

    geometry = pl.AttentionGeometry(torch.arange(keys - queries, keys), torch.arange(keys))
    rows = geometry.query_positions, geometry.key_positions
    for heads in (4, 6):
        alibi = pl.ALiBi(heads, form="symmetric")(geometry).materialize(*rows)
        assert torch.allclose(alibi[0], AlibiPositionalBias(heads)(queries, keys), rtol=1e-6)
    peer, ours = RelativePositionBias(scale=1, num_buckets=8, max_distance=16, heads=3), pl.T5Bias(3, 8, 16, bidirectional=True, edge="transformers")
    ours.load_state_dict({"weight": peer.relative_attention_bias.weight})
    assert torch.equal(ours(geometry).materialize(*rows)[0], peer(queries, keys))


@pytest.mark.parametrize("pair", [pytest.param(pair, marks=pytest.mark.peer("transformers", pair.transformers)) for pair in PAIRS.values()], ids=lambda p: p.name)
def test_both_sides_of_a_benchmark_pair_compute_the_same(pair):
    sides = pair.build(160)  # long enough for attend() to leave the reference
    found = agreement(sides, torch.randn(1, 160, 512))
    assert all(part["error"] < 2e-5 * part["largest"] for part in found.values()), found
    for parameters in sides.parameters.values():
        assert all(parameter.grad is not None for parameter in parameters), "the backward pass reaches every parameter"
