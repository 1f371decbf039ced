"""Tile stepper: the softmax of one row of eight scores, read two keys at a time; what is kept, and what it is multiplied by."""

from __future__ import annotations

import math
from functools import cache

import torch

from positionlib.runtime.partial import Partial, finish, merge, partial
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix, Table

LN2, KEYS, SIZE = math.log(2), 8, 2
ROWS = {  # scores in units of ln 2, None where the mask hides the key
    "rising": (0, 0, 0, 0, 1, 1, 2, 2),
    "falling": (2, 2, 1, 1, 0, 0, 0, 0),
    "hidden": (None, None, 0, 0, 1, 2, 2, 2),
    "nothing": (None,) * 8,
}
ORDERS = ("first", "last")


@cache
def _parts(row: str, order: str) -> tuple[tuple[slice, Partial, Partial], ...]:
    """(keys, what the tile holds, what has been kept after it) of each tile in the order read. Value j is the unit vector j."""
    scores = torch.tensor([[LN2 * (s or 0) for s in ROWS[row]]], dtype=torch.float64)
    visible, values = torch.tensor([[s is not None for s in ROWS[row]]]), torch.eye(KEYS, dtype=torch.float64)
    starts, found, kept = range(0, KEYS, SIZE), [], None
    for start in starts if order == "first" else reversed(starts):
        j = slice(start, start + SIZE)
        part = partial(scores[:, j], visible[:, j], values[j])
        kept = part if kept is None else merge(kept, part)
        found.append((j, part, kept))
    return tuple(found)


def _units(m: float) -> str:
    return "−∞" if m == -math.inf else f"{m / LN2:.0f}"


def _factor(before: float, after: float) -> float:
    """exp(m − m'), 1 for the first tile and while nothing has been seen: there is nothing to shrink."""
    return 1.0 if before == -math.inf else math.exp(before - after)


def _history(row: str, order: str, read: int) -> list[list]:
    lines, before = [], -math.inf
    for j, part, kept in _parts(row, order)[:read]:
        m = float(kept.m)
        factor = "nothing kept yet" if before == -math.inf else f"{_factor(before, m):.4g}"
        lines.append([f"{j.start}, {j.stop - 1}", _units(float(part.m)), _units(m), factor, f"{float(kept.l):.4g}"])
        before = m
    return lines


def _compute(row, read, order):
    parts, scores = _parts(row, order), ROWS[row]
    shown = [s is not None for s in scores]
    seen = [False] * KEYS
    for j, _, _ in parts[:read]:
        seen[j] = [True] * SIZE
    before = parts[read - 2][2].o[0] if read > 1 else torch.zeros(KEYS).double()
    kept = parts[read - 1][2] if read else Partial(torch.tensor([[-math.inf]]).double(), torch.zeros(1, 1).double(), torch.zeros(1, KEYS).double())
    was = float(parts[read - 2][2].m) if read > 1 else -math.inf
    weights, whole = finish(kept)[0][0], finish(parts[-1][2])[0][0]
    now = [(0, j) for j in range(*parts[read - 1][0].indices(KEYS))] if read else []
    table = torch.stack([torch.tensor([float(s or 0) for s in scores], dtype=torch.float64), before, before * _factor(was, float(kept.m)), kept.o[0], weights])
    masked = torch.tensor([[not s for s in shown]] + [[not s for s in seen]] * 4)
    gap = float((weights - whole).abs().max())
    return [
        Badges([Badge("m, in ln 2", _units(float(kept.m))), Badge("l", f"{float(kept.l):.4g}"),
                Badge("factor on what was kept", f"{_factor(was, float(kept.m)):.4g}" if was > -math.inf else "none yet"),
                Badge("furthest from the final weight", f"{gap:.3f}", "ok" if gap < 1e-12 else "warn")]),
        Matrices([Matrix("The row, key by key", table.numpy(), 4, None, now, masked.numpy(),
                         ["score, in ln 2", "o before", "o × factor", "o after", "o / l"], [f"k{j}" for j in range(KEYS)], "marked: the tile just read")]),
        Table("Tile by tile", ["keys", "m of the tile", "m′", "exp(m − m′)", "l"], _history(row, order, read) or [["none yet", "", "−∞", "", "0"]]),
    ]


def _caption(row, read, order):
    parts, done = _parts(row, order), read == KEYS // SIZE
    if row == "nothing":
        return "The mask hides every key: m stays −∞, l stays 0, and the output is zeros. Subtracting −∞ from −∞ would have given NaN."
    if not read:
        return "Nothing has been read: m = −∞, l = 0, o = 0. Read the first tile."
    now, was = float(parts[read - 1][2].m), float(parts[read - 2][2].m) if read > 1 else -math.inf
    if now == -math.inf:
        text = "This tile is wholly hidden: nothing is kept, and m stays −∞."
    elif was == -math.inf:
        text = "The first visible scores set the maximum; there is nothing to shrink yet."
    elif now > was:
        text = f"The maximum grew from {_units(was)} to {_units(now)}: everything kept is multiplied by {_factor(was, now):.4g}."
    else:
        text = f"The maximum stays {_units(now)}: the factor is 1, and the new terms are just added."
    return text + (" All eight keys are read: o / l is the softmax of the whole row." if done else " o / l is the softmax of what has been read, not yet of the row.")


def tile_stepper() -> Explorer:
    """What happens to the old sums when a larger score arrives? At rest: the last tile of a rising row has just been read."""
    return Explorer(
        name="tile-stepper", title="Softmax, one tile at a time", question="What happens to the old sums when a larger score arrives?",
        controls=[Control("row", "Scores", tuple(ROWS), labels=["largest last", "largest first", "first tile hidden", "nothing visible"]),
                  Control("read", "Tiles read", tuple(range(KEYS // SIZE + 1))),
                  Control("order", "Start at", ORDERS, labels=["key 0", "key 7"])],
        compute=_compute, caption=_caption, start={"row": "rising", "read": 4, "order": "first"})
