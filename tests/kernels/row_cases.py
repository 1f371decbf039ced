"""Calls of the row kernels, drawn from a seed, and what the mechanism's own term gives for each in float64.

The terms are the specification: :meth:`StateRows.add_to` and :meth:`QKTransform.rotate`. As in ``cases``, inputs lie inside buffers whose
margin betrays a stray read (NaN; positions and ids far from every other), outputs are poisoned inside sentinel-filled ones.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, field

import torch

import positionlib as pl
from positionlib.kernels import row_ops
from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows
from positionlib.rules import frequency_ladder
from positionlib.rotation import QKTransform
from positionlib.terms import StateRows
from tests.kernels.cases import DEVICE, SENTINEL, TOLERANCE, inside

FAR = 2**40 + 12345  # an id or a position that no case has
HEADS = 9  # more than one program turns


@dataclass(frozen=True)
class RowCase:
    """One call. ``start`` is the first position; ``batched`` gives every batch row its own positions, ids or times."""

    name: str
    kind: str
    rows: int = 80  # two tiles and a half
    width: int = 40
    batch: int = 2
    start: int = 0
    batched: bool = False
    settings: dict = field(default_factory=dict)


# The terms' own float64 phases are off by up to 5·10⁻⁷ at 2^31, so the two cases there hold at working precisions; exact arithmetic judges float64.
CASES = [
    RowCase("sines", "sinusoidal", batch=6, start=3, settings={"layout": "interleaved"}),
    RowCase("sines_in_blocks", "sinusoidal", batched=True, start=-70, settings={"layout": "concatenated"}),
    RowCase("sines_wide", "sinusoidal", width=300, rows=37, start=9000, settings={"layout": "concatenated"}),
    RowCase("sines_zero_pad", "sinusoidal", width=41, settings={"layout": "interleaved", "odd_width": "zero_pad"}),
    RowCase("sines_zero_pad_in_blocks", "sinusoidal", width=41, settings={"layout": "concatenated", "odd_width": "zero_pad"}),
    RowCase("sines_without_the_last_cosine", "sinusoidal", width=41, settings={"layout": "concatenated", "odd_width": "drop_last_cosine"}),
    RowCase("sines_cut", "sinusoidal", width=41, settings={"layout": "interleaved", "odd_width": "next_even"}),
    RowCase("sines_across_2_31", "sinusoidal", start=2**31 - 35, settings={"layout": "interleaved"}),
    RowCase("one_row", "sinusoidal", rows=1, batch=1, start=777, settings={"layout": "interleaved"}),
    RowCase("lookup", "learned", settings={"row_offset": 2, "repeat": 1}),
    RowCase("lookup_repeated", "learned", settings={"row_offset": 0, "repeat": 7}),
    RowCase("lookup_crowded", "learned", rows=310, width=16, settings={"row_offset": 1, "repeat": 290}),
    RowCase("lookup_crowded_batched", "learned", rows=310, width=16, batched=True, settings={"row_offset": 1, "repeat": 290}),
    RowCase("lookup_wide", "learned", width=300, rows=37, batched=True, settings={"row_offset": 2, "repeat": 2}),
    RowCase("grid", "grid"),
    RowCase("grid_batched", "grid", batched=True),
    RowCase("grid_leading", "grid", settings={"leading": True}),
    RowCase("times", "time2vec", settings={"function": "sin", "linear": "first"}),
    RowCase("times_cosine_last", "time2vec", batched=True, settings={"function": "cos", "linear": "last"}),
    RowCase("times_missing", "time2vec", width=300, rows=37, batched=True, settings={"function": "sin", "linear": "last", "missing": True}),
    RowCase("half_split", "rotary", rows=40, settings={"pairing": "half_split", "rotary_dim": 40}),
    RowCase("half_split_part", "rotary", rows=40, batched=True, start=-30, settings={"pairing": "half_split", "rotary_dim": 12}),
    RowCase("interleaved", "rotary", rows=40, batched=True, settings={"pairing": "interleaved", "rotary_dim": 40}),
    RowCase("interleaved_part", "rotary", rows=40, start=5000, settings={"pairing": "interleaved", "rotary_dim": 24}),
    RowCase("half_split_across_2_31", "rotary", rows=33, start=2**31 - 20, settings={"pairing": "half_split", "rotary_dim": 40}),
    RowCase("half_split_decode", "rotary", rows=1, start=4095, settings={"pairing": "half_split", "rotary_dim": 40}),
]
BY_NAME = {case.name: case for case in CASES}


@dataclass
class Inputs:
    """x and the trained tensors in the call's dtype; the rest exact."""

    x: torch.Tensor
    upstream: torch.Tensor  # ∂L/∂y
    trained: tuple[torch.Tensor, ...]
    exact: tuple[torch.Tensor, ...]


def draw(case: RowCase, dtype: torch.dtype, seed: int = 0) -> Inputs:
    """The inputs of a case, inside their margins."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def ids(size: int) -> torch.Tensor:
        return torch.randint(0, size, (case.batch, case.rows) if case.batched else (case.rows,), generator=generator)

    head = (HEADS,) if case.kind == "rotary" else ()
    shape = (case.batch, *head, case.rows, case.width)
    positions = torch.arange(case.start, case.start + case.rows)
    if case.batched:
        positions = positions + 5 * torch.arange(case.batch)[:, None]
    trained, exact = (), (positions,)
    if case.kind == "learned":
        # `repeat` places of the same row are crowded together somewhere, the others are anywhere; the last rows are never read.
        exact = (ids(9),)
        exact[0][..., 11 : 11 + case.settings["repeat"]] = 7
        trained = (normal(12, case.width),)
    elif case.kind == "grid":
        exact, trained = (ids(9), ids(13)), (normal(9, case.width), normal(14, case.width))
        if case.settings.get("leading"):
            for axis in exact:
                axis[:2] = -1
    elif case.kind == "time2vec":
        present = torch.rand(positions.shape, generator=generator) > 0.3 if case.settings.get("missing") else torch.ones_like(positions, dtype=torch.bool)
        exact, trained = (3.0 * normal(*positions.shape), present), (normal(case.width).float(), normal(case.width).float())
    margins = {torch.int64: FAR, torch.bool: True}
    return Inputs(inside(normal(*shape).to(DEVICE, dtype), math.nan), inside(normal(*shape).to(DEVICE, dtype), math.nan),
                  tuple(inside(t.to(DEVICE, t.dtype if case.kind == "time2vec" else dtype), math.nan) for t in trained),
                  tuple(inside(t.to(DEVICE), margins.get(t.dtype, math.nan)) for t in exact))


def frequencies(case: RowCase) -> torch.Tensor:
    """ω in radians a position, float64."""
    if case.kind == "rotary":
        return frequency_ladder(case.settings["rotary_dim"] // 2, case.settings["rotary_dim"]).to(DEVICE)
    return inverse_frequencies(case.width, odd_width=case.settings.get("odd_width", "error")).to(DEVICE)


def rows_of(case: RowCase, trained: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The rows that the mechanism itself makes, float64 and differentiable in ``trained`` and in τ."""
    if case.kind == "sinusoidal":
        return sinusoidal_rows(exact[0], case.width, output_dtype=torch.float64, **case.settings)
    if case.kind == "learned":
        module = pl.LearnedAbsolute(12, case.width, row_offset=case.settings["row_offset"])
        return torch.func.functional_call(module, {"weight": trained[0]}, (pl.AttentionGeometry(exact[0], exact[0], causal=True),)).rows
    if case.kind == "grid":
        module, cells = pl.SeparableGrid({"row": (9, case.width), "col": (14, case.width)}, compose="sum"), exact[0] >= 0
        weights = {"weight.row": trained[0], "weight.col": trained[1]}
        at = {"row": exact[0].clamp_min(0), "col": exact[1].clamp_min(0)}
        rows = torch.func.functional_call(AtCoordinates(module), {f"grid.{name}": t for name, t in weights.items()}, (at,))
        return torch.where(cells[..., None], rows, 0.0)  # a leading token stands in no cell
    missing = "zero_row" if case.settings.get("missing") else "error"
    module = pl.Time2Vec(case.width, pl.TimeAxis(0.0, 1.0, "test", None), function=case.settings["function"], linear=case.settings["linear"],
                         missing=missing, output_dtype=torch.float64)
    times = pl.Timestamps(values=exact[0], unit="s", clock="test", zone=None, present=exact[1])
    return torch.func.functional_call(module, dict(zip(("omega", "phi"), trained)), (times,)).rows


class AtCoordinates(torch.nn.Module):
    """``grid.at`` as a forward, which functional_call can reach."""

    def __init__(self, grid):
        super().__init__()
        self.grid = grid

    def forward(self, coordinates):
        return self.grid.at(coordinates).rows


def expected(case: RowCase, x: torch.Tensor, trained: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the term makes of x in float64."""
    if case.kind == "rotary":
        return QKTransform(inverse_frequency=frequencies(case), pairing=case.settings["pairing"]).rotate(x, exact[0])
    return StateRows(rows=rows_of(case, trained, exact), mark=case.kind).add_to(x)


def call(case: RowCase, out: torch.Tensor, t: Inputs, *, x: torch.Tensor | None = None, inverse: bool = False):
    """The launch of the case's kernel into ``out``."""
    x, s = t.x if x is None else x, case.settings
    if case.kind == "sinusoidal":
        return row_ops.sinusoidal_call(out, x, *t.exact, frequencies(case), s["layout"] == "interleaved")
    if case.kind == "learned":
        return row_ops.row_call(out, x, *t.trained, *t.exact, s["row_offset"])
    if case.kind == "grid":
        return row_ops.grid_call(out, x, *t.trained, *t.exact)
    if case.kind == "time2vec":
        return row_ops.time2vec_call(out, x, *t.exact, *t.trained, 0 if s["linear"] == "first" else case.width - 1, s["function"] == "cos")
    return row_ops.rotate_call(out, x, *t.exact, frequencies(case), s["pairing"] == "interleaved", inverse)


def run(case: RowCase, t: Inputs) -> list[torch.Tensor]:
    """Launch into poisoned views of sentinel-filled buffers; refuse a touched margin. [y, gradients of the trained tensors and of τ], as float64.

    The gradient of x is y's own, but for a rotation, which is launched the other way round.
    """
    y = poisoned(t.x.shape, t.x.dtype)
    outputs = [y]
    row_ops.launch(*call(case, y, t))
    if case.kind == "rotary":
        outputs.append(poisoned(t.x.shape, t.x.dtype))
        row_ops.launch(*call(case, outputs[1], t, x=t.upstream, inverse=True))
    if case.kind in ("learned", "grid"):
        for table, ids in zip(t.trained, t.exact):
            outputs.append(poisoned(table.shape, table.dtype))
            sum_into(outputs[-1], t.upstream, ids + case.settings.get("row_offset", 0))
    if case.kind == "time2vec":
        outputs += time2vec_gradients(case, t)
    for view in outputs:
        buffer = torch.empty(0, dtype=view.dtype, device=DEVICE).set_(view.untyped_storage())
        touched = int((buffer != SENTINEL).sum()) - view.numel()
        assert touched == 0, f"{touched} elements of the margin were written"
    return [out.double() for out in outputs]


def sum_into(out: torch.Tensor, upstream: torch.Tensor, ids: torch.Tensor) -> None:
    """The table's gradient as ``sum_rows`` makes it, with poisoned parts."""
    in_order, order = ids.reshape(-1).sort(stable=True)
    bound = torch.searchsorted(in_order, torch.arange(len(out) + 1, device=DEVICE))
    partial = torch.full((upstream[..., 0].numel() // row_ops.CHUNK, out.shape[1]), math.nan, dtype=row_ops.accumulator(out.dtype), device=DEVICE)
    for launch in row_ops.sum_calls(out, upstream, in_order, order, bound, partial):
        row_ops.launch(*launch)


def time2vec_gradients(case: RowCase, t: Inputs) -> list[torch.Tensor]:
    """Gradients of ω, φ and τ; the kernel's parts have no strides of their own, so what is poisoned is whole."""
    wide, s = row_ops.accumulator(t.x.dtype), case.settings
    by_row = torch.full(t.x.shape[:2], math.nan, dtype=wide, device=DEVICE)
    partial = torch.full(row_ops.time2vec_parts(t.x), math.nan, dtype=wide, device=DEVICE)
    convention = 0 if s["linear"] == "first" else case.width - 1, s["function"] == "cos"
    row_ops.launch(*row_ops.time2vec_gradients_call(by_row, partial, t.upstream, *t.exact, *t.trained, *convention))
    of_tau = by_row if case.batched else by_row.sum(0)
    return [partial[:, 0].sum(0), partial[:, 1].sum(0), of_tau.contiguous()]


def wanted(case: RowCase, t: Inputs) -> list[torch.Tensor]:
    """What ``run`` must give, from the term and autograd in float64."""
    x, trained = t.x.double().requires_grad_(), tuple(p.double().requires_grad_() for p in t.trained)
    exact = tuple(e.clone().requires_grad_(e.is_floating_point()) for e in t.exact)
    leaves = [*trained, *(e for e in exact if e.is_floating_point())] or [x]
    y = expected(case, x, trained, exact)
    return [y.detach()] if case.kind == "sinusoidal" else [y.detach(), *torch.autograd.grad(y, leaves, t.upstream.double())]


def poisoned(shape, dtype: torch.dtype) -> torch.Tensor:
    return inside(torch.full(shape, math.nan, dtype=dtype, device=DEVICE), SENTINEL)


def error(case: RowCase, dtype: torch.dtype, want: list[torch.Tensor], t: Inputs) -> float:
    """Largest error of any output, relative to the largest value expected, over the dtype's tolerance: good up to 1."""
    return max(errors(case, dtype, want, t))


def errors(case: RowCase, dtype: torch.dtype, want: list[torch.Tensor], t: Inputs) -> list[float]:
    """That of each output of :func:`run`."""
    gaps = [float((seen - w).abs().max() / w.abs().max()) for seen, w in zip(run(case, t), want, strict=True)]
    return [math.inf if math.isnan(gap) else gap / TOLERANCE[dtype] for gap in gaps]


def far_apart(x: torch.Tensor, axis: int) -> torch.Tensor:
    """x in a view whose last entry along ``axis`` lies 2^31 elements or more after its first, with zeros 2^31 elements before the first.

    The memory is reserved and, but for the entries, never touched. An offset cut to 32 bits would wrap to the zeros.
    """
    without_reserve = 0x4000  # MAP_NORESERVE of Linux
    memory = mmap.mmap(-1, x.element_size() * (2**32 + 2**16 + x.numel()), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | without_reserve)
    apart = -(-(2**31) // (x.shape[axis] - 1))  # itself below 2^31, or the kernel would be given 64 bits
    strides = list(torch.empty_like(x.movedim(axis, 0)[0], memory_format=torch.contiguous_format).stride())
    strides.insert(axis % x.ndim, apart)
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, strides, 2**31).copy_(x)
