"""From a term and a geometry to the arguments of the fused kernel, and the reasons why a call is not admitted."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib import kernels
from positionlib.capabilities import (
    BIAS, CAUSAL, CLASS_BIAS, CONTENT_BIAS, FAR, FREQUENCY_GRADIENT, GIVEN_BIAS, KEY_SCORE, NO_CONTENT, OPEN_CLASSES, PAIR_RELATION, QUERY_SCORE,
    ROTATION, ROW_SCORE, VALUE_SUM, Refusal,
)
from positionlib.forms import ByClass, ByLine, ByRow, ByTurn, OfRows, OnALine
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import QKTransform
from positionlib.rules import readable
from positionlib.terms import ClassBias, SlopeBias, Term, VisibilityOnly

FUSED_TERMS = (type(None), VisibilityOnly, ClassBias, SlopeBias, QKTransform, OfRows, OnALine)  # and every term that has a form by class
HAS = (CAUSAL, BIAS, CONTENT_BIAS, QUERY_SCORE, KEY_SCORE, VALUE_SUM, NO_CONTENT, PAIR_RELATION, CLASS_BIAS, GIVEN_BIAS, ROTATION, ROW_SCORE)


def refusal(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], term: Term | None,
            geometry: AttentionGeometry) -> Refusal | None:
    """None when the fused kernel admits this call, else the reason, naming what is missing."""
    form = by_class(term, geometry.slice_queries(0, 0), 1.0)  # of no pair: what kind of form it is
    if not isinstance(term, FUSED_TERMS) and form is None:
        return Refusal(f"no fused form of {type(term).__name__}", term=term, has=HAS)
    if isinstance(term, OfRows) and (width := term.by_row().query_rows.shape[-1]) != q.shape[-1]:
        return Refusal(f"position rows of width {width}: the kernel takes rows as wide as the heads", (f"position width {width}",))
    if isinstance(term, SlopeBias) and term.rounded is not None:
        return Refusal(f"slopes rounded to {term.rounded}: the kernel keeps them in float32", term=term, has=HAS)
    if isinstance(term, QKTransform) and term.inverse_frequency.requires_grad and torch.is_grad_enabled():
        return Refusal("a gradient of the frequencies is required: the kernel reads cosines and sines as constants", (FREQUENCY_GRADIENT,))
    rule = term.rule if isinstance(term, ClassBias) else form and form.rule
    if rule is not None and not hasattr(rule, "max_distance"):
        return Refusal(f"{type(rule).__name__} names no distance beyond which its classes stay the same", (OPEN_CLASSES,))
    refused = kernels.refusal(q, k, v, kind=_kind(term), allowed=geometry.allowed)
    return _line_refusal(term, geometry) if refused is None and isinstance(term, OnALine) else refused


def fused_attend(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], term: Term | None,
                 geometry: AttentionGeometry, scale: float) -> Float[Tensor, "B H Q D"]:
    """Run an admitted call. The bias is added after the scale, so one that belongs inside it is scaled here."""
    g, bias = geometry, bias_args(term, scale)
    return kernels.forward(q, k, v, query_positions=g.query_positions, key_positions=g.key_positions, causal=g.causal, scale=scale,
                           key_active=g.key_active, query_segments=g.query_segments, key_segments=g.key_segments, bias=bias,
                           form=form_of(q, term, g, scale))


def bias_args(term: Term | None, scale: float) -> kernels.BiasArgs | None:
    """The bias by offset of an admitted term as the kernel reads it: all that it holds of such a term."""
    if isinstance(term, OfRows):
        rows = term.by_row()
        return None if rows.bias is None else kernels.BiasArgs.from_classes(rows.bias, rows.rule, "key_minus_query")
    if not isinstance(term, (ClassBias, SlopeBias)):
        return None
    factor = scale if term.inside_scale else 1.0
    if isinstance(term, ClassBias):
        return kernels.BiasArgs.from_classes(term.table * factor, term.rule, term.sign)
    return kernels.BiasArgs.from_slopes(term.slopes * factor, term.form)


def form_of(q: Tensor, term: Term | None, geometry: AttentionGeometry, scale: float) -> ByClass | ByLine | ByRow | ByTurn | None:
    """What the kernel reads of an admitted term besides a bias by offset."""
    if isinstance(term, OnALine):
        return term.by_line(*_line(term, geometry))
    if isinstance(term, OfRows):
        term.require_made_for(geometry.query_positions, geometry.key_positions)
        return term.by_row()
    if not isinstance(term, QKTransform):
        return by_class(term, geometry, scale)
    term.require_width(q)
    wide = torch.promote_types(q.dtype, torch.float32)
    queries, keys = (term.turns(positions, wide) for positions in (geometry.query_positions, geometry.key_positions))
    return ByTurn(query_turns=queries, key_turns=keys, interleaved=term.pairing == "interleaved")


def by_class(term: Term | None, geometry: AttentionGeometry, scale: float) -> ByClass | None:
    """What the pairs of a term read by class; None where they read nothing so."""
    return None if term is None else term.by_class(geometry.query_positions, geometry.key_positions, scale)


def _line_refusal(term: OnALine, geometry: AttentionGeometry) -> Refusal | None:
    line, rows = _line(term, geometry), geometry.query_length + geometry.key_length
    if line is None:
        return Refusal("a graph is being traced, which has no positions to look at", ("a traced graph",))
    return Refusal("offsets too far apart for one line", (FAR,)) if line[1] - line[0] > max(1, 4 * rows) else None


def _line(term: OnALine, geometry: AttentionGeometry) -> tuple[int, int] | None:
    """The offsets that have a row of their own in this call: its positions decide. None in a graph, which has no values."""
    queries, keys = geometry.query_positions, geometry.key_positions
    if not queries.numel() or not keys.numel():
        return term.line(0, 0)
    if not readable(queries):
        return None
    if geometry.key_active is not None:  # an unwritten slot may stand anywhere
        keys = torch.where(geometry.key_active, keys, queries[..., :1])
    if not keys.numel():  # the padding of a batch of none
        return term.line(0, 0)
    ends = torch.stack(((keys.amin(-1) - queries.amax(-1)).min(), (keys.amax(-1) - queries.amin(-1)).max()))
    return term.line(*ends.tolist())


def _kind(term: Term | None) -> str:
    if isinstance(term, ClassBias):
        return "t5"
    return f"alibi_{term.form}" if isinstance(term, SlopeBias) else "content"
