"""tensor2tensor's relative attention "v2" and its skewing procedure."""

from __future__ import annotations

import torch

from positionlib import AttentionGeometry, MusicRelative, attend
from positionlib.mechanisms.shaw_variants import skew, skew_bidirectional, unskew
from tests.oracles.case import Case

HIDDEN = -1e9  # what the source adds to a hidden score


def skewing(case: Case) -> None:
    x, u = case.take("x"), case.take("u")
    case.check("rel_to_abs_masked", skew(x))
    case.check("abs_to_rel_masked", unskew(x))
    case.check("rel_to_abs_unmasked", skew_bidirectional(u))


def masked(case: Case) -> None:
    attention(case, causal=True)


def unmasked(case: Case) -> None:
    attention(case, causal=False)


def attention(case: Case, *, causal: bool) -> None:
    """The probabilities come from the library's gather by offset, the logits from its skewing, which knows the hidden ones too."""
    q, k, v = case.take("q"), case.take("k"), case.take("v")
    case.check("q_scaled", q * q.shape[-1] ** -0.5)
    tables = {name: case.take(name) for name in ("key_table", "value_table") if case.has(name)}
    heads = None if case.setting("share") else case.setting("H")
    module = MusicRelative(case.setting("m"), q.shape[-1], causal=causal, heads=heads, sides="both" if len(tables) == 2 else "keys").to(q.dtype)
    module.load_state_dict(tables)
    geometry = (AttentionGeometry.causal_self if causal else AttentionGeometry.encoder)(q.shape[2])
    case.check("visible", geometry.visible)
    out, trace = attend(q, k, v, module(geometry), geometry, return_trace=True)
    aligned = (skew if causal else skew_bidirectional)(q @ module.rows_in_order(q.shape[2]).mT)
    logits = (q @ k.mT + aligned) * trace.scale
    case.check("logits", torch.where(geometry.visible, trace.scores, logits + HIDDEN))
    case.check("weights", trace.probabilities)
    case.check("out", out)
    case.check_gradients(out, {"grad_key_table": module.key_table, "grad_value_table": module.value_table})


SOURCES = [
    ("common_attention.py", "_relative_position_to_absolute_position_masked", skewing),
    ("common_attention.py", "dot_product_self_attention_relative_v2", masked),
    ("common_attention.py", "dot_product_unmasked_self_attention_relative_v2", unmasked),
]
