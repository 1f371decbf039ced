"""From seconds and bytes to the cells of the GPU's table: ratios, bars, shares of the floor, and what a receipt must hold.

The bars hold on an H200 in bf16 at N = 8192, H = 16, D = 128; at other lengths, widths and devices the same numbers are told without a verdict.

    against SDPA's flash backend without a bias   at most ``Mechanism.bars``        forward, backward
    against FlexAttention                         at least 1.1 times as fast        both passes, where it can express the mechanism
    row kernels                                   at least 80 % of the measured bandwidth of a copy
    memory beyond inputs and outputs              O(N): at most 2.5 times as much for twice the length
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from positionlib.errors import require

FLEX, BANDWIDTH, DOUBLING = 1.1, 0.8, 2.5
AT, DEVICE = {"length": 8192, "width": 128}, "H200"
PASSES = ("forward", "backward")
FIELDS = ("date", "device", "versions")


def verdict(value: float | None, bar: float | None, most: bool) -> str:
    """``pass`` or ``FAIL`` where there are a value and a bar; ``most`` says that the bar is an upper bound."""
    if value is None or bar is None:
        return ""
    return "pass" if (value <= bar if most else value >= bar) else "FAIL"


def cells(row: Mapping[str, Any], bars: tuple[float, float] | None, floor: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """What one measured row says of each pass: medians, ratios, share of the floor, and the two verdicts where this is the row that has bars.

    ``row`` holds ``seconds``: {"ours forward": […], "flash backward": […], …}, and ``judged``: whether it is the bars' own call on their
    device. ``floor`` has the least seconds of each pass on this machine.
    """
    found = {}
    for at, name in enumerate(PASSES):
        took = {who.rpartition(" ")[0]: median(times) for who, times in row["seconds"].items() if who.endswith(f" {name}") and times}
        if "ours" not in took:
            continue
        ratios = {who: took["ours"] / seconds for who, seconds in took.items() if who != "ours"}
        found[name] = {
            "median": took["ours"], "ratios": ratios, "share of floor": floor[name] / took["ours"],
            "bar": verdict(ratios.get("flash"), bars[at] if bars and row["judged"] else None, most=True),
            "flex bar": verdict(1 / ratios["flex"] if "flex" in ratios else None, FLEX if row["judged"] else None, most=False),
        }
    return found


def memory_verdicts(extra: Mapping[int, int]) -> dict[int, str]:
    """For every length whose half was measured too, whether the bytes beyond inputs and outputs grew as the length."""
    return {n: verdict(extra[n] / max(extra[n // 2], 1), DOUBLING, most=True) for n in sorted(extra) if n // 2 in extra}


def check_gpu_receipt(receipt: Mapping[str, Any], mechanisms: Mapping[str, Any]) -> None:
    """Refuse a receipt that lacks a field, times nothing, or states a cell that its own numbers do not give.

    Raises
    ------
    PositionContractError
        ``field`` names the place.
    """
    for name in FIELDS:
        require(name in receipt, "receipt", sorted(receipt), f"the field {name}", "Let the benchmark write it.")
    require("correct" in receipt or "time" in receipt, "receipt", sorted(receipt), "a part: correct or time", "Let the benchmark write it.")
    for at, row in enumerate(receipt.get("time", {}).get("attention", [])):
        where = f"time.attention[{at}]"
        require(row["mechanism"] in mechanisms, f"{where}.mechanism", row["mechanism"], f"one of {', '.join(mechanisms)}", "Measure it again.")
        times = [t for taken in row["seconds"].values() for t in taken]
        require(times and min(times) > 0, f"{where}.seconds", times, "seconds above 0", "Measure it again.")
        told = cells(row, mechanisms[row["mechanism"]].bars, row["floor"])
        require(row["cells"] == told, f"{where}.cells", row["cells"], f"{told}, by its own numbers", "A verdict is computed, not written.")
