"""Which path takes a call on the CPU, and the call itself.

``sdpa``      every row lies in a run of consecutive positions, and the term is at most one number an offset: torch's own attention.
``blocked``   any call: runs by matrix products, other rows by the reference, a few queries at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.capabilities import NO_CONTENT, ON_A_LINE, SCATTERED, Refusal
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import QKTransform
from positionlib.runtime.blocks import in_blocks, run_attention
from positionlib.runtime.runs import Plan, plan
from positionlib.terms import Term

SMALL = 2**16  # B · H · K · (Q + D) below which the reference is as fast


def refusal(*tensors: Tensor) -> Refusal | None:
    """None when the CPU's paths may take these tensors, else the reason. They look at values, and write their own backward pass."""
    if any(t.device.type != "cpu" for t in tensors):
        return Refusal(f"device {tensors[0].device}: it runs on the CPU", (f"device {tensors[0].device.type}",))
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return Refusal("a graph is being traced, which has no values to look at", ("a traced graph",))
    if any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return Refusal("a tensor subclass", ("a tensor subclass",))
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return Refusal("a function transform or forward-mode differentiation", ("function transforms",))
    return None


def small(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"]) -> bool:
    """Whether the call is too small for anything but the reference to pay."""
    return q.shape[0] * q.shape[1] * k.shape[2] * (q.shape[2] + q.shape[3]) < SMALL


@dataclass(frozen=True, eq=False)
class CpuCall:
    """A call prepared for the CPU's paths: tensors in the dtype of the computation, one key head a query head, rotated where the term rotates."""

    q: Float[Tensor, "B H Q D"]
    k: Float[Tensor, "B H K D"]
    v: Float[Tensor, "B H K Dv"]
    scale: float
    plan: Plan | Refusal

    @classmethod
    def prepare(cls, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], v: Float[Tensor, "B H K Dv"], term: Term | None,
                geometry: AttentionGeometry, scale: float) -> CpuCall:
        """Rotate where the term does, and cut the call into runs."""
        if isinstance(term, QKTransform):
            q, k = term.rotate(q, geometry.query_positions), term.rotate(k, geometry.key_positions)
        return cls(q, k, v, scale, plan(q, k, v, term, geometry, scale))

    def sdpa_refusal(self) -> Refusal | None:
        """None when torch's own attention can make the call, else the reason."""
        if isinstance(self.plan, Refusal):
            return self.plan
        line = self.plan.by_offset
        if self.plan.rest:
            return Refusal("rows that are no run of consecutive positions", (SCATTERED,))
        if rows := tuple(name for field, name in ON_A_LINE.items() if field != "bias" and getattr(line, field) is not None):
            return Refusal("a term with a row for each offset", rows + (() if line.content else (NO_CONTENT,)))
        if not line.content:
            return Refusal("scores without content", (NO_CONTENT,))
        width = self.v.shape[-1]
        return None if self.v.shape == self.k.shape else Refusal(f"values of width {width}", (f"value width {width}",))

    def attend(self, *, sdpa: bool, reference: Callable[[slice, int, int], Tensor]) -> Float[Tensor, "B H Q Dv"]:
        """The output. ``reference(batch rows, start, stop)`` makes query rows that are in no run."""
        (batch, heads, queries), keys = self.q.shape[:3], self.k.shape[2]
        if isinstance(self.plan, Refusal):
            return in_blocks(lambda start, stop: reference(slice(0, batch), start, stop), 0, queries, batch * heads * keys)
        out = run_attention(self.plan, self.q, self.k, self.v, self.scale, sdpa=sdpa)
        for row, rows in self.plan.rest:
            some = slice(row, row + 1)
            out[some, :, rows] = in_blocks(lambda start, stop, some=some: reference(some, start, stop), rows.start, rows.stop, heads * keys)
        return out
