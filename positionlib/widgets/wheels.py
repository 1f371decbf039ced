"""An odometer beside a set of hands: what one step moves, and which rows each code places nearer than the next position.

Contract: digits are :func:`positionlib.mechanisms.naive.binary_rows`; hands are :func:`positionlib.mechanisms.sinusoidal.sinusoidal_rows` of width
2m in float64, interleaved, with base 2^m (each hand half as fast as the one before) or 10,000. Distances are Euclidean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from positionlib.mechanisms.naive import binary_rows
from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Mark, Matrices, Matrix, Series

BASES = {"2^m": "2^m: half as fast each", "10,000": "10,000"}


def odometer(position: Sequence[int] = tuple(range(15)), digits: Sequence[int] = (4, 5, 6), base: Sequence[str] = tuple(BASES)) -> Explorer:
    """The explorer of chapter 0x03A. At rest: the step 7 → 8 of four digits, which flips them all.

    Raises
    ------
    PositionContractError
        a list with one value, or a position whose next one needs more digits.
    """
    start = {"position": 7 if 7 in position else position[0]}
    return Explorer(
        name="odometer", title="Odometer and hands", question="Which rows does each code place nearer to t than the next position?",
        controls=[Control("position", "Position t", list(position)), Control("digits", "Digits, and hands, m", list(digits)),
                  Control("base", "Base of the hands", list(base), labels=[BASES.get(b, b) for b in base])],
        compute=_panels, caption=_caption, start=start)


@cache
def _rows(digits: int, base: str) -> tuple[np.ndarray, np.ndarray]:
    """All 2^m rows of digits and of hands."""
    t = torch.arange(2**digits)
    hands = sinusoidal_rows(t, 2 * digits, base=2.0**digits if base == "2^m" else 10_000.0, output_dtype=torch.float64)
    return binary_rows(t, digits, output_dtype=torch.float64).numpy(), hands.numpy()


def _from(rows: np.ndarray, t: int) -> tuple[np.ndarray, int]:
    """Distances from row t, and how many rows other than t are nearer than row t + 1."""
    distance = np.linalg.norm(rows - rows[t], axis=1)
    return distance, int((np.delete(distance, t) < distance[t + 1] - 1e-9).sum())


def _panels(position, digits, base):
    binary, hands = _rows(digits, base)
    (by_digit, near_digit), (by_hand, near_hand) = _from(binary, position), _from(hands, position)
    pair = [position, position + 1]
    flipped = np.flatnonzero(binary[pair[0]] != binary[pair[1]])
    return [
        Badges([Badge("digits flipped", f"{len(flipped)} of {digits}"),
                Badge("rows nearer than t + 1, by digits", near_digit, "bad" if near_digit else "ok"),
                Badge("rows nearer than t + 1, by hands", near_hand, "bad" if near_hand else "ok")]),
        Matrices([
            Matrix("digits", binary[pair], decimals=0, highlight=[(1, c) for c in flipped], row_labels=pair, column_labels=[f"{2**k}s" for k in reversed(range(digits))]),
            Matrix("hands: sine, then cosine of each", hands[pair], decimals=2, shade="diverging", row_labels=pair,
                   column_labels=[f"{'sc'[c % 2]}{c // 2}" for c in range(2 * digits)])], title="Row t and the next one"),
        Lines("Distance from row t", np.arange(2**digits), [Series("digits", by_digit, kind="step"), Series("hands", by_hand)], x_label="position",
              y_label="distance", decimals=2, limits=(0.0, 5.0), marks=(Mark(float(position), f"t = {position}"),),
              alt=f"Distances from row {position}. Row {position + 1} is at {by_digit[position + 1]:.2f} by digits and {by_hand[position + 1]:.2f} by hands; "
                  f"{near_digit} rows are nearer by digits, {near_hand} by hands."),
    ]


def _caption(position, digits, base):
    binary, hands = _rows(digits, base)
    (by_digit, near_digit), (by_hand, near_hand) = _from(binary, position), _from(hands, position)
    flipped = int((binary[position] != binary[position + 1]).sum())
    return (f"{position} → {position + 1} flips {flipped} of {digits} digits, a step of {by_digit[position + 1]:.2f}: {_count(near_digit)} nearer to {position} "
            f"than {position + 1} is. The hands step by {by_hand[position + 1]:.2f}, as everywhere: {_count(near_hand)} nearer.")


def _count(rows: int) -> str:
    return {0: "no row is", 1: "1 row is"}.get(rows, f"{rows} rows are")
