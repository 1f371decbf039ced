"""Rotation dial: turn a query and a key by their own positions; what is left in the score?

    s(i, j) = (R_i q) · (R_j k) = q · R_(j−i) k      hand case: pair 0 turns by a quarter, pair 1 by a half turn a position

Contract: rows are turned by :class:`positionlib.rotation.QKTransform`; the offset is key minus query; scores are not scaled.
"""

from __future__ import annotations

from functools import cache

import torch

from positionlib.rotation import hand_case
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Matrices, Matrix, Series

SPAN = 8
SIDES = {"both": "query and key", "query": "the query alone", "halves": "both, half split"}


def rotation_dial(positions=(0, 1, 2, 3)) -> Explorer:
    """Does the score change when both positions grow together? At rest both rows turn, and it does not."""
    start = {"i": positions[-1], "j": positions[1], "sides": "both"}
    return Explorer(
        name="rotation-dial", title="Two rows, two turns", question="Does the score change when both positions grow together?",
        controls=[Control("i", "Query at i", positions), Control("j", "Key at j", positions),
                  Control("sides", "What turns", list(SIDES), labels=list(SIDES.values()))],
        compute=_panels, caption=_caption, start=start)


@cache
def _rows(i: int, j: int, sides: str) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, term = hand_case("half_split" if sides == "halves" else "interleaved")
    turned = [term.rotate(row[None, None, None], torch.tensor([t]))[0, 0, 0] for row, t in ((q, i), (k, j))]
    return turned[0], k if sides == "query" else turned[1]


def _score(i: int, j: int, sides: str) -> int:
    q, k = _rows(i, j, sides)
    return round(float(q @ k))


def _panels(i, j, sides):
    q, k = _rows(i, j, sides)
    scores = [_score(i + c, j + c, sides) for c in range(SPAN + 1)]
    meant, stays = _score(i, j, "both"), len(set(scores)) == 1
    channels = tuple(f"channel {c}" for c in range(4))
    return [
        Matrices([Matrix(f"query at {i}", q[:, None], decimals=0, row_labels=channels),
                  Matrix(f"key at {j}", k[:, None], decimals=0, row_labels=channels)]),
        Badges([Badge("score", scores[0]), Badge("trained score", meant, "ok" if meant == scores[0] else "bad"),
                Badge("stays when both grow", "yes" if stays else "no", "ok" if stays else "bad")]),
        Lines("The score while both positions grow", list(range(SPAN + 1)), [Series("score of (i + c, j + c)", scores, kind="points")],
              x_label="c (positions)", y_label="score", decimals=0, limits=(-4.0, 4.0),
              alt=f"Scores of ({i} + c, {j} + c) for c = 0 to {SPAN}: " + (f"always {scores[0]}." if stays else f"between {min(scores)} and {max(scores)}.")),
    ]


def _caption(i, j, sides):
    scores = [_score(i + c, j + c, sides) for c in range(SPAN + 1)]
    meant = _score(i, j, "both")
    offset = f"{j - i:+d}".replace("-", "−") if j != i else "0"
    if sides == "query":
        moves = f"it takes the values {', '.join(str(s).replace('-', '−') for s in sorted(set(scores)))} as both grow: the query's own position shows"
    else:
        moves = f"it is the same for every pair with key minus query = {offset}"
    agrees = "as trained" if scores[0] == meant else f"trained: {meant}".replace("-", "−")
    return f"The score is {scores[0]} ({agrees}); ".replace("-", "−") + moves + "."
