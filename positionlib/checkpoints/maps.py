"""Weight maps: one layer's attention of transformers, as a :class:`positionlib.layers.SelfAttention` with the same numbers.

    family                 the state dict of                            projections        mechanism, released conventions
    t5_attention           T5Attention                                  q, k, v, o         T5Bias, buckets_heads, edge transformers
    bloom_attention        BloomAttention                               one, head by head  ALiBi, key_index
    deberta_v2_attention   DebertaV2Attention                           self, output       DeBERTa, third index released, edge transformers
    bert_attention         BertAttention (4.57.6 for relative keys)     self, output       BertRelative, or none
    conformer_attention    Wav2Vec2ConformerSelfAttention, "relative"   linear_*           TransformerXL, bidirectional
    bert_input             BertEmbeddings                               –                  LearnedAbsolute, or none

A map fails closed: every tensor of the state dict is used, every tensor that the module needs is there, in its shape, in one
floating-point dtype; what does not reconcile is named in one error. ``config`` is the checkpoint's configuration as a mapping, as
in config.json; a map reads the fields it names and refuses one that lacks them. The module is new, on the CPU, in the state's dtype.

Read from transformers 5.24.0 and, for BERT's relative keys, 4.57.6.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from positionlib.checkpoints.state import LIMITS, Shapes, State, admit, counts, epsilon, fields, filled, linears, mapping, norm, widths
from positionlib.contract import checked
from positionlib.errors import require, require_choice, whole_number
from positionlib.layers import BertInput, SelfAttention
from positionlib.mechanisms import ALiBi, BertRelative, DeBERTa, LearnedAbsolute, T5Bias, TransformerXL
from positionlib.mechanisms.learned import admit_position_ids

BERT_TYPES = ("absolute", "relative_key", "relative_key_query")


@checked
def t5_attention(state: State, config: Mapping, *, bidirectional: bool, bias: T5Bias | None = None) -> SelfAttention:
    """Self-attention of a T5 stack. ``bidirectional`` is True for the encoder's; the config describes both.

    ``bias`` is the first layer's mechanism, which the later layers reuse: their state dicts hold no table. The first has None.
    """
    d_model, d_head, heads, buckets, far = counts(config, "d_model", "d_kv", "num_heads", "relative_attention_num_buckets",
                                                  "relative_attention_max_distance")
    shapes = {f"{name}.weight": (heads * d_head, d_model) for name in "qkv"} | {"o.weight": (d_model, heads * d_head)}
    if bias is None:
        shapes["relative_attention_bias.weight"] = (buckets, heads)
    else:
        wanted = heads, buckets, far, bidirectional, "transformers", 1.0
        known = bias.heads, bias.rule.num_buckets, bias.rule.max_distance, bias.rule.bidirectional, bias.rule.edge, bias.score_scale
        require(known == wanted, "bias", bias, f"heads, buckets, max_distance, bidirectional, edge and score_scale {wanted}",
                "Pass the mechanism of this stack's first layer.")
    admit("T5Attention", state, shapes)
    if bias is None:
        bias = T5Bias(heads, buckets, far, bidirectional=bidirectional, edge="transformers")
    return filled(SelfAttention(d_model, heads, bias, d_head=d_head, bias=False), state, {"relative_attention_bias": "mechanism"})


def bloom_attention(state: State, config: Mapping) -> SelfAttention:
    """Causal self-attention of BLOOM, without the residual that its block adds. Query, key and value rows alternate head by head."""
    d_model, heads = widths(config, "n_head")
    admit("BloomAttention", state, {"query_key_value.weight": (3 * d_model, d_model), "query_key_value.bias": (3 * d_model,), **linears(d_model, "dense")})
    renamed = {f"dense.{kind}": state[f"dense.{kind}"] for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        fused = state[f"query_key_value.{kind}"].unflatten(0, (heads, 3, -1))
        renamed |= {f"{name}.{kind}": fused[:, at].flatten(0, 1) for at, name in enumerate("qkv")}
    return filled(SelfAttention(d_model, heads, ALiBi(heads, form="key_index")), renamed, {"dense": "o"})


def deberta_v2_shapes(config: Mapping) -> Shapes:
    """Shape of every tensor of DebertaV2Attention: which projections of positions a layer has is the configuration's."""
    (d_model, _), (terms, shared) = widths(config, "num_attention_heads"), deberta_terms(config)
    own = [part for term, part in (("c2p", "self.pos_key_proj"), ("p2c", "self.pos_query_proj")) if term in terms and not shared]
    return linears(d_model, "self.query_proj", "self.key_proj", "self.value_proj", "output.dense", *own) | norm("output.LayerNorm", d_model)


@checked
def deberta_v2_attention(state: State, config: Mapping, table: nn.Parameter, *, edge: str = "transformers") -> SelfAttention:
    """Disentangled self-attention with its output projection and LayerNorm. ``table`` is the stack's, from :func:`deberta_v2_table`.

    ``edge`` is the rounding of the buckets, see :class:`positionlib.mechanisms.deberta.DisentangledIndex`; the authors' own is ``official``.
    """
    (d_model, heads), eps, (terms, shared) = widths(config, "num_attention_heads"), epsilon(config), deberta_terms(config)
    admit("DebertaV2Attention", state, deberta_v2_shapes(config))
    far, buckets = deberta_span(config)
    mechanism = DeBERTa(heads, d_model, far, terms=("c2c", *terms), third_index="released", projections="shared" if shared else "own",
                        buckets=buckets, edge=None if buckets is None else edge, table=table)
    return filled(SelfAttention(d_model, heads, mechanism, post_norm=eps), state,
                  {"self.query_proj": "q", "self.key_proj": "k", "self.value_proj": "v", "output.dense": "o", "output.LayerNorm": "norm",
                   "self.pos_key_proj": "mechanism.pos_key_proj", "self.pos_query_proj": "mechanism.pos_query_proj"})


def deberta_v2_table(state: State, config: Mapping) -> nn.Parameter:
    """The position rows [2S, D] that a DeBERTa-v2 encoder hands its layers, from its own tensors (those of no layer).

    Where the config's norm_rel_ebd asks for it the rows went through the encoder's LayerNorm: what is learned further is the result.
    """
    (d_model,) = counts(config, "hidden_size")
    far, buckets = deberta_span(config)
    normed = deberta_normed(config)
    shapes = {"rel_embeddings.weight": (2 * (buckets or far), d_model)} | (norm("LayerNorm", d_model) if normed else {})
    admit("DebertaV2Encoder, its own tensors", state, shapes)
    rows, *gain_and_offset = (state[name].detach() for name in shapes)
    if normed:
        rows = nn.functional.layer_norm(rows, (d_model,), *gain_and_offset, epsilon(config))
    return nn.Parameter(rows.clone())


def bert_attention(state: State, config: Mapping) -> SelfAttention:
    """BERT's self-attention with its output projection and LayerNorm, under the config's position_embedding_type."""
    (d_model, heads), eps, (kind,) = widths(config, "num_attention_heads"), epsilon(config), fields(config, "position_embedding_type")
    require_choice("config.position_embedding_type", kind, BERT_TYPES)
    shapes = linears(d_model, "self.query", "self.key", "self.value", "output.dense")
    if relative := kind != "absolute":
        (positions,) = counts(config, "max_position_embeddings")
        shapes["self.distance_embedding.weight"] = (2 * positions - 1, d_model // heads)
    admit("BertAttention", state, shapes | norm("output.LayerNorm", d_model))
    mechanism = BertRelative(positions, d_model // heads, variant=kind) if relative else None
    return filled(SelfAttention(d_model, heads, mechanism, post_norm=eps), state,
                  {"self.query": "q", "self.key": "k", "self.value": "v", "self.distance_embedding": "mechanism", "output.dense": "o",
                   "output.LayerNorm": "norm"})


def bert_input(state: State, config: Mapping) -> BertInput:
    """BertEmbeddings: words, token types and positions added, then LayerNorm.

    Relative types hold a position table that nothing reads: it must be there, and is left behind. A stored ``position_ids`` buffer is
    admitted only as the range it has to be.
    """
    d_model, words, types, rows = counts(config, "hidden_size", "vocab_size", "type_vocab_size", "max_position_embeddings")
    (padding_id, kind), eps = fields(config, "pad_token_id", "position_embedding_type"), epsilon(config)
    require_choice("config.position_embedding_type", kind, BERT_TYPES)
    learned = {name: tensor for name, tensor in mapping("state", state).items() if name != "position_ids"}
    admit("BertEmbeddings", learned, {"word_embeddings.weight": (words, d_model), "position_embeddings.weight": (rows, d_model),
                                      "token_type_embeddings.weight": (types, d_model), **norm("LayerNorm", d_model)})
    if "position_ids" in state:
        admit_position_ids(state["position_ids"], rows)
    positions = LearnedAbsolute(rows, d_model) if kind == "absolute" else None
    if positions is None:
        del learned["position_embeddings.weight"]
    return filled(BertInput(words, types, d_model, positions, eps=eps, padding_id=padding_id), learned,
                  {"word_embeddings": "words", "token_type_embeddings": "types", "position_embeddings": "positions", "LayerNorm": "norm"})


def conformer_attention(state: State, config: Mapping) -> SelfAttention:
    """Relative self-attention of wav2vec2-conformer. Its sines and cosines alternate, ours stand in two halves: W_r's columns move."""
    (d_model, heads), (kind,) = widths(config, "num_attention_heads"), fields(config, "position_embeddings_type")
    require(isinstance(kind, str) and kind == "relative", "config.position_embeddings_type", kind, "'relative'",
            "The rotary form rotates the states before the projections.")
    per_head = (heads, d_model // heads)
    shapes = linears(d_model, "linear_q", "linear_k", "linear_v", "linear_out")
    admit("Wav2Vec2ConformerSelfAttention", state, shapes | {"linear_pos.weight": (d_model, d_model), "pos_bias_u": per_head, "pos_bias_v": per_head})
    weight = state["linear_pos.weight"]
    moved = {**state, "linear_pos.weight": torch.cat((weight[:, 0::2], weight[:, 1::2]), 1)}
    return filled(SelfAttention(d_model, heads, TransformerXL(d_model, *per_head, bidirectional=True)), moved,
                  {"linear_q": "q", "linear_k": "k", "linear_v": "v", "linear_out": "o", "linear_pos": "mechanism",
                   "pos_bias_u": "mechanism.content_bias", "pos_bias_v": "mechanism.position_bias"})


def deberta_normed(config: Mapping) -> bool:
    """Whether the position rows go through the encoder's LayerNorm."""
    stated = mapping("config", config).get("norm_rel_ebd", "none")
    require(isinstance(stated, str), "config.norm_rel_ebd", stated, "words with | between", "The source writes 'layer_norm' or 'none'.")
    return "layer_norm" in [word.strip() for word in stated.lower().split("|")]


def deberta_span(config: Mapping) -> tuple[int, int | None]:
    """(max_distance, buckets or None): a range below 1 means the model's length, and buckets below 1 mean none."""
    require(mapping("config", config).get("relative_attention") is True, "config.relative_attention", config.get("relative_attention"), "True",
            "Without it the layer has no disentangled terms.")
    far, buckets = (whole_number(config.get(name, -1)) for name in ("max_relative_positions", "position_buckets"))
    for name, value in (("max_relative_positions", far), ("position_buckets", buckets)):
        require(value is not None, f"config.{name}", config.get(name), "a whole number", "The source writes -1 for none.")
    require(buckets <= LIMITS["bucket"], "config.position_buckets", buckets, f"at most {LIMITS['bucket']}", "Take it from config.json.")
    reach = far if far >= 1 else counts(config, "max_position_embeddings")[0]
    fits = buckets < 1 or buckets >= 4 and buckets % 2 == 0 and buckets // 2 + 1 < reach <= 2**20
    require(fits, "config.position_buckets", buckets, f"an even number from 4, whose half ends before max_relative_positions {reach}, at most {2**20}",
            "The logarithm needs a range beyond the exact half.")
    return reach, (buckets if buckets > 0 else None)


def deberta_terms(config: Mapping) -> tuple[tuple[str, ...], bool]:
    """(the enabled position terms, whether they use the content's projections)."""
    (stated,) = fields(config, "pos_att_type")
    terms = [word.strip() for word in stated.lower().split("|")] if isinstance(stated, str) else () if stated is None else stated
    known = isinstance(terms, (list, tuple)) and all(isinstance(term, str) and term in ("c2p", "p2c") for term in terms)
    # A word that names no term, or one twice, is counted in the scale by some sources and not by others.
    require(known and len(set(terms)) == len(terms), "config.pos_att_type", stated, "c2p, p2c, or both, each once, in a list or with | between",
            "Such as 'c2p|p2c'.")
    shared = config.get("share_att_key", False)
    require(isinstance(shared, bool), "config.share_att_key", shared, "True or False", "Take it from config.json.")
    return tuple(terms), shared
