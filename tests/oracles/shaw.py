"""Relation tables of tensor2tensor (Shaw) and of BERT's relative_key."""

from __future__ import annotations

import torch

from positionlib import AttentionGeometry, BertRelative, ShawRelative, attend
from tests.oracles.case import Case
from tests.oracles.heads import merge_heads, project, split_heads

HIDDEN = -1e9  # what the sources add to a hidden score


def position_matrix(case: Case) -> None:
    """Queries at the end of the keys. More queries than keys are cut off; the cache mode has the last one alone."""
    queries = 1 if case.setting("cache") else case.setting("length_q")
    geometry = at_the_end(queries, case.setting("length_k"))
    case.check("index", shaw(case.setting("max_relative_position"), 1).rule.classes(geometry.offsets("key_minus_query")))


def attention(case: Case) -> None:
    """q comes scaled already, so the call's own scale is 1."""
    q, k, v = case.take("q"), case.take("k"), case.take("v")
    scaled = (q * q.shape[-1] ** -0.5).requires_grad_()
    case.check("q_scaled", scaled)
    module = shaw(case.setting("m"), q.shape[-1]).to(q.dtype)
    module.load_state_dict({"key_table": case.take("rel_key_table"), "value_table": case.take("rel_value_table")})
    geometry = at_the_end(q.shape[2], k.shape[2], causal=case.setting("mask") != "none")
    case.check("visible", geometry.visible.expand(q.shape[0], 1, -1, -1))
    term = module(geometry)
    case.check("index", term.classes(geometry.query_positions, geometry.key_positions))
    out, trace = attend(scaled, k, v, term, geometry, scale=1.0, return_trace=True)
    case.check("logits", trace.scores + HIDDEN * ~geometry.visible)
    case.check("weights", trace.probabilities)
    case.check("out", out)
    case.check_gradients(out, {"grad_rel_key_table": module.key_table, "grad_rel_value_table": module.value_table, "grad_q_scaled": scaled})


def bert(case: Case) -> None:
    """A bidirectional layer without its output projection, and the same token by token behind a cache."""
    x, heads = case.take("x"), case.setting("H")
    q, k, v = (split_heads(project(x, case.take(f"param.{name}.weight"), case.take(f"param.{name}.bias")), heads) for name in ("query", "key", "value"))
    module = BertRelative(case.setting("P"), q.shape[-1], variant=case.setting("t")).to(x.dtype)
    module.load_state_dict({"weight": case.take("param.distance_embedding.weight")})
    length = x.shape[1]
    geometry = AttentionGeometry.encoder(length, key_active=case.take("key_visible"))
    offsets = geometry.offsets("query_minus_key")
    case.check("distance", offsets)
    case.check("index", module.rule.classes(offsets))
    out, trace = attend(q, k, v, module(geometry), geometry, return_trace=True)
    case.check("attn_probs", trace.probabilities)
    case.check("out", merge_heads(out))
    case.check_gradients(out, {"grad_distance_embedding": module.weight})
    steps = []
    for t in range(length if case.has("out_decode") else 0):
        step = AttentionGeometry.decode(t)
        steps.append(attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], module(step), step))
    case.check("out_decode", merge_heads(torch.cat(steps, 2)) if steps else None)


def at_the_end(queries: int, keys: int, causal: bool = False) -> AttentionGeometry:
    positions = torch.arange(keys)
    return AttentionGeometry(positions[-queries:], positions, causal=causal)


def shaw(max_distance: int, d_head: int) -> ShawRelative:
    return ShawRelative(max_distance, d_head, sign="key_minus_query")


SOURCES = [
    ("common_attention.py", "_generate_relative_positions_matrix", position_matrix),
    ("common_attention.py", "dot_product_attention_relative", attention),
    ("modeling_bert.py", "BertSelfAttention", bert),
]
