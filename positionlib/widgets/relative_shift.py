"""Relative-shift stepper: one pad, one reshape, one dropped row; which distance does each key read in the end?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

KEYS = 4
R = (4.0, 3.0, 2.0, 1.0)  # r of distance 0, 1, 2, 3, as in the chapter's case by hand
STEPS = ("compact", "pad", "reshape", "drop")
SIDES = {"front": "in front (released)", "behind": "behind (wrong)"}
PAD, V = -1, 1.0


def compact(memory: int) -> tuple[Tensor, Tensor]:
    """((q + v)·r, its distances), [L, 4] each, for queries 1, 2, 3, … of width 1: columns run from distance 3 down to 0."""
    queries = KEYS - memory
    distances = torch.arange(KEYS - 1, -1, -1).expand(queries, KEYS)
    return (torch.arange(1.0, queries + 1) + V)[:, None] * torch.tensor(R)[distances], distances


def step(x: Tensor, side: str, name: str, fill: float) -> Tensor:
    """One matrix of queries by distances after a step of the shift."""
    queries, keys = x.shape
    padded = nn.functional.pad(x, (1, 0) if side == "front" else (0, 1), value=fill)
    tall = padded.reshape(keys + 1, queries)
    return {"compact": x, "pad": padded, "reshape": tall, "drop": tall[1:].reshape(queries, keys)}[name]


def _state(memory: int, side: str, name: str) -> tuple[Tensor, Tensor, list[tuple[int, int]], Tensor | None]:
    """Numbers, distances they belong to, cells that are wrong for their key, and the cells a mask must hide (after the last step)."""
    values, distances = compact(memory)
    number, distance = step(values, side, name, 0.0), step(distances, side, name, PAD)
    if name != "drop":
        return number, distance, [], None
    wanted = torch.arange(memory, KEYS)[:, None] - torch.arange(KEYS)
    wrong = ((wanted >= 0) & (distance != wanted)).nonzero().tolist()
    return number, distance, [tuple(cell) for cell in wrong], wanted < 0


def _compute(memory: int, side: str, name: str) -> list:
    number, distance, wrong, hidden = _state(memory, side, name)
    final = name == "drop"
    labels = {} if name == "reshape" else {"row_labels": [f"t{t}" for t in range(memory, KEYS)]}
    if final:
        labels["column_labels"] = [f"t{t}" for t in range(KEYS)]
    text = [["pad" if d == PAD else str(d) for d in row] for row in distance.tolist()]
    note = "queries by keys" if final else "read row by row" if name == "reshape" else "queries by distances"
    return [
        Badges([Badge("step", f"{STEPS.index(name)} of 3"), Badge("past keys with a wrong distance", len(wrong) if final else "not aligned yet", ("bad" if wrong else "ok") if final else "plain"),
                Badge("later keys to be masked", int(hidden.sum()) if final else "not aligned yet")]),
        Matrices([Matrix("number", number, 0, "sequential", wrong, masked=None, note=note, **labels),
                  Matrix("its distance", text, highlight=wrong, masked=None, note="pad: the zero column", **labels)]),
    ]


def _caption(memory: int, side: str, name: str) -> str:
    queries = KEYS - memory
    if name == "compact":
        return f"{queries} {'query' if queries == 1 else 'queries'} behind a memory of {memory}: column c holds distance {KEYS - 1} − c in every row. No column is a key yet; zeros go {'in front' if side == 'front' else 'behind'} next."
    if name == "pad":
        return f"A column of zeros {'in front of' if side == 'front' else 'behind'} the distances. Nothing has moved."
    if name == "reshape":
        return f"The same {queries * (KEYS + 1)} numbers in the same order, each query's zero {'before' if side == 'front' else 'after'} its own, cut into rows of {queries}. The first row goes next."
    _, _, wrong, hidden = _state(memory, side, name)
    later = int(hidden.sum())
    rest = f" {later} later {'key holds' if later == 1 else 'keys hold'} a pad or another query's number: the mask's work." if later else " No key comes later."
    if side == "front":
        return "Each past key reads its own distance, the query itself 0." + rest
    return f"{len(wrong)} of {len(wrong) + _right(memory, side)} past keys read a wrong distance: each takes its neighbour's, one too small, or the pad." + rest


def _right(memory: int, side: str) -> int:
    _, distance, wrong, hidden = _state(memory, side, "drop")
    return int((~hidden).sum()) - len(wrong)


def relative_shift_stepper(memories=(0, 1, 2, 3)) -> Explorer:
    """What does the shift leave at each key? At rest: the finished shift behind a memory of 1."""
    return Explorer(
        name="relative-shift", title="The relative shift, step by step", question="Which distance does each key read in the end?",
        controls=[Control("name", "Step", list(STEPS), labels=["0: by distance", "1: pad", "2: reshape", "3: drop a row"]),
                  Control("side", "Zero column", list(SIDES), labels=list(SIDES.values())),
                  Control("memory", "Memory rows", list(memories))],
        compute=lambda name, side, memory: _compute(memory, side, name), caption=lambda name, side, memory: _caption(memory, side, name),
        start={"name": "drop", "side": "front", "memory": 1 if 1 in memories else memories[0]})
