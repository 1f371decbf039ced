"""Grid traversal: the same patches numbered along rows or down columns; which coordinates does each one get?"""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.mechanisms.grid import Grid
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

SIZES = ((2, 2), (2, 3), (3, 3), (2, 5), (1, 6))
ORDERS = {"row_major": "along rows", "column_major": "down columns"}


def cells(size: tuple[int, int], traversal: str) -> Tensor:
    """[R, C]: the number of the token that this traversal puts into each cell."""
    grid = Grid({"row": size[0], "col": size[1]}, traversal)
    row, col = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    return grid.positions({"row": row, "col": col})


def _wrong(size: tuple[int, int], content: str, coordinates: str) -> list[tuple[int, int]]:
    """Cells whose patch is given another cell's coordinates."""
    return [tuple(cell) for cell in (cells(size, content) != cells(size, coordinates)).nonzero().tolist()]


def _compute(size: tuple[int, int], content: str, coordinates: str) -> list:
    given = Grid({"row": size[0], "col": size[1]}, coordinates).coordinates(cells(size, content))
    wrong = _wrong(size, content, coordinates)
    labels = {"row_labels": [f"r{r}" for r in range(size[0])], "column_labels": [f"c{c}" for c in range(size[1])]}
    text = [[f"r{r} c{c}" for r, c in zip(*line)] for line in zip(given["row"].tolist(), given["col"].tolist())]
    return [
        Badges([Badge("patches with another cell's coordinates", f"{len(wrong)} of {size[0] * size[1]}", "bad" if wrong else "ok"), Badge("tokens", size[0] * size[1])]),
        Matrices([Matrix("patch stored as token", cells(size, content), 0, note="the image", **labels),
                  Matrix("coordinates it is given", text, highlight=wrong, note="marked: not its own", **labels)]),
    ]


def _caption(size: tuple[int, int], content: str, coordinates: str) -> str:
    shape, total = f"{size[0]} by {size[1]}", size[0] * size[1]
    wrong = _wrong(size, content, coordinates)
    if content == coordinates:
        return f"{shape}: patches and coordinates are both numbered {ORDERS[content]}. Each patch has its own cell."
    if not wrong:
        return f"{shape}: the two orders are the same on a single line, so the mistake cannot show."
    square = " Row and column are exchanged, and the shape cannot tell." if size[0] == size[1] else ""
    return f"{shape}: patches run {ORDERS[content]}, coordinates {ORDERS[coordinates]}. {len(wrong)} of {total} patches get another cell's coordinates.{square}"


def grid_traversal(sizes=SIZES) -> Explorer:
    """Which patches get another cell's coordinates? At rest: 2 by 5, patches along rows, coordinates down columns."""
    return Explorer(
        name="grid-traversal", title="Two orders of one grid", question="Which patches get another cell's coordinates?",
        controls=[Control("size", "Rows by columns", list(sizes), labels=[f"{r} by {c}" for r, c in sizes], kind="choice"),
                  Control("content", "Patches run", list(ORDERS), labels=list(ORDERS.values())),
                  Control("coordinates", "Coordinates run", list(ORDERS), labels=list(ORDERS.values()))],
        compute=_compute, caption=_caption,
        start={"size": (2, 5) if (2, 5) in sizes else sizes[0], "content": "row_major", "coordinates": "column_major"})
