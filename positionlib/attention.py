"""attend(): scores = scale · q·k + term, hidden keys removed, softmax, weighted sum of the values.

The eager path is the specification: it expands everything, computes in at least float32 and rounds once at the end. Rows that
see no key give exactly zero and finite gradients. A query, key or value that is not finite makes the rows that see it NaN, and no
other; the fused kernel keeps that promise for the keys that ``key_active`` hides, which it never loads.

==========  ======================================================================================================================
backend     what it is
==========  ======================================================================================================================
eager       the reference, on any device
sdpa        CPU: torch's own attention, for runs of consecutive positions and a term of at most one number an offset
blocked     CPU: any call, in blocks of queries; nothing of size Q·K stays alive, forward or backward
triton      CUDA: the fused kernel, for the calls it admits
==========  ======================================================================================================================

All but eager give first derivatives only, where they give any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.capabilities import Refusal
from positionlib.contract import checked, is_finite_number
from positionlib.errors import UnsupportedPositionContract, require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import QKTransform
from positionlib.rules import require_ids
from positionlib.runtime import cpu
from positionlib.runtime.cpu import CpuCall
from positionlib.terms import Decomposition, Relation, ScoreBias, StateRows, Term, VisibilityOnly, require_heads

BACKENDS = ("auto", "eager", "sdpa", "blocked", "triton")


@dataclass(frozen=True, eq=False)
class AttendTrace:
    """What attend() did. The eager path fills the tensors; every other backend leaves them None, since it never builds them."""

    backend: str
    reason: str
    scale: float
    scores: Float[Tensor, "B H Q K"] | None = None
    bias: Float[Tensor, "B H Q K"] | None = None
    visible: Bool[Tensor, "B 1 Q K"] | None = None
    probabilities: Float[Tensor, "B H Q K"] | None = None


def attend(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K Dv"], term: Term | None,
           geometry: AttentionGeometry, *, scale: float | None = None, backend: str = "auto",
           return_trace: bool = False) -> Float[Tensor, "B H Q Dv"] | tuple[Float[Tensor, "B H Q Dv"], AttendTrace]:
    """Attention of q over k and v under one geometry and one positional term.

    Parameters
    ----------
    term : what a mechanism returned for this geometry, or None for content alone.
    scale : factor of q·k; default the term's own, else 1/√D.
    backend : one of ``BACKENDS``; a named one is used or refused, never replaced. Auto takes the fused kernel for CUDA tensors that it
        admits; on a CPU sdpa, else blocked, but the reference for a small call, under a transform or compiler, and for a trace.
    return_trace : also return an :class:`AttendTrace`, which names the backend and the reason. Auto on a CPU then takes the reference,
        whose tensors a trace is for, and the reason says what it takes without a trace.

    Raises
    ------
    PositionContractError
        shapes, heads or batch that do not belong together, state rows handed to attention.
    UnsupportedPositionContract
        a named backend for a call that it does not admit; ``missing`` says why.
    """
    require(isinstance(return_trace, bool), "return_trace", return_trace, "True or False", "A trace is asked for or not.")
    scale = check_call(q, k, v, term, geometry, scale)
    # Autocast would run products in half precision.
    with torch.autocast("cpu" if q.is_meta else q.device.type, enabled=False):
        out, trace = _run(choose(q, k, v, term, geometry, scale, backend, return_trace), q, k, v, term, geometry, scale)
    return (out, trace) if return_trace else out


@checked
def masked_softmax(scores: Float[Tensor, "*B K"], visible: Bool[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    """Softmax over the visible keys; a row with none gets zeros. A hidden score has no influence, not even as NaN or infinity."""
    # 70,000 equal weights already overflow a float16 sum.
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~visible, -math.inf)
    if scores.shape[-1] == 0:
        return scores
    # An empty row has maximum −∞; subtracting 0 instead keeps exp(−∞) = 0 free of ∞ − ∞.
    peak = wide.detach().amax(-1, keepdim=True)
    weights = torch.exp(wide - peak.masked_fill(peak == -math.inf, 0.0))
    total = weights.sum(-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1.0)).to(scores.dtype)


def _eager(q, k, v, term, geometry, scale, reason):
    compute = torch.promote_types(q.dtype, torch.float32)
    visible = geometry.visible
    visible = visible[:, None] if visible.ndim == 3 else visible[None, None]  # [1|B, 1, Q, K]
    qc, kc, vc = q.to(compute), _per_query_head(k, q).to(compute), _per_query_head(v, q).to(compute)
    # 0 · NaN is NaN: what is not finite is left out of the products, and given back to the rows that see it.
    bad_q, bad_k, bad_v = ~qc.isfinite().all(-1, keepdim=True), ~kc.isfinite().all(-1, keepdim=True), ~vc.isfinite()
    qc, kc, vc = qc.masked_fill(bad_q, 0.0), kc.masked_fill(bad_k, 0.0), vc.masked_fill(bad_v, 0.0)
    positions = geometry.query_positions, geometry.key_positions
    if isinstance(term, QKTransform):
        qc, kc = term.rotate(qc, positions[0]), term.rotate(kc, positions[1])
    scores, bias, classes = _scores(qc, kc, term, positions, scale)
    probabilities = masked_softmax(scores, visible)
    poisoned = (visible.to(compute) @ (bad_v | bad_k).to(compute) > 0) | (bad_q & visible.any(-1, keepdim=True))
    out = (probabilities @ vc).masked_fill(poisoned, math.nan)
    if classes is not None and term.value_table is not None:
        mass = class_mass(probabilities, classes, term.rule.num_classes)
        out = out + mass @ term.value_table.to(compute)
    return out.to(q.dtype), AttendTrace("eager", reason, scale, scores, bias, visible, probabilities)


def _scores(q, k, term, positions, scale):
    """(scores [B, H, Q, K], the bias in them or None, the relation classes or None)."""
    if isinstance(term, Decomposition):
        return term.scores(q, k, *positions, scale), None, None
    content = q @ k.transpose(-1, -2)
    if isinstance(term, ScoreBias):
        bias = term.materialize(*positions, dtype=q.dtype)  # [1|B, H, Q, K]
        require(bias.shape in ((1, *content.shape[1:]), content.shape), "bias", bias, f"[1|B, H, Q, K] = {tuple(content.shape)} exactly",
                "A bias that broadcasts along a head, a query or a key means something else than it says.")
        return ((content + bias) * scale if term.inside_scale else content * scale + bias), bias, None
    if isinstance(term, Relation):
        classes = term.classes(*positions)  # [*B, Q, K]
        if term.key_table is not None:
            # Scaled with the content: q·(k + a) / √d, as Shaw writes it.
            content = content + pick(q @ term.key_table.to(q.dtype).transpose(-1, -2), classes)
        return content * scale, None, classes
    return content * scale, None, None


@checked
def pick(by_class: Float[Tensor, "B H Q C"], classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q K"]:
    """Each pair's entry of its query's row of class scores; ``classes`` is [Q, K] or [B, Q, K]."""
    _check_classes(classes, by_class.shape[:3], by_class.shape[-1])
    classes = classes[:, None] if classes.ndim == 3 else classes[None, None]
    return by_class.gather(-1, classes.expand(*by_class.shape[:2], -1, -1))


@checked
def class_mass(probabilities: Float[Tensor, "B H Q K"], classes: Int[Tensor, "*B Q K"], num_classes: int) -> Float[Tensor, "B H Q C"]:
    """Probability that falls on each class, so that Σ_j α_ij a_ij becomes one product with the table."""
    _check_classes(classes, probabilities.shape[:3], require_count("num_classes", num_classes))
    classes = classes[:, None] if classes.ndim == 3 else classes[None, None]
    mass = probabilities.new_zeros(*probabilities.shape[:-1], num_classes)
    return mass.scatter_add(-1, classes.expand_as(probabilities), probabilities)


def _check_classes(classes: Tensor, shape: torch.Size, num_classes: int) -> None:
    require(classes.ndim == 2 or classes.ndim == 3 and classes.shape[0] in (1, shape[0]), "classes", classes, f"[Q, K], or [{shape[0]}, Q, K]",
            "Class ids are shared by the heads.")
    if not classes.is_cuda:  # a GPU looks for itself, and would have to be waited for here
        require_ids("classes", classes, num_classes)


def _per_query_head(x: Float[Tensor, "B Hkv K D"], q: Float[Tensor, "B H Q D"]) -> Float[Tensor, "B H K D"]:
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def check_call(q: Tensor, k: Tensor, v: Tensor, term: Term | None, geometry: AttentionGeometry, scale: float | None) -> float:
    """The factor of q·k of a call whose parts belong together; PositionContractError names the part that does not."""
    _check_parts(q, k, v, term, geometry)
    if scale is None:
        scale = term.score_scale if term is not None and term.score_scale is not None else 1.0 / math.sqrt(q.shape[-1])
    require(torch.compiler.is_compiling() or is_finite_number(scale), "scale", scale, "a finite number", "Leave it out for the term's own scale.")
    return float(scale)


def _check_parts(q, k, v, term, geometry) -> None:
    require(isinstance(geometry, AttentionGeometry), "geometry", geometry, "an AttentionGeometry", "Build it with call.geometry().")
    for name, t in (("q", q), ("k", k), ("v", v)):
        dense = isinstance(t, Tensor) and t.ndim == 4 and t.layout == torch.strided
        require(dense, name, t, "a dense tensor of shape [B, H, N, D]", "Split the heads before attending.")
        require(t.dtype.is_floating_point and t.dtype == q.dtype, name, t, f"floating point, as q: {q.dtype}", "Cast q, k and v alike.")
        require(t.shape[0] == q.shape[0] and t.device == q.device, name, t, f"q's batch {q.shape[0]} and device {q.device}", "Move or match it.")
    require(k.shape[-1] == q.shape[-1] > 0, "k", k, f"width {q.shape[-1]}, as q", "q and k share d_head.")
    require(v.shape[1:3] == k.shape[1:3], "v", v, f"{k.shape[1]} heads and {k.shape[2]} rows, as k", "k and v come from the same rows.")
    require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, "k", k, f"a head count that divides {q.shape[1]}", "Grouped queries share whole key heads.")
    for name, length, axis in (("query_positions", geometry.query_length, q.shape[2]), ("key_positions", geometry.key_length, k.shape[2])):
        require(length == axis, name, length, f"{axis} positions, one a row",
                "Build the geometry of this very call: a decode step has one query and all cached keys.")
    require(geometry.batch in (None, q.shape[0]), "geometry.batch", geometry.batch, f"{q.shape[0]} or none", "Match the batch of q.")
    require(geometry.device == q.device, "geometry.device", geometry.device, str(q.device), "Call geometry.to(q.device).")
    if term is None:
        return
    require(isinstance(term, Term), "term", type(term).__name__, "a Term, from mechanism(geometry)", "Call the mechanism first.")
    require(not isinstance(term, StateRows), "term", type(term).__name__, "a term of attention",
            "State rows enter before the projections: x = term.add_to(x), then attend with term=None.")
    require(term.admits(geometry.is_causal), "geometry.causal", geometry.causal, f"a {term.requires} geometry, for which this term was made",
            "Call the mechanism with the geometry of this very call: without its mask it means something else, or nothing.")
    if isinstance(term, VisibilityOnly):
        return
    geometry.require_shared_frame(type(term).__name__)
    if isinstance(term, ScoreBias):
        require_heads(term, q.shape[1])
    if isinstance(term, Relation):
        for name, table, width in (("key_table", term.key_table, q.shape[-1]), ("value_table", term.value_table, v.shape[-1])):
            require(table is None or (table.shape[-1] == width and table.shape[:-2] in ((), q.shape[1:2])), name, table,
                    f"width {width}, for all heads or for each of {q.shape[1]}", "Give one row a class, as wide as the heads.")


class Choice(NamedTuple):
    """Which backend runs a call, and why. ``refused`` is the first refusal on the way there, ``call`` the work done so far."""

    backend: str
    reason: str
    refused: Refusal | None = None
    call: CpuCall | None = None


def choose(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K Dv"], term: Term | None,
           geometry: AttentionGeometry, scale: float, backend: str, traced: bool = False) -> Choice:
    """The backend that attend() takes for a call whose parts fit together; ``traced`` where a trace is wanted.

    Raises
    ------
    UnsupportedPositionContract
        a named backend lacks something; ``missing`` names it.
    """
    require_choice("backend", backend, BACKENDS)
    if backend == "eager":
        return Choice("eager", "asked for")
    if backend == "triton" or backend == "auto" and q.device.type == "cuda":
        from positionlib.runtime.fused import refusal

        refused = refusal(q, k, v, term, geometry)
        if refused is None:
            return Choice("triton", "asked for" if backend == "triton" else "auto: admitted")
        if backend == "auto":
            return Choice("eager", f"auto: the fused kernel refused: {refused.why}", refused)
        raise _unsupported(backend, refused)
    refused, call = cpu.refusal(q, k, v), None
    if refused is None and backend == "auto" and cpu.small(q, k):
        refused = Refusal("a small call")
    if refused is None:
        compute = torch.promote_types(q.dtype, torch.float32)
        call = CpuCall.prepare(q.to(compute), _per_query_head(k, q).to(compute), _per_query_head(v, q).to(compute), term, geometry, scale)
        if backend == "blocked":
            return Choice(backend, "asked for", None, call)
        refused = call.sdpa_refusal()
        if backend == "sdpa" and refused is None:
            return Choice(backend, "asked for", None, call)
        if backend == "auto":
            fast = Choice("sdpa", "auto: runs of consecutive positions", None, call) if refused is None else Choice(
                "blocked", f"auto: sdpa refused: {refused.why}", refused, call)
            if not traced:
                return fast
            refused = Refusal(f"a trace is what only eager fills; without one {fast.backend}, {fast.reason}")
    if backend == "auto":
        return Choice("eager", f"auto on {q.device.type}: {refused.why}", refused)
    raise _unsupported(backend, refused)


def _unsupported(backend: str, refused: Refusal) -> UnsupportedPositionContract:
    named = ", ".join(sorted(refused.missing))
    return UnsupportedPositionContract("backend", backend, "a call that it admits", f"{refused.why} (missing: {named}). Use backend='eager'.", refused.missing)


def _run(choice, q, k, v, term, geometry, scale) -> tuple[Tensor, AttendTrace]:
    backend, reason, _, call = choice
    if backend == "eager":
        return _eager(q, k, v, term, geometry, scale, reason)
    trace = AttendTrace(backend, reason, scale)
    if backend == "triton":
        from positionlib.runtime.fused import fused_attend

        return fused_attend(q, k, v, term, geometry, scale), trace

    def reference(batch: slice, start: int, stop: int) -> Tensor:
        part = geometry.slice_batch(batch.start, batch.stop).slice_queries(start, stop)
        rows = None if term is None else term.slice_queries(start, stop)
        return _eager(q[batch, :, start:stop], k[batch], v[batch], rows, part, scale, reason)[0]

    return call.attend(sdpa=backend == "sdpa", reference=reference).to(q.dtype), trace
