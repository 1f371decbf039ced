"""What the backward kernels must give for a case of ``cases``, by autograd through its float64 oracle, and what they give."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tests.kernels.cases import DEVICE, TOLERANCE, Case, Tensors, inputs, inside, oracle, poisoned, wide, written

NAMES = "q", "k", "v", "table", "query_rows2", "key_rows2", "cls"


def cotangents(t: Tensors, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """∂L/∂out and ∂L/∂lse, in strided views within NaN: L is a random sum of both results."""
    generator = torch.Generator().manual_seed(seed)
    d_out, d_lse = (torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE) for shape in (t.q.shape, t.q.shape[:-1]))
    return inside(d_out.to(t.q.dtype), math.nan), inside(d_lse.to(wide(t)), math.nan)


def gradients(case: Case, t: Tensors, d_out: torch.Tensor, d_lse: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients in float64. The log-sum-exp of a row that sees nothing is a constant."""
    leaves = {name: getattr(t, name).detach().cpu().double().requires_grad_() for name in NAMES if getattr(t, name, None) is not None}
    out, lse = oracle(case, replace(t, **leaves))
    loss = (out * d_out.cpu().double()).sum() + lse.masked_fill(lse == -math.inf, 0.0).mul(d_lse.cpu().double()).sum()
    if not loss.requires_grad:  # no row sees anything
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)))


def run_backward(case: Case, t: Tensors, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Launch into poisoned outputs; refuse a touched margin. Returns gradients in float64, the table's folded to its own layout."""
    from positionlib.kernels import launch

    if t.table is not None:
        t = replace(t, table=t.table.detach().requires_grad_())
    arguments = inputs(case, t)
    out, lse = inside(torch.zeros_like(t.q), math.nan), inside(torch.zeros_like(t.q[..., 0], dtype=wide(t)), math.nan)
    laid_out = arguments.table
    found = {name: poisoned(getattr(arguments, name)) for name in NAMES if getattr(arguments, name) is not None}
    torch.use_deterministic_algorithms(True)  # fills what empty() returns with NaN: also the scratch must be written before it is read
    try:
        with torch.no_grad():
            launch.launch(out, lse, None, arguments)
            launch.launch_backward(found, d_out, d_lse, None, out, lse, None, arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    seen = {name: written(x) for name, x in found.items()}
    if laid_out is not None and laid_out is not t.table:
        seen["table"] = torch.autograd.grad(laid_out, t.table, seen["table"].to(laid_out))[0].double().cpu()
    return seen


def gradient_error(case: Case, dtype: torch.dtype, want: dict[str, torch.Tensor], seen: dict[str, torch.Tensor]) -> float:
    """Largest error of a gradient, relative to the largest value expected of it, over the dtype's tolerance: good up to 1."""
    worst = 0.0
    for name, right in want.items():
        gap = (seen[name] - right).abs().max() / (right.abs().max() if right.any() else 1.0)
        worst = max(worst, math.inf if math.isnan(gap) else float(gap))
    return worst / TOLERANCE[dtype]
