"""The row kernels' part of ``python -m positionlib.kernels.compile``: registers, spills, and bytes a row beside the floor of a copy.

A row kernel is bound by memory, so what counts is how many bytes it must touch: :func:`traffic` says it from the shapes, each address
once, and a test counts them in the interpreter. A copy reads and writes the state once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from positionlib.kernels import row_ops
from positionlib.kernels.compile import DTYPES, SHARED_LIMIT, _AbsentGpu, _resource_usage, verdict

ROW_KINDS = ("sinusoidal", "learned", "learned_chunk_sums", "learned_gradient", "grid", "time2vec", "time2vec_gradients",
             "rotary_half_split", "rotary_interleaved")
SUMS = "learned_chunk_sums", "learned_gradient"
# (forward, backward) kernels of a mechanism. What adds rows that are not learned hands the upstream gradient on; a rotation is turned back by its own kernel.
ROW_MECHANISMS = {"sinusoidal": (("sinusoidal",), ()), "learned": (("learned",), SUMS), "grid": (("grid",), SUMS),
                  "time2vec": (("time2vec",), ("time2vec_gradients",)), "rotary_half_split": (("rotary_half_split",), ("rotary_half_split",)),
                  "rotary_interleaved": (("rotary_interleaved",), ("rotary_interleaved",))}
# Odd lengths: no multiple that would let the compiler drop a mask.
BATCH, ROWS, WIDTH, HEADS, D_HEAD, AXIS = 8, 1001, 1024, 12, 128, 37
HEADER = "row kernel            arch   dtype  registers  spill  shared  read a row  written  of a copy"


def calls(dtype: torch.dtype, batch: int = BATCH, rows: int = ROWS, width: int = WIDTH, device: str = "meta") -> dict[str, tuple]:
    """(kernel, grid, arguments, constants) of every row kernel, by default on tensors without memory; the batch shares its positions."""
    def empty(*shape, of=dtype):
        return torch.empty(shape, dtype=of, device=device)

    def positions(stop=rows):
        return torch.arange(stop, device=device)

    wide = row_ops.accumulator(dtype)
    x, q, table = empty(batch, rows, width), empty(batch, HEADS, rows, D_HEAD), empty(rows + 2, width)
    channels = empty(width, of=torch.float32), empty(width, of=torch.float32)
    times = positions().double(), positions() >= 0, *channels, 0, False
    parts = empty(batch * rows // row_ops.CHUNK, width, of=wide), empty(*row_ops.time2vec_parts(x), of=wide)
    chunk_sums, gradient = row_ops.sum_calls(table, x, positions(), positions(), positions(rows + 3).clamp_max(rows), parts[0])
    frequency, angle = empty((width + 1) // 2, of=torch.float64).zero_(), empty(D_HEAD // 2, of=torch.float64).zero_()
    return {
        "sinusoidal": row_ops.sinusoidal_call(x, x, positions(), frequency, True),
        "learned": row_ops.row_call(x, x, table, positions(), 2),
        "learned_chunk_sums": chunk_sums,
        "learned_gradient": gradient,
        "grid": row_ops.grid_call(x, x, empty(AXIS, width), empty(AXIS, width), positions() % AXIS, positions() % AXIS),
        "time2vec": row_ops.time2vec_call(x, x, *times),
        "time2vec_gradients": row_ops.time2vec_gradients_call(empty(batch, rows, of=wide), parts[1], x, *times),
        "rotary_half_split": row_ops.rotate_call(q, q, positions(), angle, False, False),
        "rotary_interleaved": row_ops.rotate_call(q, q, positions(), angle, True, False),
    }


def traffic(kind: str, dtype: torch.dtype, batch: int = BATCH, rows: int = ROWS, width: int = WIDTH) -> tuple[int, int, int]:
    """(bytes read, bytes written, bytes that a copy of the state reads and writes) of one call as in :func:`calls`, from its shapes.

    Tables are read at ids 0..rows−1. The table's gradient is without the sort of the ids, which is torch's, and no chunk is one row's.
    """
    size, wide = dtype.itemsize, row_ops.accumulator(dtype).itemsize
    if kind.startswith("rotary"):
        state = batch * HEADS * rows * D_HEAD * size
        return state + 8 * rows + 8 * (D_HEAD // 2), state, 2 * state
    line, state = width * size, batch * rows * width * size
    parts = math.prod(row_ops.time2vec_parts(torch.empty(batch, rows, width, device="meta")))
    read, written = {
        "sinusoidal": (state + 8 * rows + 8 * ((width + 1) // 2), state),
        "learned": (state + 8 * rows + rows * line, state),
        "learned_chunk_sums": (2 * 8 * (batch * rows // row_ops.CHUNK), 0),  # the ids at both ends of a chunk
        "learned_gradient": (state + 8 * rows + 8 * (rows + 3), (rows + 2) * line),
        "grid": (state + 2 * 8 * rows + 2 * min(AXIS, rows) * line, state),
        "time2vec": (state + 9 * rows + 2 * 4 * width, state),
        "time2vec_gradients": (state + 9 * rows + 2 * 4 * width, wide * (batch * rows + parts)),
    }[kind]
    return read, written, 2 * state


@dataclass(frozen=True)
class RowReport:
    """What one compilation gave; sizes in bytes."""

    kind: str
    arch: int
    dtype: str
    registers: int
    spill: int
    shared: int

    @property
    def faults(self) -> list[str]:
        """Why this kernel must not ship; empty when it may."""
        found = [f"spills {self.spill} bytes"] if self.spill else []
        return found + ["too much shared memory"] * (self.shared > SHARED_LIMIT[self.arch])

    def __str__(self) -> str:
        rows = BATCH * ROWS * (HEADS if self.kind.startswith("rotary") else 1)
        read, written, copy = traffic(self.kind, getattr(torch, DTYPES[self.dtype]))
        return (f"{self.kind:20}  sm_{self.arch}  {self.dtype}  {self.registers:9}  {self.spill:5}  {self.shared:6}  {read / rows:10.1f}  "
                f"{written / rows:7.1f}  {(read + written) / copy:9.3f}  {'; '.join(self.faults) or 'ok'}")


def compile_row_kernel(kind: str, arch: int, dtype: str) -> RowReport:
    """Compile one row kernel. Needs a process in which Triton does not interpret."""
    import triton

    kernel, _, arguments, constants = calls(getattr(torch, DTYPES[dtype]))[kind]
    triton.runtime.driver.set_active(_AbsentGpu(arch))
    binary = kernel.warmup(*arguments, grid=(1,), **constants)
    usage = _resource_usage(binary.asm["cubin"])
    return RowReport(kind, arch, dtype, usage["REG"], usage["STACK"], binary.metadata.shared)


def print_rows(kinds: Sequence[str], archs: Sequence[int], dtypes: Sequence[str]) -> list[RowReport]:
    """Print the table, and return its lines."""
    if kinds:
        print(HEADER)
    reports = []
    for case in itertools.product(kinds, archs, dtypes):
        reports.append(compile_row_kernel(*case))
        print(reports[-1], flush=True)
    return reports


def row_verdicts(reports: list[RowReport]) -> dict[str, dict[str, dict[str, str]]]:
    """As :func:`compile.verdicts`, of the mechanisms whose forward kernel was compiled."""
    compiled = {report.kind for report in reports}
    return {mechanism: {name: {f"sm_{arch}": verdict([r for r in reports if r.kind in kernels and r.arch == arch]) if kernels else "no kernel"
                               for arch in SHARED_LIMIT} for name, kernels in zip(("forward", "backward"), passes)}
            for mechanism, passes in ROW_MECHANISMS.items() if compiled.issuperset(passes[0])}
