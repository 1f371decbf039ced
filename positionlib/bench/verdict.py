"""From measured numbers to verdicts: speed-ups, shares of memory, agreement, and what a receipt must hold.

A speed-up is the quotient of the two minima: noise only adds time. The rounds are taken in blocks, and a verdict is settled when each
block alone gives it; until then more blocks are measured (:func:`settled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from positionlib.errors import require

BLOCK = 5  # rounds of A B
AGREEMENT = 1e-4  # largest error of an output or of its input's gradient, against the peer's largest number
MODES = ("forward", "forward + backward")
SIDES = ("ours", "peer")


@dataclass(frozen=True)
class Verdict:
    """One cell of the table: what was measured, against which bar, and whether it holds."""

    what: str
    value: float
    bar: float
    holds: bool
    settled: bool = True

    def __str__(self) -> str:
        if self.what == "agreement":
            value, bar = f"{self.value:.1e}", f"≤ {self.bar:.0e}"
        elif self.what == "peak memory":
            value, bar = f"1/{1 / self.value:.1f}" if self.value else "0", f"≤ 1/{1 / self.bar:g}"
        else:
            value, bar = f"{self.value:.2f}×", f"≥ {self.bar:g}×"
        return f"{value:>9}  bar {bar:8} {'pass' if self.holds else 'FAIL'}{'' if self.settled else ' (blocks disagree)'}"


def speedup(seconds: Mapping[str, Sequence[float]]) -> float:
    """How many times faster ours is: the peer's minimum over our minimum."""
    return min(seconds["peer"]) / min(seconds["ours"])


def medians(seconds: Mapping[str, Sequence[float]]) -> float:
    """The same quotient of medians, which is printed beside it."""
    return median(seconds["peer"]) / median(seconds["ours"])


def blocks(seconds: Mapping[str, Sequence[float]]) -> list[dict[str, Sequence[float]]]:
    """The rounds in the blocks in which they were measured."""
    return [{side: seconds[side][at : at + BLOCK] for side in SIDES} for at in range(0, len(seconds["ours"]), BLOCK)]


def settled(seconds: Mapping[str, Sequence[float]], bar: float) -> bool:
    """Whether at least two blocks were measured and each alone puts the speed-up on the same side of the bar."""
    return len(seconds["ours"]) >= 2 * BLOCK and len({speedup(block) >= bar for block in blocks(seconds)}) == 1


def agreed(agreement: Mapping[str, Mapping[str, float]]) -> Verdict:
    """The cell that comes first, since a faster module that computes something else is no faster."""
    worst = max(part["error"] / part["largest"] for part in agreement.values())
    return Verdict("agreement", worst, AGREEMENT, worst <= AGREEMENT)


def verdicts(measured: Mapping) -> list[Verdict]:
    """The cells of one pair, as a receipt holds it. Without agreement nothing was timed, and it is the only verdict."""
    found = [agreed(measured["agreement"])]
    if not found[0].holds:
        return found
    for mode in MODES:
        seconds, bar = measured["seconds"][mode], measured["bars"][mode]
        found.append(Verdict(mode, speedup(seconds), bar, speedup(seconds) >= bar, settled(seconds, bar)))
    peak, bar = measured["peak_bytes"]["forward"], measured["bars"]["peak memory"]
    share = peak["ours"] / peak["peer"]
    return [*found, Verdict("peak memory", share, bar, share <= bar)]


def check_receipt(receipt: Mapping) -> None:
    """Refuse a receipt that lacks a field, times no round, or states a verdict that its own numbers do not give."""
    for name in ("date", "device", "versions", "call", "pairs"):
        require(name in receipt, "receipt", sorted(receipt), f"the field {name}", "Let the benchmark write it.")
    for at, pair in enumerate(receipt["pairs"]):
        where = f"pairs[{at}]"
        for name in ("name", "mechanism", "peer", "transformers", "bars", "agreement", "verdicts"):
            require(name in pair, where, sorted(pair), f"the field {name}", "Let the benchmark write it.")
        numbers = [part["largest"] for part in pair["agreement"].values()]
        for name in ("seconds", "peak_bytes") if min(numbers) > 0 and agreed(pair["agreement"]).holds else ():
            require(name in pair, where, sorted(pair), f"the field {name}", "Both sides agree, so both are measured.")
        numbers += [n for times in pair.get("seconds", {}).values() for side in SIDES for n in times[side] or [0]]
        numbers += [peak["peer"] for peak in pair.get("peak_bytes", {}).values()]
        require(all(n > 0 for n in numbers), where, min(numbers), "measured numbers above 0", "Measure the pair again.")
        told = [vars(verdict) for verdict in verdicts(pair)]
        require(pair["verdicts"] == told, f"{where}.verdicts", pair["verdicts"], f"{told}, by its own numbers", "A verdict is computed, not written.")
