"""What an explorer can show: plain descriptions of panels, checked when they are made.

A panel holds numbers and words, no drawing. The front end (``explorer.js``) draws it on a page, ``picture.py`` draws the
saved picture, and ``packing.py`` stores it. Row and column indices start at the code's index (``Axis.start``, 0 by default).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from positionlib.errors import require, require_choice
from positionlib.widgets.panel import Panel, finite, hidden, length_is, printing


@dataclass(frozen=True)
class Axis(Panel):
    """An index axis: entry ``i`` is printed as ``start + i``, or as ``labels[i]``."""

    label: str
    start: int = 0
    labels: tuple = ()
    unit: str = ""

    def __post_init__(self) -> None:
        self._set(labels=tuple(self.labels or ()))


@dataclass(frozen=True, eq=False)
class HeatMap(Panel):
    """A matrix as coloured cells. Drawn column ``c`` is stored column ``order[c]``; hover entries are in drawn order."""

    title: str
    values: np.ndarray
    rows: Axis = Axis("row")
    columns: Axis = Axis("column")
    scale: str = "sequential"
    limits: tuple[float, float] | None = None
    decimals: int = 2
    order: tuple[int, ...] | None = None
    masked: np.ndarray | None = None
    value_label: str = "value"
    row_hover: dict = field(default_factory=dict)
    column_hover: dict = field(default_factory=dict)
    cell_hover: dict = field(default_factory=dict)
    alt: str = ""
    nested: ClassVar = {"rows": Axis, "columns": Axis}

    def __post_init__(self) -> None:
        self._set(values=finite(f"{self.title}.values", self.values, 2))
        count = self.values.shape
        require_choice(f"{self.title}.scale", self.scale, ("sequential", "diverging"))
        printing(self)
        if self.order is not None:
            order = tuple(int(i) for i in self.order)
            require(sorted(order) == [*range(count[1])], f"{self.title}.order", order, f"a permutation of 0..{count[1] - 1}",
                    "List every stored column once.")
            self._set(order=order)
        hidden(self)
        for axis, name, length in ((self.rows, "rows", count[0]), (self.columns, "columns", count[1])):
            if axis.labels:
                length_is(f"{self.title}.{name}.labels", axis.labels, length)
        for name, vector in self.row_hover.items():
            length_is(f"{self.title}.row_hover[{name!r}]", vector, count[0])
        for name, vector in self.column_hover.items():
            length_is(f"{self.title}.column_hover[{name!r}]", vector, count[1])
        for name, cell in self.cell_hover.items():
            if isinstance(cell, tuple):
                length_is(f"{self.title}.cell_hover[{name!r}][0]", cell[0], count[0])
                length_is(f"{self.title}.cell_hover[{name!r}][1]", cell[1], count[1])
            else:
                require(np.shape(cell) == count, f"{self.title}.cell_hover[{name!r}]", np.shape(cell), f"shape {count}",
                        "Give a matrix in drawn order, or a pair (row vector, column vector) whose product is meant.")

    def drawn(self) -> HeatMap:
        if self.order is None:
            return self
        take = list(self.order)
        masked = None if self.masked is None else self.masked[:, take]
        return replace(self, values=self.values[:, take], masked=masked, order=None)

    def value_range(self) -> tuple[float, float]:
        low, high = float(self.values.min()), float(self.values.max())
        return (-max(-low, high), max(-low, high)) if self.scale == "diverging" else (low, high)


@dataclass(frozen=True, eq=False)
class Series(Panel):
    """One named curve of :class:`Lines`; ``step`` holds its value until the next x."""

    name: str
    values: np.ndarray
    kind: str = "line"

    def __post_init__(self) -> None:
        self._set(values=finite(f"{self.name}.values", self.values, 1))
        require_choice(f"{self.name}.kind", self.kind, ("line", "step", "points"))


@dataclass(frozen=True)
class Mark(Panel):
    """A labelled vertical line at ``x``."""

    x: float
    label: str


@dataclass(frozen=True, eq=False)
class Lines(Panel):
    """Curves over one x."""

    title: str
    x: np.ndarray
    series: tuple[Series, ...]
    x_label: str = "x"
    y_label: str = "value"
    decimals: int = 3
    limits: tuple[float, float] | None = None
    marks: tuple[Mark, ...] = ()
    log_x: bool = False
    alt: str = ""
    nested: ClassVar = {"series": Series, "marks": Mark}

    def __post_init__(self) -> None:
        self._set(x=finite(f"{self.title}.x", self.x, 1), series=tuple(self.series), marks=tuple(self.marks))
        require(0 < len(self.series) <= 6, f"{self.title}.series", len(self.series), "1 to 6 series", "Split the panel in two.")
        require(bool((np.diff(self.x) > 0).all()), f"{self.title}.x", self.x[:5], "increasing x", "Sort the points by x.")
        require(not self.log_x or self.x[0] > 0, f"{self.title}.log_x", self.x[0], "positive x", "Start a logarithmic axis at 1.")
        printing(self)
        for one in self.series:
            length_is(f"{self.title}.{one.name}", one.values, len(self.x))

    def value_range(self) -> tuple[float, float]:
        return min(float(s.values.min()) for s in self.series), max(float(s.values.max()) for s in self.series)


@dataclass(frozen=True, eq=False)
class Bars(Panel):
    """One bar a label, from zero."""

    title: str
    labels: tuple
    values: np.ndarray
    label: str = "index"
    value_label: str = "value"
    decimals: int = 2
    limits: tuple[float, float] | None = None
    highlight: tuple[int, ...] = ()
    alt: str = ""

    def __post_init__(self) -> None:
        self._set(values=finite(f"{self.title}.values", self.values, 1), labels=tuple(self.labels), highlight=tuple(self.highlight))
        length_is(f"{self.title}.labels", self.labels, len(self.values))
        printing(self)

    def value_range(self) -> tuple[float, float]:
        return min(0.0, float(self.values.min())), max(0.0, float(self.values.max()))


@dataclass(frozen=True, eq=False)
class Matrix(Panel):
    """A small matrix with its entries printed; entries may be numbers or words."""

    title: str
    values: np.ndarray
    decimals: int = 2
    shade: str | None = None
    highlight: tuple[tuple[int, int], ...] = ()
    masked: np.ndarray | None = None
    row_labels: tuple = ()
    column_labels: tuple = ()
    note: str = ""

    def __post_init__(self) -> None:
        words = np.asarray(self.values).dtype.kind in "UO"
        values = np.asarray(self.values, dtype=str) if words else finite(f"{self.title}.values", self.values, 2)
        require(values.ndim == 2 and values.size > 0, f"{self.title}.values", values.shape, "two dimensions", "Pass a list of rows.")
        require(not (words and self.shade), f"{self.title}.shade", self.shade, "None for a matrix of words", "Leave shade out.")
        self._set(values=values, highlight=tuple((int(i), int(j)) for i, j in self.highlight),
                  row_labels=tuple(self.row_labels or ()), column_labels=tuple(self.column_labels or ()))
        require(self.shade in (None, "sequential", "diverging"), f"{self.title}.shade", self.shade, "None, sequential or diverging",
                "Leave it out for plain cells.")
        printing(self)
        hidden(self)
        for name, labels, length in (("row_labels", self.row_labels, values.shape[0]), ("column_labels", self.column_labels, values.shape[1])):
            if labels:
                length_is(f"{self.title}.{name}", labels, length)


@dataclass(frozen=True, eq=False)
class Matrices(Panel):
    """Small matrices side by side."""

    items: tuple[Matrix, ...]
    title: str = ""
    nested: ClassVar = {"items": Matrix}

    def __post_init__(self) -> None:
        self._set(items=tuple(self.items))
        require(len(self.items) > 0, "Matrices.items", self.items, "at least one Matrix", "Leave the panel out instead.")


@dataclass(frozen=True, eq=False)
class Table(Panel):
    """Rows of words and numbers, printed as given."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple, ...]
    highlight: tuple[int, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        self._set(columns=tuple(self.columns), rows=tuple(tuple(row) for row in self.rows), highlight=tuple(self.highlight))
        for i, row in enumerate(self.rows):
            length_is(f"{self.title}.rows[{i}]", row, len(self.columns))


@dataclass(frozen=True)
class Badge(Panel):
    """One named result; the status is shown as a sign as well as a colour."""

    label: str
    value: str | int | float | bool
    status: str = "plain"

    def __post_init__(self) -> None:
        require_choice(f"{self.label}.status", self.status, ("plain", "ok", "warn", "bad"))
        if isinstance(self.value, (float, np.floating)):
            require(bool(np.isfinite(self.value)), f"{self.label}.value", self.value, "a finite number", "Say an infinity in words.")


@dataclass(frozen=True, eq=False)
class Badges(Panel):
    """Named results in a row."""

    items: tuple[Badge, ...]
    nested: ClassVar = {"items": Badge}

    def __post_init__(self) -> None:
        self._set(items=tuple(self.items))


@dataclass(frozen=True)
class Text(Panel):
    """A sentence, or a few lines of code."""

    text: str
    code: bool = False
