"""Permutation proof: shuffle the rows of one small attention layer and see which matrices follow.

The case is the hand case of chapter 0x01, "dog bites man .", of :mod:`positionlib.permutation`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from positionlib.mechanisms.sinusoidal import sinusoidal_table
from positionlib.permutation import carry, hand_case, self_attention
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

WORDS = ("dog", "bites", "man", ".")
FEATURES = ("noun", "verb", "pet", "stop")
REGIMES = {"none": "no mask", "fixed": "triangle, fixed", "carried": "triangle, carried along", "positions": "no mask + positions"}


def grid(name: str, matrix: Tensor, rows: Sequence[str], columns: Sequence[str], decimals: int = 0) -> str:
    """A small matrix as aligned text: its name in the corner, row and column names around it."""
    cells = [[f"{value:.{decimals}f}" for value in line] for line in (matrix.double().round(decimals=decimals) + 0.0).tolist()]
    width = 2 + max(map(len, [*columns, *itertools.chain(*cells)]))
    first = max(map(len, [name, *rows]))
    table = [(name, columns), *zip(rows, cells)]
    return "\n".join(f"{head:<{first}}" + "".join(f"{text:>{width}}" for text in line) for head, line in table)


@cache
def _run(order: tuple[int, ...], regime: str) -> dict[str, Tensor]:
    """Everything one state shows, from the original rows and from the shuffled ones."""
    x, *weights = hand_case()
    index = torch.tensor(order)
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    before = triangle if regime in ("fixed", "carried") else torch.ones_like(triangle)
    after = carry(before, index) if regime == "carried" else before
    added = sinusoidal_table(4, 4, output_dtype=torch.float64) if regime == "positions" else torch.zeros_like(x)
    y, trace = self_attention(x + added, *weights, visible=before)
    y_new, trace_new = self_attention(x[index] + added, *weights, visible=after)
    return {"X'": x[index] + added, "mask": after, "S'": trace_new.scores[0, 0], "A'": trace_new.probabilities[0, 0], "Y'": y_new,
            "PY": y[index], "score gap": (trace_new.scores[0, 0] - carry(trace.scores[0, 0], index)).abs().max(),
            "weight gap": (trace_new.probabilities[0, 0] - carry(trace.probabilities[0, 0], index)).abs().max(),
            "gap": (y_new - y[index]).abs(), "mask kept": torch.equal(carry(before, index), after)}


def permutation_proof(orders: tuple[tuple[int, ...], ...] = tuple(itertools.permutations(range(4)))) -> Explorer:
    """Which matrices follow a shuffle of the rows, under four regimes of order.

    ``orders`` are the permutations offered, each as π(0), π(1), π(2), π(3): row i of PX is row π(i) of X.
    """

    def compute(order: tuple[int, ...], regime: str) -> list:
        run = _run(order, regime)
        words = tuple(WORDS[i] for i in order)
        dog, bites = words.index("dog"), words.index("bites")
        hidden = ~run["mask"].numpy()
        row = [(dog, c) for c in range(4)]
        moved = [tuple(cell) for cell in (run["gap"] > 5e-4).nonzero().tolist()]

        def pairs(name: str, decimals: int, shade: str) -> Matrix:
            return Matrix(name, run[name.split(" ")[0]].numpy(), decimals, shade, [(bites, dog)], hidden, words, words, "row reads column")

        def rows(title: str, values: Tensor, note: str, decimals: int = 3, shade: str | None = None, cells=row) -> Matrix:
            return Matrix(title, values.numpy(), decimals, shade, cells, None, words, FEATURES, note)

        positioned = regime == "positions"
        worst = float(run["gap"].max())
        return [
            Badges([Badge("max |Y′ − PY|", f"{worst:.3f}", "ok" if worst < 1e-9 else "warn"),
                    Badge("A′ = PAPᵀ", "yes" if run["weight gap"] < 1e-9 else "no", "ok" if run["weight gap"] < 1e-9 else "warn"),
                    Badge("mask is PMPᵀ", "yes" if run["mask kept"] else "no", "ok" if run["mask kept"] else "warn")]),
            Matrices([rows("PX + E" if positioned else "PX", run["X'"], "what enters", 2 if positioned else 0),
                      pairs("S' (scores)", 2, "diverging")], "Shuffle the rows"),
            Matrices([pairs("A' (weights)", 3, "sequential"), rows("Y'", run["Y'"], "attend after the shuffle")], "Then attend"),
            Matrices([rows("PY", run["PY"], "shuffle after attending"),
                      rows("|Y' − PY|", run["gap"], "marked where they differ", 3, "sequential", moved)], "And the other way round"),
        ]

    def caption(order: tuple[int, ...], regime: str) -> str:
        run = _run(order, regime)
        if order == (0, 1, 2, 3):
            return "No row has moved, so nothing can differ. Choose another order."
        others = int((run["gap"].max(1).values > 5e-4).sum())
        amount = f"{float(run['gap'].max()):.3f}"
        return {
            "none": "Marked: the pair “bites reads dog” and the row of dog. Each score and weight went where its pair went, each output row "
                    "where its word went: Y′ = PY, and the difference is zero. Now choose the fixed triangle.",
            "fixed": f"The triangle stayed on the row indices while the words moved: {others} of 4 words now get another output, and Y′ misses "
                     f"PY by up to {amount}. The proof does not cover this mask. Now carry the triangle along.",
            "carried": "The triangle moved with the words, M′ = PMPᵀ: each word reads the same words as before, so Y′ = PY again. A language "
                       "model does not do this: its triangle stays with the indices.",
            "positions": f"No mask, but row i receives the sinusoidal row i, whichever word stands there. Y′ misses PY by up to {amount}: "
                         "the numbers that enter are no longer the old rows in another order.",
        }[regime]

    return Explorer(
        name="permutation-proof", title="Permutation proof", question="Shuffle the rows: does every matrix follow, and what stops it?",
        controls=[Control("order", "Order π", orders, ["".join(map(str, o)) + ": " + " ".join(WORDS[i] for i in o) for o in orders], "choice"),
                  Control("regime", "Order signal", tuple(REGIMES), tuple(REGIMES.values()))],
        compute=compute, start={"order": (2, 1, 0, 3) if (2, 1, 0, 3) in orders else orders[-1], "regime": "none"}, caption=caption)
