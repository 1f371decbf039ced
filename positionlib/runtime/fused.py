"""From a term and a geometry to the arguments of the fused kernel, and the reasons why a call is not admitted."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from positionlib import kernels
from positionlib.capabilities import BIAS, CAUSAL, OPEN_CLASSES, Refusal
from positionlib.geometry import AttentionGeometry
from positionlib.terms import ClassBias, ScoreBias, SlopeBias, Term, VisibilityOnly

FUSED_TERMS = (type(None), VisibilityOnly, ClassBias, SlopeBias)


def refusal(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], term: Term | None,
            geometry: AttentionGeometry) -> Refusal | None:
    """None when the fused kernel admits this call, else the reason, naming what is missing."""
    if not isinstance(term, FUSED_TERMS):
        return Refusal(f"no fused form of {type(term).__name__}", term=term, has=(CAUSAL, BIAS))
    if isinstance(term, SlopeBias) and term.rounded is not None:
        return Refusal(f"slopes rounded to {term.rounded}: the kernel keeps them in float32", term=term, has=(CAUSAL, BIAS))
    if isinstance(term, ClassBias) and not hasattr(term.rule, "max_distance"):
        return Refusal(f"{type(term.rule).__name__} names no distance beyond which its classes stay the same", (OPEN_CLASSES,))
    return kernels.refusal(q, k, v, kind=_kind(term), allowed=geometry.allowed)


def fused_attend(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], term: Term | None,
                 geometry: AttentionGeometry, scale: float) -> Float[Tensor, "B H Q D"]:
    """Run an admitted call. The bias is added after the scale, so one that belongs inside it is scaled here."""
    g, bias = geometry, bias_args(term, scale)
    return kernels.forward(q, k, v, query_positions=g.query_positions, key_positions=g.key_positions, causal=g.causal, scale=scale,
                           key_active=g.key_active, query_segments=g.query_segments, key_segments=g.key_segments, bias=bias)


def bias_args(term: Term | None, scale: float) -> kernels.BiasArgs | None:
    """The bias of an admitted term as the kernel reads it: all that it holds of the term."""
    if not isinstance(term, ScoreBias):
        return None
    factor = scale if term.inside_scale else 1.0
    if isinstance(term, ClassBias):
        return kernels.BiasArgs.from_classes(term.table * factor, term.rule, term.sign)
    return kernels.BiasArgs.from_slopes(term.slopes * factor, term.form)


def _kind(term: Term | None) -> str:
    if isinstance(term, ClassBias):
        return "t5"
    return f"alibi_{term.form}" if isinstance(term, SlopeBias) else "content"
