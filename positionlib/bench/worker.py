"""Measures one pair in a process of its own, in the environment that has the peer, and prints the numbers as a line of JSON.

    python -m positionlib.bench.worker NAME LENGTH times             agreement, then seconds of both sides in turn
    python -m positionlib.bench.worker NAME LENGTH peak MODE SIDE    bytes that one call adds to this fresh process at its highest
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import time
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.bench.pairs import BATCH, PAIRS, THREADS, WIDTH, Pair, Sides
from positionlib.bench.verdict import BLOCK, MODES, SIDES, agreed, settled

BLOCKS = 6  # at most, where blocks disagree
WARM = 64  # rows of the call before the peak is taken: enough for the path of the measured call, whose code is then in memory


def call(run, x: Float[Tensor, "B N D"], mode: str) -> tuple[Tensor, Tensor | None]:
    """One pass of ``mode``: the output, and the gradient of x under a fixed gradient of the output."""
    if mode == "forward":
        with torch.no_grad():
            return run(x), None
    leaf = x.detach().requires_grad_()
    out = run(leaf)
    out.backward(x)
    return out.detach(), leaf.grad


def agreement(sides: Sides, x: Float[Tensor, "B N D"]) -> dict[str, dict[str, float]]:
    """Largest error of our output and of our gradient of x, beside the peer's largest number."""
    results = [call(run, x, "forward + backward") for run in (sides.ours, sides.peer)]
    return {name: {"error": float((ours - peer).abs().max()), "largest": float(peer.abs().max())}
            for name, ours, peer in zip(("output", "input_gradient"), *results)}


def in_turn(sides: Sides, x: Float[Tensor, "B N D"], mode: str, bar: float) -> dict[str, list[float]]:
    """Seconds of peer, ours, peer, ours, …, in blocks, until the blocks agree about the bar."""
    seconds = {side: [] for side in SIDES}
    while len(seconds["ours"]) < BLOCK * BLOCKS and not settled(seconds, bar):
        for _ in range(BLOCK):
            for side in ("peer", "ours"):
                for parameter in sides.parameters[side]:
                    parameter.grad = None
                started = time.perf_counter()
                call(getattr(sides, side), x, mode)
                seconds[side].append(time.perf_counter() - started)
    return seconds


def times(pair: Pair, length: int) -> dict:
    """Agreement and, if both sides compute the same, seconds of both modes."""
    sides, x = pair.build(length), torch.randn(BATCH, length, WIDTH)
    found = {"agreement": agreement(sides, x)}
    if agreed(found["agreement"]).holds:
        found["seconds"] = {mode: in_turn(sides, x, mode, bar) for mode, bar in zip(MODES, (pair.forward, pair.both))}
    return found


def peak(pair: Pair, length: int, mode: str, side: str) -> dict[str, int]:
    """Resident bytes at the highest point of one call, above those just before it. Imports, weights and libraries are there already."""
    run, warm = getattr(pair.build(length), side), getattr(pair.build(WARM), side)
    call(warm, torch.randn(BATCH, WARM, WIDTH), mode)
    x = torch.randn(BATCH, length, WIDTH)
    # What was freed must not hide what the call takes: give it back, then set the high-water mark to now.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call(run, x, mode)
    return {"bytes": resident("VmHWM") - before}


def resident(field: str) -> int:
    """A line of this process's memory account, in bytes."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def main() -> None:
    """Measure what the command line names."""
    name, length, what, *rest = sys.argv[1:]
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    print(json.dumps({"times": times, "peak": peak}[what](PAIRS[name], int(length), *rest)))


if __name__ == "__main__":
    main()
