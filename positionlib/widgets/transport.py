"""Transport: the rows of a page move, and one field may stay behind. Which words keep what they carry?

Contract: rows move by :func:`positionlib.transport.transport`; a field that stays behind is cut, padded or joined to the same shape in its
old order; what a word carries is compared with the right move by :func:`positionlib.check.records.aligned`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from positionlib.check.records import aligned
from positionlib.transport import Field, Move, transport
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix, Table

WORDS = {1: "42", 2: "Items", 3: "Total", 4: "7", 5: "Thank", 6: "you"}
LABELS = {0: "key", 1: "number", 2: "greeting", -100: "ignored"}
MOVES = {"sort": "sort into reading order", "pad": "one pad in front", "drop": "drop Items", "chunk": "the second half", "join": "join a footer in front"}
STALE = {"none": "nothing", "bbox": "boxes", "label": "labels", "left_of": "the pair matrix"}
SAID = {"sort": "The words are sorted into reading order", "pad": "A pad stands in front of the words", "drop": "Items is dropped",
        "chunk": "Only the second half of the words is kept", "join": "The footer's words are joined in front"}


def row_transport(move: Sequence[str] = tuple(MOVES), stale: Sequence[str] = tuple(STALE)) -> Explorer:
    """The explorer of chapter 0x09. Every argument lists at least two values.

    Raises
    ------
    PositionContractError
        a list with one value.
    """
    controls = [Control("move", "Move", move, labels=[MOVES.get(name, name) for name in move], kind="choice"),
                Control("stale", "What stays behind", stale, labels=[STALE.get(name, name) for name in stale], kind="choice")]
    return Explorer(name="row-transport", title="Rows and what belongs to them", question="Which words still carry their own box, label and neighbours?",
                    controls=controls, compute=_panels, caption=_caption, start={"stale": "bbox"} if "bbox" in stale else {})


def _page(names: list[int], cells: list[list[int]], labels: list[int], left: list[list[int]]) -> dict[str, Field]:
    """Words by name; a cell is (line, column); left[i][j] = 1 where word i stands left of word j."""
    return {"unit": Field(torch.tensor(names), "N", pad=0), "bbox": Field(torch.tensor(cells), "N line_column", pad=-1),
            "label": Field(torch.tensor(labels), "N", pad=-100), "left_of": Field(torch.tensor(left) == 1, "N N", pad=False)}


PAGE = _page([1, 2, 3, 4], [[1, 1], [0, 0], [1, 0], [0, 1]], [1, 0, 0, 1], [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
FOOTER = _page([5, 6], [[2, 0], [2, 1]], [2, 2], [[0, 1], [0, 0]])


def _rows(move: str, stale: str) -> dict[str, Field]:
    """The page after the move; the field that stays behind is brought to the same shape in its old order."""
    if move == "join":
        moved, behind = transport(FOOTER, PAGE), transport(PAGE, FOOTER)
    else:
        keep = Move.keep(torch.tensor([True, False, True, True]))
        way, old = {"sort": (Move.permute(torch.tensor([1, 3, 2, 0])), Move.permute(torch.arange(4))), "pad": (Move.pad(4, before=1), Move.pad(4, after=1)),
                    "drop": (keep, Move.chunks(4, 3)[0]), "chunk": tuple(Move.chunks(4, 2)[::-1])}[move]
        moved, behind = (transport(PAGE, move=m) for m in (way, old))
    return {**moved, **({stale: behind[stale]} if stale != "none" else {})}


def _view(move: str, stale: str):
    rows = _rows(move, stale)
    fits = aligned(_rows(move, "none"), rows, "unit")
    return rows, rows["unit"].values.tolist(), fits


def _panels(move: str, stale: str):
    rows, names, fits = _view(move, stale)
    cells, labels, left = (rows[name].values.tolist() for name in ("bbox", "label", "left_of"))
    table, grid = [], [["", ""] for _ in range(3 if move == "join" else 2)]
    for n, name in enumerate(names):
        line, column = cells[n]
        if name and line >= 0:
            grid[line][column] = f"{grid[line][column]} {WORDS[name]}".strip()
        beside = ", ".join(WORDS.get(names[m], "pad") for m, linked in enumerate(left[n]) if linked)
        table.append([n, WORDS.get(name, "pad"), f"{line}, {column}" if line >= 0 else "no box", LABELS[labels[n]], beside or "–",
                      ("kept" if fits[name] else "changed") if name else "–"])
    kept = sum(fits.values())
    answer = _right_of_total(names, cells)
    return [Matrices([Matrix("The page, as words and boxes say it", grid, row_labels=[f"line {i}" for i in range(len(grid))], column_labels=["col 0", "col 1"])]),
            Table("Rows after the move", ["row", "word", "line, col", "label", "left of", "record"], table, highlight=[n for n, row in enumerate(table) if row[-1] == "changed"]),
            Badges([Badge("words that keep their record", f"{kept} of {len(fits)}", "ok" if kept == len(fits) else "bad"),
                    Badge("right of Total, by the boxes", answer, "ok" if answer == _right_of_total(*_true(move)) else "bad")])]


def _true(move: str) -> tuple[list[int], list[list[int]]]:
    rows = _rows(move, "none")
    return rows["unit"].values.tolist(), rows["bbox"].values.tolist()


def _right_of_total(names: list[int], cells: list[list[int]]) -> str:
    if 3 not in names or cells[names.index(3)][0] < 0:
        return "nothing"
    line, column = cells[names.index(3)]
    return ", ".join(WORDS[name] for name, cell in zip(names, cells) if name and cell == [line, column + 1]) or "nothing"


def _caption(move: str, stale: str) -> str:
    rows, names, fits = _view(move, stale)
    kept, answer = sum(fits.values()), _right_of_total(names, rows["bbox"].values.tolist())
    if stale == "none":
        return f"{SAID[move]}, and every field with them: all {len(fits)} words keep what they carry, and {answer} stands right of Total." if answer != "nothing" else \
            f"{SAID[move]}, and every field with them: all {len(fits)} words keep what they carry."
    said = f"{SAID[move]}; {STALE[stale]} {'stays' if stale == 'left_of' else 'stay'} in the old order, in the right shape. {kept} of {len(fits)} words keep what they carry."
    if kept == len(fits):
        return f"{said} That is luck: a test on this move alone would pass."
    return f"{said} By the boxes, {answer} stands right of Total." if stale == "bbox" else said
