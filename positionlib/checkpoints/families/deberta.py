"""DeBERTa in three forms: transformers' v1 and v2 (5.24.0), and the authors' own names (microsoft/DeBERTa: names as in bert.py of a3f1d72,
behaviour as 4d7fe0b ran).

    family             q, k, v                  position projections        buckets at the edge    rows beside the layers
    deberta            fused head by head       pos_proj, pos_q_proj        none                   rel_embeddings
    deberta-v2         three                    own, or the content's       transformers           rel_embeddings, perhaps normed
    deberta-official   three                    own, or the content's       official               and absolute rows for the mask decoder

All read the row of i − j for both terms, where the paper's third term reads that of j − i. The scale counts the enabled terms:
√((1 + n) d). A layer's part holds its output projection and LayerNorm; the table is one object for the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import TRANSFORMERS, Assignment, affine, each_layer, stated
from positionlib.checkpoints.maps import deberta_normed, deberta_span, deberta_terms, deberta_v2_attention, deberta_v2_shapes, deberta_v2_table
from positionlib.checkpoints.state import Shapes, counts, epsilon, fields, filled, layered, linears, norm, only, position_range, widths
from positionlib.errors import require, require_count
from positionlib.layers import SelfAttention
from positionlib.mechanisms import DeBERTa, LearnedAbsolute

POSITIONS = "embeddings.position_embeddings.weight"
HEADS = affine(*(f"{head}.{part}" for head in ("cls.predictions.transform", "lm_predictions.lm_head", "mask_predictions") for part in ("dense", "LayerNorm")),
               "cls.predictions.decoder", "mask_predictions.classifier", "pooler.dense", "classifier", "qa_outputs")
HEADS += ("cls.predictions.bias", "lm_predictions.lm_head.bias")


def v1(config: Mapping, assignment: Assignment) -> Plan:
    """DeBERTa v1: in_proj holds q, k and v of head 0, then of head 1; q and v have a bias, k has none."""
    only(config, talking_head=False)
    (d_model, heads), (terms, _) = widths(config, "num_attention_heads"), deberta_terms(config)
    far, buckets = deberta_span(config)
    require(buckets is None, "config.position_buckets", buckets, "none", "Buckets came with v2: convert it as deberta-v2.")
    eps = epsilon(config)
    attention = {"self.in_proj.weight": (3 * d_model, d_model), "self.q_bias": (d_model,), "self.v_bias": (d_model,)}
    attention |= ({"self.pos_proj.weight": (d_model, d_model)} if "c2p" in terms else {}) | (linears(d_model, "self.pos_q_proj") if "p2c" in terms else {})
    attention |= linears(d_model, "output.dense") | norm("output.LayerNorm", d_model)
    contract = _contract("deberta", f"{TRANSFORMERS}, models/deberta/modeling_deberta.py", config, assignment, None)

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        state = conversion.inside(f"encoder.layer.{n}.attention.")
        table = conversion["attention.0"].mechanism.weight if n else nn.Parameter(conversion.state["encoder.rel_embeddings.weight"].detach().clone())
        mechanism = DeBERTa(heads, d_model, far, terms=("c2c", *terms), third_index="released", projections="own", table=table, key_bias=False)
        fused = state.pop("self.in_proj.weight").unflatten(0, (heads, 3, -1))
        own = {f"{name}.weight": fused[:, at].flatten(0, 1) for at, name in enumerate("qkv")}
        # The source's key projection has no bias: ours has one of zeros.
        own |= {"q.bias": state.pop("self.q_bias"), "k.bias": torch.zeros_like(state["self.v_bias"]), "v.bias": state.pop("self.v_bias")}
        names = {"self.pos_proj": "mechanism.pos_key_proj", "self.pos_q_proj": "mechanism.pos_query_proj", "output.dense": "o", "output.LayerNorm": "norm"}
        return filled(SelfAttention(d_model, heads, mechanism, post_norm=eps), own | state, names)

    return _plan(config, contract, attention, {"encoder.rel_embeddings.weight": (2 * far, d_model)}, {}, layer)


def v2(config: Mapping, assignment: Assignment) -> Plan:
    """DeBERTa v2 and v3 in transformers."""
    contract = _contract("deberta-v2", f"{TRANSFORMERS}, models/deberta_v2/modeling_deberta_v2.py", config, assignment, "transformers")
    return _second(config, contract, "transformers")


def official(config: Mapping, assignment: Assignment) -> Plan:
    """The authors' checkpoints: v2's names, another rounding at the edge, and a table of absolute rows that the mask decoder adds to its queries."""
    rows, d_model = counts(config, "max_position_embeddings", "hidden_size")
    contract = _contract("deberta-official", "microsoft/DeBERTa 4d7fe0b, DeBERTa/deberta/disentangled_attention.py", config, assignment, "official",
                         added="in_mask_decoder", max_positions=rows)
    def positions(conversion: Conversion) -> LearnedAbsolute:
        return filled(LearnedAbsolute(rows, d_model), {"weight": conversion.state[POSITIONS]}, {})

    plan = _second(config, contract, "official", {POSITIONS: (rows, d_model)})
    return replace(plan, parts={"positions": positions, **plan.parts})


def _second(config: Mapping, contract, edge: str, beside: Shapes | None = None) -> Plan:
    d_model, kernel = counts(config, "hidden_size")[0], config.get("conv_kernel_size", 0)
    far, buckets = deberta_span(config)
    table = {"encoder.rel_embeddings.weight": (2 * (buckets or far), d_model)}
    epsilon(config)  # refused here and not by the first part that is made
    if deberta_normed(config):
        table |= norm("encoder.LayerNorm", d_model)
    rest = {}
    if require_count("config.conv_kernel_size", kernel, 0):
        groups = require_count("config.conv_groups", config.get("conv_groups", 1))
        rest = {"encoder.conv.conv.weight": (d_model, d_model // groups, kernel), "encoder.conv.conv.bias": (d_model,)}
        rest |= norm("encoder.conv.LayerNorm", d_model)

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        own = {name.removeprefix("encoder."): conversion.state[name] for name in table}
        rows = conversion["attention.0"].mechanism.weight if n else deberta_v2_table(own, config)
        return deberta_v2_attention(conversion.inside(f"encoder.layer.{n}.attention."), config, rows, edge=edge)

    return _plan(config, contract, deberta_v2_shapes(config), table | (beside or {}), rest, layer)


def _contract(family: str, revision: str, config: Mapping, assignment: Assignment, edge: str | None, **said):
    (_, heads), (terms, shared) = widths(config, "num_attention_heads"), deberta_terms(config)
    # Absent they would mean -1, and under buckets no shape shows how far those reach.
    fields(config, "max_relative_positions", *([] if edge is None else ["position_buckets"]))
    far, buckets = deberta_span(config)
    rule = f"clamp(i − j + {far}, 0, {2 * far - 1})" if buckets is None else f"{buckets} logarithmic buckets a side to {far}, edge {edge}"
    return stated(family, revision, heads, assignment, table_layout="distances_width", table_rows=2 * (buckets or far), relative_sign="query_minus_key",
                  clipping_or_bucket_rule=f"{rule}; terms {'|'.join(terms)}, third index of (i, j); {'shared' if shared else 'own'} projections",
                  score_scale_factor=1 + len(terms), layer_sharing="stack", **{"generated_buffers": ("embeddings.position_ids",), **said})


def _plan(config: Mapping, contract, attention: Shapes, table: Shapes, rest: Shapes, layer) -> Plan:
    biased = config.get("position_biased_input", True)
    require(biased is False, "config.position_biased_input", biased, "False, and stated", "Absolute rows at the input as well have no part here.")
    d_model, words, rows, layers, inner = counts(config, "hidden_size", "vocab_size", "max_position_embeddings", "num_hidden_layers", "intermediate_size")
    width = require_count("config.embedding_size", config.get("embedding_size", d_model))
    types = require_count("config.type_vocab_size", *fields(config, "type_vocab_size"), 0)
    rest = {"embeddings.word_embeddings.weight": (words, width), **norm("embeddings.LayerNorm", d_model), **rest}
    # Published files hold the mask decoder's rows, which transformers reads nowhere.
    rest |= {} if POSITIONS in table else {POSITIONS: (rows, width)}
    rest |= {"embeddings.token_type_embeddings.weight": (types, width)} if types else {}
    rest |= {"embeddings.embed_proj.weight": (d_model, width)} if width != d_model else {}
    block = linears(d_model, "intermediate.dense", inner=inner) | linears(inner, "output.dense", inner=d_model) | norm("output.LayerNorm", d_model)
    return Plan(contract=contract, prefix="deberta.", heads=HEADS, optional=() if POSITIONS in table else (POSITIONS,),
                generated={"embeddings.position_ids": position_range(rows)}, read=layered("encoder.layer.{}.attention.", layers, attention) | table,
                elsewhere=rest | layered("encoder.layer.{}.", layers, block), parts=each_layer(layers, layer))
