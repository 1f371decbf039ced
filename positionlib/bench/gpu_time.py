"""How long the kernels take on this device, beside SDPA without and with a bias in memory, FlexAttention, and peers that are installed.

Rows come in the order of what they decide: N = 8192 at D = 128, where the bars are, first. What does not fit into the part's time is told
as not run. Times are of CUDA events around one pass each, with the cache of the device overwritten before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from positionlib.attention import attend
from positionlib.bench.gpu_bars import AT, DEVICE, PASSES, cells
from positionlib.bench.gpu_cases import MECHANISMS, Mechanism
from positionlib.bench.gpu_peers import PEERS, flex
from positionlib.geometry import AttentionGeometry
from positionlib.kernels import costs
from positionlib.runtime.fused import refusal

HEADS, LENGTHS, WIDTHS, DTYPE = 16, (8192, 2048, 16384, 4096, 1024), (128, 64), torch.bfloat16
EVERY_LENGTH = ("content", "nope", "rotary", "alibi", "t5", "shaw", "tupe_r", "deberta", "transformer_xl", "graph")  # variants: at the bars' length only
REPEATS, SECONDS_A_CASE = 20, 0.06  # of one pass: so many times, or until so long has gone
COPY_BYTES, PRODUCT = 2**30, 8192  # what the machine's two rates are measured with


@dataclass(frozen=True)
class Case:
    """One row: a mechanism at a length and a width, batch 1."""

    mechanism: str
    length: int
    width: int

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.mechanism} N={self.length} D={self.width}"


def plan() -> list[Case]:
    """Every row, the deciding ones first."""
    return [Case(name, length, width) for length in LENGTHS for width in WIDTHS for name in (MECHANISMS if length == AT["length"] else EVERY_LENGTH)]


def timed(call: Callable[[], Any], clock: Clock) -> list[float]:
    """Seconds of single runs, after three that warm up."""
    for _ in range(3):
        call()
    taken: list[float] = []
    while len(taken) < REPEATS and (len(taken) < 3 or sum(taken) < SECONDS_A_CASE):
        taken.append(clock.seconds(call))
    return taken


class Clock:
    """Time on the device between two events, with its cache overwritten before the first."""

    def __init__(self) -> None:
        self.flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def seconds(self, call: Callable[[], Any]) -> float:
        """Of one run."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3


def machine(clock: Clock) -> dict[str, float]:
    """What the floors are made of: operations a second of a bf16 product, bytes a second of a copy, read and written."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=DTYPE) for _ in range(2))
    x = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return {"operations": 2 * PRODUCT**3 / min(timed(lambda: a @ b, clock)), "bytes": 2 * COPY_BYTES / min(timed(lambda: y.copy_(x), clock))}


def both(run: Callable[..., Tensor], leaves: list[Tensor], d_out: Tensor, clock: Clock) -> dict[str, list[float]]:
    """Seconds of the forward pass without a graph, and of the backward pass alone."""
    with torch.no_grad():
        forward = timed(run, clock)
    out = run()
    return dict(zip(PASSES, (forward, timed(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True), clock))))


def peak(run: Callable[..., Tensor], leaves: list[Tensor], d_out: Tensor) -> int:
    """Bytes that forward and backward hold at their highest beside inputs, output and gradients."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    gradients = torch.autograd.grad(out, leaves, d_out)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - sum(t.numel() * t.element_size() for t in (out, *gradients))


def measure(case: Case, rates: dict[str, float], clock: Clock, shared: dict[tuple, dict[str, list[float]]]) -> dict[str, Any]:
    """One row of the receipt; ``refused`` in place of numbers where the kernel takes no such call. ``shared`` keeps what many rows compare with."""
    mechanism = MECHANISMS[case.mechanism]
    torch.manual_seed(0)
    module = mechanism.build(HEADS, case.width, case.length).to("cuda", DTYPE)
    q, k, v, d_out = (torch.randn(1, HEADS, case.length, case.width, device="cuda", dtype=DTYPE) for _ in range(4))
    geometry = AttentionGeometry(*[torch.arange(case.length, device="cuda")] * 2, causal=mechanism.causal)
    row: dict[str, Any] = {"mechanism": case.mechanism, "length": case.length, "width": case.width, "causal": mechanism.causal,
                           "judged": (case.length, case.width) == tuple(AT.values()) and DEVICE in torch.cuda.get_device_name()}
    if (why_not := refusal(q, k, v, module(geometry), geometry)) is not None:
        return row | {"refused": why_not.why}
    leaves = [x.requires_grad_() for x in (q, k, v)]
    learned = [*leaves, *module.parameters()]

    def ours() -> Tensor:
        return attend(q, k, v, module(geometry), geometry, backend="triton")

    seconds = {f"ours {name}": taken for name, taken in both(ours, learned, d_out, clock).items()}
    row["extra_bytes"] = peak(ours, learned, d_out)
    for who, run in rivals(case, mechanism, module, geometry, (q, k, v)):
        key = (who, case.length, case.width, mechanism.causal) + ((case.mechanism,) if who not in ("flash", "cudnn", "bias in memory") else ())
        if key not in shared:
            try:
                shared[key] = both(run, leaves, d_out, clock)
            except (RuntimeError, ImportError) as error:  # an allocation too large, a backend that is not there
                shared[key] = {}
                row.setdefault("not run", {})[who] = str(error).splitlines()[0][:200]
        seconds |= {f"{who} {name}": taken for name, taken in shared[key].items()}
    shape = costs.Shape.self_attention(case.length, heads=HEADS, width=case.width, itemsize=DTYPE.itemsize, causal=mechanism.causal)
    row |= {"seconds": seconds, "floor": {name: costs.floor(name, shape).seconds(rates["operations"], rates["bytes"]) for name in PASSES}}
    return row | {"cells": cells(row, mechanism.bars, row["floor"])}


def rivals(case: Case, mechanism: Mechanism, module: torch.nn.Module, geometry: AttentionGeometry, qkv: tuple) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """What a row is compared with, by name: SDPA without a bias by two backends, with one in memory, FlexAttention, and peers of the mechanism."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = qkv
    bias = torch.zeros(1, HEADS, case.length, case.length, device="cuda", dtype=DTYPE) if case.length <= AT["length"] else None

    def by(backend: SDPBackend, **given) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return sdpa(q, k, v, **given)

        return run

    yield "flash", by(SDPBackend.FLASH_ATTENTION, is_causal=mechanism.causal)
    yield "cudnn", by(SDPBackend.CUDNN_ATTENTION, is_causal=mechanism.causal)
    if bias is not None:
        yield "bias in memory", by(SDPBackend.EFFICIENT_ATTENTION, attn_mask=bias)
    if mechanism.flex and case.length == AT["length"]:
        yield "flex", flex(case.mechanism, module, geometry, qkv)
    for name, build in PEERS.get(case.mechanism, {}).items():
        yield name, build(module, geometry, qkv)


def row_kernels(clock: Clock, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Bytes a second of every row kernel, as a share of those of a copy."""
    from positionlib.kernels import row_ops
    from positionlib.kernels.compile_rows import ROW_KINDS, calls, traffic

    shape = {"batch": 8, "rows": 8192, "width": 2048}
    made = calls(DTYPE, device="cuda", **shape)
    for kind in ROW_KINDS:
        read, written, _ = traffic(kind, DTYPE, **shape)
        seconds = timed(lambda: row_ops.launch(*made[kind]), clock)
        yield {"kind": kind, "bytes": read + written, "seconds": seconds,
               "share of a copy": (read + written) / sorted(seconds)[len(seconds) // 2] / rates["bytes"]}


def warm(name: str) -> None:
    """Compile what the table will run of a mechanism, FlexAttention's form of it too: the results go to caches on disk."""
    mechanism = MECHANISMS[name]
    for width in WIDTHS:
        module = mechanism.build(HEADS, width, LENGTHS[0]).to("cuda", DTYPE)
        for length, run in ((LENGTHS[-1], None), (LENGTHS[0], flex))[: 1 + mechanism.flex]:
            q, k, v, d_out = (torch.randn(1, HEADS, length, width, device="cuda", dtype=DTYPE, requires_grad=True) for _ in range(4))
            geometry = AttentionGeometry(*[torch.arange(length, device="cuda")] * 2, causal=mechanism.causal)
            if run is None and refusal(q, k, v, module(geometry), geometry) is not None:
                return
            out = attend(q, k, v, module(geometry), geometry, backend="triton") if run is None else run(module, geometry, (q, k, v))()
            torch.autograd.grad(out, (q, k, v), d_out)


def table(until: float) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """(name, row) of every case, None for those that no time was left for; ``until`` is a reading of time.monotonic()."""
    clock = Clock()
    rates, shared = machine(clock), {}
    yield "machine", rates
    for row in row_kernels(clock, rates):
        yield f"rows {row['kind']}", row
    for case in plan():
        yield case.name, measure(case, rates, clock, shared) if time.monotonic() < until else None
