"""Calls whose pairs read a row by their offset, and what each must give: the oracle of ``class_cases``, to which every pair brings its own product."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from positionlib.kernels.arguments import Call
from tests.kernels import class_cases
from tests.kernels.cases import DEVICE, Tensors, draw, inputs, inside, poisoned, wide, written

NAMES = "q", "k", "v", "query_rows2", "offset_rows"


@dataclass(frozen=True)
class LineCase(class_cases.ClassCase):
    """Row t of ``rows`` belongs to the offset ``first`` + t, key minus query; ``step`` is the distance of neighbouring keys."""

    reads: str = "pairs"
    first: int = -79
    rows: int = 80
    shared: bool = False  # one line for all heads
    step: int = 1


CASES = [
    LineCase("causal", causal=True, queries=40, start=40),
    LineCase("both_ends", queries=40, start=15, keys=60, first=-9, rows=19, heads=1, key_heads=1),
    LineCase("two_rows", queries=20, start=20, keys=40, first=-1, rows=2, heads=1, key_heads=1),
    LineCase("later_keys", queries=20, origin=50, keys=40, first=31, rows=60, heads=1, key_heads=1),
    LineCase("decode", causal=True, queries=1, keys=33, start=49, key_heads=1, first=-49, rows=50),
    LineCase("left_padding", batch=2, causal=True, queries=40, keys=40, padding="left", batched=True, first=-30, rows=31, heads=1, key_heads=1),
    LineCase("shuffled_keys", causal=True, queries=20, start=16, keys=36, shuffled=True, first=-35, rows=36, key_heads=1),
    LineCase("packed", queries=40, keys=40, segments=True, padding="right", width=48, first=-39, rows=79, shared=True),
    LineCase("gaps", queries=20, start=70, origin=140, keys=34, step=-4, first=-90, rows=160, heads=1, key_heads=1),
    LineCase("same_place", queries=20, start=10, keys=34, step=0, first=-25, rows=30, heads=1, key_heads=1),
    LineCase("near_2_31", causal=True, queries=20, start=2**31 + 17, origin=2**31 - 3, keys=40, first=-30, rows=31, heads=1, key_heads=1),
    LineCase("beyond_2_31_apart", causal=True, queries=17, start=2**40, keys=34, heads=1, key_heads=1),
    LineCase("rows_before_every_key", causal=True, queries=40, origin=20, keys=34, first=-19, rows=20, heads=1, key_heads=1),
    LineCase("nobody", padding="all", queries=20, keys=34, heads=1, key_heads=1),
]
BY_NAME = {case.name: case for case in CASES}


def draw_line(case: LineCase, dtype: torch.dtype, seed: int = 0) -> tuple[Tensors, dict[str, torch.Tensor]]:
    """The inputs of ``cases``, and the second queries and the line by their names in the call."""
    t, generator = draw(case, dtype, seed), torch.Generator().manual_seed(seed + 1)
    if case.step != 1:
        t.key_positions.copy_(case.origin + (t.key_positions - case.origin) * case.step)

    def normal(*shape: int) -> torch.Tensor:
        return inside(torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype), math.nan)

    rows = normal(1 if case.shared else case.heads, case.rows, case.width).expand(case.heads, -1, -1)
    return t, {"query_rows2": normal(*t.q.shape), "offset_rows": rows}


def arguments(case: LineCase, t: Tensors, parts: dict[str, torch.Tensor]) -> Call:
    """The call of the operator."""
    return inputs(case, t)._replace(span=-case.first, **parts)


def oracle(case: LineCase, t: Tensors, parts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, log-sum-exp) in float64, with the product of every pair by itself. Autograd can follow."""
    queries, rows = (parts[name].cpu().double() for name in NAMES[3:])
    positions = [p.cpu().expand(case.batch, -1) for p in (t.query_positions, t.key_positions)]
    products = []
    for at, keys, of_row in zip(*positions, queries):
        place = (keys[None, :] - at[:, None] - case.first).clamp(0, case.rows - 1)  # [Q, K]
        products.append(torch.stack([torch.stack([rows[h, place[i]] @ of_row[h, i] for i in range(case.queries)]) for h in range(case.heads)]))
    return class_cases.oracle(case, t, {"pair_bias": case.scale * torch.stack(products)})[:2]


def run(case: LineCase, t: Tensors, parts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Launch into poisoned outputs; refuse a touched margin. Returns what the oracle does, in float64."""
    from positionlib.kernels import launch

    out, lse = poisoned(t.q), poisoned(t.q[..., 0], wide(t))
    torch.use_deterministic_algorithms(True)  # fills the slabs with NaN: they must be written before they are read
    try:
        launch.launch(out, lse, None, arguments(case, t, parts))
    finally:
        torch.use_deterministic_algorithms(False)
    return written(out), written(lse)


def gradients(case: LineCase, t: Tensors, parts: dict[str, torch.Tensor], back: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Gradients by autograd through the oracle."""
    own = {name: parts[name] if name in parts else getattr(t, name) for name in NAMES}
    leaves = {name: x.detach().cpu().double().requires_grad_() for name, x in own.items()}
    out, lse = oracle(case, replace(t, **{name: leaves[name] for name in NAMES[:3]}), leaves)
    loss = (out * back[0].cpu().double()).sum() + (lse.masked_fill(lse == -math.inf, 0.0) * back[1].cpu().double()).sum()
    if not loss.requires_grad:  # no row sees anything
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))


def run_backward(case: LineCase, t: Tensors, parts: dict[str, torch.Tensor], back: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Launch into poisoned outputs; refuse a touched margin. Returns gradients in float64."""
    from positionlib.kernels import launch

    call = arguments(case, t, parts)
    out, lse = (inside(torch.zeros_like(x), math.nan) for x in (t.q, t.q[..., 0].to(wide(t))))
    found = {name: poisoned(getattr(call, name)) for name in NAMES}
    torch.use_deterministic_algorithms(True)
    try:
        launch.launch(out, lse, None, call)
        launch.launch_backward(found, back[0], back[1], None, out, lse, None, call)
    finally:
        torch.use_deterministic_algorithms(False)
    return {name: written(x) for name, x in found.items()}
