"""Relation classes: which table row each pair of a call reads, and how many pairs give each row a gradient."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from positionlib.geometry import AttentionGeometry
from positionlib.rules import Clip
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars, Matrices, Matrix

KEYS = 8
CALLS = {"decoder": "causal, 8 rows", "encoder": "no mask, 8 rows", "step": "decode step, query at 7", "reset": "decode step, query counted from 0"}


def _geometry(call: str) -> AttentionGeometry:
    """The call as it is; a query counted from 0 still reads the whole cache, as a decode step does without a mask."""
    if call == "decoder":
        return AttentionGeometry.causal_self(KEYS)
    if call == "encoder":
        return AttentionGeometry.encoder(KEYS)
    return AttentionGeometry(torch.tensor([7 if call == "step" else 0]), torch.arange(KEYS))


@cache
def _run(call: str, k: int, sign: str) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """(class of every pair, visible pairs, visible pairs of each class)."""
    geometry = _geometry(call)
    classes, visible = Clip(k).classes(geometry.offsets(sign)), geometry.visible
    return classes.numpy(), visible.numpy(), torch.bincount(classes[visible], minlength=2 * k + 1).tolist()


def _named(rows: list[int]) -> str:
    return ", ".join(map(str, rows)) or "none"


def _compute(call, k, sign):
    classes, visible, counts = _run(call, k, sign)
    unread = [r for r, n in enumerate(counts) if not n]
    first = {"step": 7, "reset": 0}.get(call, 0)
    rows = [f"q{first + i}" for i in range(len(classes))]
    named = [f"{'≤ ' if o == -k else '≥ ' if o == k else ''}{o}".replace("-", "−") for o in range(-k, k + 1)]
    return [
        Badges([Badge("table rows", 2 * k + 1), Badge("pairs", int(visible.sum())), Badge("row of offset 0", k),
                Badge("rows that no pair reads", _named(unread), "warn" if unread else "ok")]),
        Matrices([Matrix("Table row of every pair", classes, 0, None, (), ~visible, rows, [f"k{j}" for j in range(KEYS)], "rows count from 0")]),
        Bars("Pairs that share a table row", tuple(named), np.array(counts, dtype=float), label="offset of the row, after clipping",
             value_label="visible pairs", decimals=0, alt=f"Pairs a row: {', '.join(map(str, counts))}."),
    ]


def _caption(call, k, sign):
    _, visible, counts = _run(call, k, sign)
    unread, most = [r for r, n in enumerate(counts) if not n], max(counts)
    border = counts[0] + counts[-1]
    text = f"The border rows 0 and {2 * k} take {border} of {int(visible.sum())} pairs. "
    text += f"No pair reads row{'s' if len(unread) > 1 else ''} {_named(unread)}" if unread else "Every row is read"
    if unread and call in ("decoder", "encoder"):
        text += f", so no gradient reaches {'them' if len(unread) > 1 else 'it'}"
    text += "."
    if call == "reset":
        past = "future" if sign == "key_minus_query" else "past"
        text += f" From position 0 all keys but the first look like the {past}."
    return text + f" The most used row collects {most} pairs."


def relation_classes(distances: tuple[int, ...] = (1, 2, 3, 7)) -> Explorer:
    """Which rows of a relation table receive a gradient? At rest: a causal layer of eight rows with k = 2, whose future rows get none."""
    return Explorer(
        name="relation-classes", title="Relation classes", question="Which rows of the table receive a gradient?",
        controls=[Control("call", "Call", tuple(CALLS), labels=list(CALLS.values())), Control("k", "Clip distance k", distances),
                  Control("sign", "Offset", ("key_minus_query", "query_minus_key"), labels=["key minus query", "query minus key"])],
        compute=_compute, caption=_caption, start={"call": "decoder", "k": 2, "sign": "key_minus_query"})
