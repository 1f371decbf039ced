"""NoPE depth: two orders of the same numbers through layers that only average; from which depth on does the last row differ?"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np

from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Matrices, Matrix, Series

TEXTS = {"8 0": (8, 0), "8 0 4 4": (8, 0, 4, 4), "1 8 0 4": (1, 8, 0, 4)}
SWAPS = {"8 0": (0, 8), "8 0 4 4": (0, 8, 4, 4), "1 8 0 4": (1, 0, 8, 4)}
MASKS = {"causal": "causal mask", "none": "no mask"}
DEPTHS = (0, 1, 2, 3, 4)


@cache
def layers(rows: tuple[int, ...], depth: int, mask: str) -> tuple[tuple[Fraction, ...], ...]:
    """Rows before the first layer and after each of ``depth`` layers; a layer gives each row the mean of the rows it may read."""
    states = [tuple(map(Fraction, rows))]
    for _ in range(depth):
        x = states[-1]
        states.append(tuple(Fraction(sum(x[: i + 1]), i + 1) if mask == "causal" else Fraction(sum(x), len(x)) for i in range(len(x))))
    return tuple(states)


def _gap(text: str, depth: int, mask: str) -> list[Fraction]:
    """Difference of the last rows of the two orders, after each depth."""
    return [a[-1] - b[-1] for a, b in zip(layers(TEXTS[text], depth, mask), layers(SWAPS[text], depth, mask))]


def _compute(text: str, depth: int, mask: str) -> list:
    first, second = layers(TEXTS[text], depth, mask)[-1], layers(SWAPS[text], depth, mask)[-1]
    differ = [i for i, (a, b) in enumerate(zip(first, second)) if a != b]
    gaps = _gap(text, DEPTHS[-1], mask)
    labels = [f"row {i}" for i in range(len(first))]
    last = len(first) - 1
    return [
        Badges([Badge("rows that differ", ", ".join(map(str, differ)) or "none"), Badge("last row tells the orders apart", last in differ, "ok" if last in differ else "warn")]),
        Matrices([Matrix(name, [[float(v)] for v in values], 3, "sequential", [(i, 0) for i in differ], row_labels=labels)
                  for name, values in ((" ".join(map(str, TEXTS[text])), first), (" ".join(map(str, SWAPS[text])), second))]),
        Lines("Difference of the last rows", np.array(DEPTHS), [Series("first order minus second", [float(g) for g in gaps], kind="points")], x_label="layers", y_label="difference",
              decimals=3, limits=(-8, 8), alt=f"Difference of the last rows after 0 to 4 layers: {', '.join(f'{float(g):.2f}' for g in gaps)}."),
    ]


def _caption(text: str, depth: int, mask: str) -> str:
    first, second = layers(TEXTS[text], depth, mask)[-1], layers(SWAPS[text], depth, mask)[-1]
    differ = [i for i, (a, b) in enumerate(zip(first, second)) if a != b]
    count = f"After {depth} {'layer' if depth == 1 else 'layers'}"
    if depth == 0:
        return f"Before any layer the swapped rows differ, {differ[0]} and {differ[1]}. The question is what later rows can tell."
    if mask == "none":
        return f"{count} with no mask: every row is the mean of all rows, {float(first[0]):g} in both orders. Order is gone, at any depth."
    gap = first[-1] - second[-1]
    if gap == 0:
        return f"{count}: the last row is {float(first[-1]):g} in both orders, a mean of the same numbers; only row {', '.join(map(str, differ))} differs. Add a layer."
    return f"{count}: the last row is {float(first[-1]):.3f} or {float(second[-1]):.3f}. It now averages rows that had read different prefixes."


def nope_depth(texts=tuple(TEXTS), depths=DEPTHS) -> Explorer:
    """From which depth on does the last row know the order? At rest: [8, 0] and [0, 8] after two layers."""
    return Explorer(
        name="nope-depth", title="No positions, only a mask", question="From which depth on does the last row know the order?",
        controls=[Control("depth", "Layers", list(depths)), Control("mask", "Mask", list(MASKS), labels=list(MASKS.values())),
                  Control("text", "Rows", list(texts), labels=[f"{t} or {' '.join(map(str, SWAPS[t]))}" for t in texts])],
        compute=lambda depth, mask, text: _compute(text, depth, mask), caption=lambda depth, mask, text: _caption(text, depth, mask),
        start={"depth": 2, "mask": "causal", "text": texts[0]})
