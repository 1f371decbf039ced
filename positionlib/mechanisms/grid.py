"""Coordinates on several axes: grids, learned tables over them (Dosovitskiy et al. 2021, appendix D.4; Carion et al. 2020, section 3.2).

    token = leading + r·C + c  (row_major)          token = leading + c·R + r  (column_major)
    flat            p_rc = E[r, c]                  R·C·D numbers, any value anywhere
    sum             p_rc = E_row[r] + E_col[c]      (R + C)·D numbers
    concatenate     p_rc = [E_row[r], E_col[c]]     R·D_row + C·D_col numbers
    sum and concatenate alone:  p_rc − p_rc′ − p_r′c + p_r′c′ = 0 on every rectangle

Contract
- coordinate source: the geometry's query positions, which number the tokens of a named grid; ``at`` takes coordinates by axis.
- changed tensor: the input state, once.
- shape: rows [N, D] or [B, N, D]; nothing of size R·C·D is built for the separable forms.
- parameter or buffer state: one table [tokens, D], or one [length, width] an axis; leading tokens have rows of their own.
- training path: a cell's own row, or the row shared by its whole line of cells; a line past the training grid stays untrained.
- runtime offset: dropped or sorted patches keep their token numbers as positions.
- failure modes: the other traversal, which a square grid hides; the axes in the other channel order; a grid of equally many tokens
  taken for the same grid; a leading token counted as a cell.

Released: axial-positional-embedding 0.3.12 (sum, or concatenate in axis order, row-major); DETR's learned form in transformers 5.24
(concatenate, column first); ViT (flat, one CLS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.rules import integers, readable
from positionlib.terms import StateRows

TRAVERSALS = ("row_major", "column_major")
COMPOSITIONS = ("sum", "concatenate")
LEADING = -1  # coordinate of a leading token on every axis: it stands in no cell, and the number is never an index


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells on named axes, and the order in which they become tokens.

    Attributes
    ----------
    sizes : length of each axis by name, outer axis first: ``{"row": 2, "col": 5}``.
    traversal : ``row_major`` (the last axis runs fastest) or ``column_major`` (the first does). No shape tells them apart.
    leading : names of the tokens before the first cell, as ``("cls",)``.
    cells : how many cells, from the sizes.

    Raises
    ------
    PositionContractError
        no axis, a size below 1, an unknown traversal, repeated names, or col named before row.
    """

    sizes: Mapping[str, int]
    traversal: str
    leading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.sizes, Mapping) and len(self.sizes) > 0 and all(isinstance(a, str) and a.isidentifier() for a in self.sizes),
                "sizes", self.sizes, "lengths by the name of their axis", 'Write {"row": 2, "col": 5}.')
        object.__setattr__(self, "sizes", {axis: require_count(f"sizes.{axis}", size) for axis, size in self.sizes.items()})
        require_choice("traversal", self.traversal, TRAVERSALS)
        require(not {"row", "col"} <= set(self.sizes) or self.axes.index("row") < self.axes.index("col"), "sizes", self.sizes,
                "row before col", "The traversals are named after that order.")
        object.__setattr__(self, "leading", names("leading", self.leading))
        # Found once, here: a compiled graph cannot trace products over a dict.
        object.__setattr__(self, "cells", math.prod(self.sizes.values()))
        require(self.tokens < 2**62, "sizes", self.sizes, "fewer than 2^62 tokens", "A position counts them.")
        outer_first = self.axes if self.traversal == "row_major" else self.axes[::-1]
        object.__setattr__(self, "_steps", {axis: math.prod(self.sizes[inner] for inner in outer_first[n + 1 :]) for n, axis in enumerate(outer_first)})

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names, outer axis first."""
        return tuple(self.sizes)

    @property
    def tokens(self) -> int:
        """How many tokens: leading ones and cells."""
        return len(self.leading) + self.cells

    def coordinates(self, positions: Int[Tensor, "*B N"]) -> dict[str, Int[Tensor, "*B N"]]:
        """Coordinate of each token on each axis, int64, from 0; LEADING (−1) for a leading token.

        Raises
        ------
        PositionRangeError
            a position past the last token.
        """
        positions = integers("position", positions)
        check_range("position", positions, self.tokens, self)
        cell = positions - len(self.leading)
        return {axis: torch.where(cell < 0, LEADING, cell // step % self.sizes[axis]) for axis, step in self._steps.items()}

    def positions(self, coordinates: Mapping[str, Int[Tensor, "*B N"]]) -> Int[Tensor, "*B N"]:
        """Token number of each cell: the inverse of :meth:`coordinates` on cells.

        Raises
        ------
        PositionRangeError
            a coordinate outside its axis.
        """
        coordinates = axis_coordinates(coordinates, self.sizes)
        return len(self.leading) + sum(coordinates[axis] * step for axis, step in self._steps.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and str(self) == str(other)  # two dicts are equal in any order of their axes

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{' x '.join(f'{size} {axis}' for axis, size in self.sizes.items())}, {self.traversal}, leading {self.leading}"


class ResizeRule(Protocol):
    """A rule that reads the table of one grid at another, as :class:`positionlib.mechanisms.grid_resize.GridResize`."""

    def __call__(self, table: Float[Tensor, "*B S D"], source: Grid, target: Grid) -> Float[Tensor, "*B T D"]: ...


class LearnedGrid(nn.Module):
    """module(geometry, grid) returns :class:`StateRows`: one row a token, learned for one grid.

    A call on a grid of the same sizes reads the same cells, whatever its traversal. A grid of other sizes is read by ``resize``,
    or refused where there is none: equally many tokens are not the same grid.
    """

    def __init__(self, grid: Grid, d_model: int, *, resize: ResizeRule | None = None) -> None:
        super().__init__()
        require(resize is None or callable(resize), "resize", resize, "a ResizeRule, or None", "GridResize is one.")
        self.grid, self.resize = check_grid(grid), resize
        self.weight = nn.Parameter(torch.empty(grid.tokens, require_count("d_model", d_model)))
        nn.init.normal_(self.weight, std=0.02)

    @checked
    def forward(self, geometry: AttentionGeometry, grid: Grid) -> StateRows:
        """Rows [N, D] or [B, N, D] of the query positions, which number the tokens of the call's ``grid``."""
        require(check_grid(grid).leading == self.grid.leading, "grid.leading", grid.leading, f"{self.grid.leading}, as trained", "Name the same tokens.")
        positions, weight, home = geometry.query_positions, self.weight, self.grid
        coordinates = grid.coordinates(positions)
        if grid.sizes != home.sizes:
            require(self.resize is not None, "grid", str(grid), f"the table's own sizes {home.sizes}", "Name a resize rule for other grids.")
            weight, home = self.resize(weight, home, grid), grid
        cells = home.positions({axis: c.clamp_min(0) for axis, c in coordinates.items()})
        rows = torch.where(positions < len(grid.leading), positions, cells)
        return StateRows(rows=nn.functional.embedding(rows, weight), mark="learned_grid")

    def extra_repr(self) -> str:
        return f"{self.grid}, d_model={self.weight.shape[1]}, resize={self.resize}"


class SeparableGrid(nn.Module):
    """module(geometry, grid) returns :class:`StateRows` made of one table an axis.

    Parameters
    ----------
    tables : (length, width) of each axis by name. Under ``concatenate`` their order is the order of the channels: DETR's learned form
        is ``{"col": (50, 256), "row": (50, 256)}``. Under ``sum`` all widths are equal.
    compose : ``sum`` or ``concatenate``.
    leading : names of leading tokens, each with a row of its own.

    Raises
    ------
    PositionContractError
        unequal widths of a sum, an unknown composition, a call whose axes or leading tokens are others.
    PositionRangeError
        a grid longer than a table.
    """

    def __init__(self, tables: Mapping[str, tuple[int, int]], *, compose: str, leading: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.compose = require_choice("compose", compose, COMPOSITIONS)
        require(isinstance(tables, Mapping) and len(tables) > 0 and all(isinstance(t, tuple) and len(t) == 2 for t in tables.values()), "tables", tables,
                "(length, width) by the name of the axis", 'Write {"row": (14, 64), "col": (14, 64)}.')
        shapes = {axis: (require_count(f"tables.{axis}.length", n), require_count(f"tables.{axis}.width", w)) for axis, (n, w) in tables.items()}
        widths = [width for _, width in shapes.values()]
        require(compose == "concatenate" or len(set(widths)) == 1, "tables", tables, "equal widths, since they are added", "Or name compose='concatenate'.")
        self.leading = names("leading", leading)
        self.weight = axis_tables("tables", shapes)
        self.d_model = widths[0] if compose == "sum" else sum(widths)
        self.leading_weight = nn.Parameter(torch.randn(len(self.leading), self.d_model) * 0.02) if self.leading else None

    def at(self, coordinates: Mapping[str, Int[Tensor, "*B N"]]) -> StateRows:
        """Rows [*B, N, D] at explicit coordinates, one tensor an axis: cells of several grids in one batch, or of a packed row."""
        coordinates = axis_coordinates(coordinates, {axis: len(table) for axis, table in self.weight.items()})
        for axis, table in self.weight.items():
            require(coordinates[axis].device == table.device, f"coordinates.{axis}", coordinates[axis].device, f"device {table.device}, as the tables",
                    "Move both to one device.")
        return StateRows(rows=self._rows(coordinates), mark="separable_grid")

    @checked
    def forward(self, geometry: AttentionGeometry, grid: Grid) -> StateRows:
        """Rows [N, D] or [B, N, D] of the query positions, which number the tokens of the call's ``grid``."""
        require(set(check_grid(grid).axes) == set(self.weight), "grid.axes", grid.axes, f"the axes {tuple(self.weight)}", "One table serves one axis.")
        require(grid.leading == self.leading, "grid.leading", grid.leading, f"{self.leading}, as trained", "Name the same tokens.")
        for axis, size in grid.sizes.items():
            if size > len(self.weight[axis]):
                raise PositionRangeError(f"grid.sizes.{axis}", size, f"at most {len(self.weight[axis])}: the table has no more rows",
                                         "Shrink the grid or train a longer table.")
        positions = geometry.query_positions
        rows = self._rows({axis: c.clamp_min(0) for axis, c in grid.coordinates(positions).items()})
        if self.leading:
            own = self.leading_weight[positions.clamp_max(len(self.leading) - 1)]
            rows = torch.where((positions < len(self.leading))[..., None], own, rows)
        return StateRows(rows=rows, mark="separable_grid")

    def _rows(self, coordinates):
        parts = [nn.functional.embedding(coordinates[axis], table) for axis, table in self.weight.items()]
        return add_wide(parts) if self.compose == "sum" else torch.cat(parts, -1)

    def extra_repr(self) -> str:
        return f"compose={self.compose!r}, leading={self.leading}"


@checked
def rectangle_defect(cells: Float[Tensor, "*B R C D"]) -> Float[Tensor, "*B R-1 C-1 D"]:
    """f(r,c) − f(r,c+1) − f(r+1,c) + f(r+1,c+1) for every pair of neighbours.

    The defect of any larger rectangle is the sum of those inside it, so a zero here is the rectangle identity everywhere. It holds for
    sums and concatenations of axes; a flat table need not satisfy it.
    """
    return cells.diff(dim=-3).diff(dim=-2)


def axis_tables(field: str, shapes: Mapping[str, tuple[int, int]]) -> nn.ParameterDict:
    """One learned table an axis, normal with a standard deviation of 0.02, in the order of ``shapes``."""
    taken = nn.ParameterDict()
    for axis in shapes:
        require(isinstance(axis, str) and axis.isidentifier() and not hasattr(taken, axis), field, axis, "axes whose names are identifiers, and not those "
                "that torch's modules have taken, such as 'type'", "Name the axis otherwise: its table stands in the state dict under its name.")
    # In pairs: of a dict torch sorts the names, and their order is that of the channels.
    return nn.ParameterDict([(axis, nn.Parameter(torch.randn(shape) * 0.02)) for axis, shape in shapes.items()])


def check_grid(grid: object) -> Grid:
    """``grid`` when it is a :class:`Grid`: a pair of numbers names neither axes nor traversal."""
    require(isinstance(grid, Grid), "grid", grid, "a Grid", "Name its axes and its traversal.")
    return grid


def axis_coordinates(coordinates: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Int[Tensor, "*B N"]]:
    """``coordinates`` as int64, one tensor for each axis of ``sizes``, alike in shape and within 0..size−1."""
    check_axes(coordinates, tuple(sizes))
    whole = {axis: integers(f"coordinates.{axis}", coordinates[axis]) for axis in sizes}
    for axis, c in whole.items():
        check_range(f"coordinates.{axis}", c, sizes[axis], f"axis {axis}")
    return whole


def check_axes(coordinates: Mapping[str, Tensor], axes: tuple[str, ...]) -> None:
    """Raise :class:`PositionContractError` unless there is one tensor for each axis, all of one shape."""
    known = isinstance(coordinates, Mapping) and set(coordinates) == set(axes) and all(isinstance(c, Tensor) for c in coordinates.values())
    require(known, "coordinates", coordinates, f"one tensor for each of {axes}", "Name the axes.")
    require(len({c.device for c in coordinates.values()}) == 1, "coordinates", coordinates, "tensors on one device", "Move them together.")
    shapes = {axis: tuple(coordinates[axis].shape) for axis in axes}
    require(all(shape == shapes[axes[0]] for shape in shapes.values()), "coordinates", shapes, "one shape",
            "Give each token a coordinate on every axis.")  # compared one by one: a symbolic shape has no hash


def check_range(field: str, ids: Int[Tensor, "*shape"], size: int, what: object) -> None:
    """Raise :class:`PositionRangeError` for an id outside 0..size−1 of ``what``. A compiled or meta graph has no values to look at."""
    if readable(ids):
        for value in (int(ids.min()), int(ids.max())):
            if not 0 <= value < size:
                raise PositionRangeError(field, value, f"0..{size - 1} of {what}", "Nothing wraps around or is clamped: correct it, or name a larger grid.")


def names(field: str, given: Sequence[str]) -> tuple[str, ...]:
    """Distinct names as a tuple."""
    require(isinstance(given, (tuple, list)) and all(isinstance(n, str) for n in given) and len(set(given)) == len(given), field, given,
            "a tuple of distinct names", f'Write {field}=("cls",), or () for none.')
    return tuple(given)


def add_wide(parts: Sequence[Float[Tensor, "*B N D"]]) -> Float[Tensor, "*B N D"]:
    """The sum, taken in at least float32 and rounded once."""
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    return sum(part.to(wide) for part in parts).to(parts[0].dtype)
