"""The saved picture of a widget: the panels of one state drawn with matplotlib, the same bytes for the same state."""

from __future__ import annotations

import textwrap

import numpy as np

from positionlib.widgets.panel import Panel
from positionlib.widgets.panels import Axis, Badges, Bars, HeatMap, Lines, Matrices, Matrix, Table, Text
from positionlib.widgets.style import CYCLE, colour_map, png, settings

SIGNS = {"ok": "✓ ", "warn": "! ", "bad": "✗ ", "plain": ""}
WIDTH = 6.4  # inches
LINE = 0.24  # inches of one line of text
ACROSS = 84  # letters in one line


def _said(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, (bool, np.bool_)) else str(value)


def _wrapped(panel: Text | Badges) -> list[str]:
    """Lines of a panel that is all words; a badge stays on one line."""
    if isinstance(panel, Text):
        return [line for part in panel.text.split("\n") for line in textwrap.wrap(part, ACROSS) or [""]]
    lines = [""]
    for badge in panel.items:
        said = f"{SIGNS[badge.status]}{badge.label}: {_said(badge.value)}"
        if lines[-1] and len(lines[-1]) + len(said) > ACROSS:
            lines.append("")
        lines[-1] += ("    " if lines[-1] else "") + said
    return lines


def _rows_of(panel: Matrices, across: int = 3) -> list[tuple[Matrix, ...]]:
    return [panel.items[i:i + across] for i in range(0, len(panel.items), across)]


def _height(panel: Panel) -> float:
    """Inches a panel needs."""
    if isinstance(panel, (HeatMap, Lines, Bars)):
        return 2.9
    if isinstance(panel, Matrices):
        return sum(LINE * (max(len(m.values) + bool(m.column_labels) for m in row) + 1.6) for row in _rows_of(panel))
    if isinstance(panel, Table):
        return LINE * (len(panel.rows) + 2.2)
    return LINE * (len(_wrapped(panel)) + 0.4)


def _names(axis: Axis, count: int) -> list[str]:
    return [str(n) for n in axis.labels] or [str(axis.start + i) for i in range(count)]


def _every(count: int, most: int) -> range:
    step = 1
    while count / step > most:
        step *= 2
    return range(0, count, step)


def _heat_map(axes, panel: HeatMap) -> None:
    low, high = panel.limits
    shown = np.ma.array(panel.values, mask=panel.masked if panel.masked is not None else False)
    image = axes.imshow(shown, cmap=colour_map(panel.scale), vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    rows, columns = panel.values.shape
    for ticks, labels, names, most in ((axes.set_xticks, axes.set_xlabel, panel.columns, 12), (axes.set_yticks, axes.set_ylabel, panel.rows, 10)):
        count = columns if names is panel.columns else rows
        places = _every(count, most)
        ticks(list(places), [_names(names, count)[i] for i in places])
        labels(names.label)
    axes.figure.colorbar(image, ax=axes, label=panel.value_label)


def _lines(axes, panel: Lines) -> None:
    for one in panel.series:
        if one.kind == "points":
            axes.plot(panel.x, one.values, "s", markersize=4, label=one.name)
        else:
            axes.plot(panel.x, one.values, drawstyle="steps-post" if one.kind == "step" else "default", label=one.name)
    for i, mark in enumerate(panel.marks):
        axes.axvline(mark.x, color="#5f6570", linestyle=":", linewidth=1.2)
        axes.annotate(mark.label, (mark.x, 0.97 - 0.08 * (i % 3)), xycoords=("data", "axes fraction"), fontsize=9, va="top")
    pad = 0.04 * (panel.limits[1] - panel.limits[0])
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(panel.limits[0] - pad, panel.limits[1] + pad), xscale="log" if panel.log_x else "linear")
    if len(panel.series) > 1:
        axes.legend()


def _bars(axes, panel: Bars) -> None:
    colours = [CYCLE[1] if i in panel.highlight else CYCLE[0] for i in range(len(panel.values))]
    axes.bar(range(len(panel.values)), panel.values, color=colours)
    places = _every(len(panel.labels), 16)
    axes.set_xticks(list(places), [str(panel.labels[i]) for i in places])
    axes.set(xlabel=panel.label, ylabel=panel.value_label, ylim=(min(0, panel.limits[0]), max(0, panel.limits[1]) or 1))


def _cells(axes, rows: list[list[str]], head: tuple, side: tuple, lit: set, colours=None) -> None:
    """A small grid of words."""
    made = axes.table(cellText=rows, colLabels=list(head) or None, rowLabels=list(side) or None, loc="upper center", cellLoc="center",
                      bbox=[0.12 if side else 0, 0, 0.88 if side else 1, 1])
    made.auto_set_font_size(False)
    made.set_fontsize(9)
    for (i, j), cell in made.get_celld().items():
        inner = (i - bool(head), j)
        cell.set(linewidth=2.0 if inner in lit else 0.5, edgecolor=CYCLE[1] if inner in lit else "#9aa1ac", facecolor="none")
        if colours is not None and inner[0] >= 0 and j >= 0:
            cell.set_facecolor(colours[inner])
            cell.get_text().set_color("black" if np.dot(colours[inner][:3] ** 2.2, (0.2126, 0.7152, 0.0722)) > 0.18 else "white")
    axes.set_axis_off()


def _matrix(axes, panel: Matrix) -> None:
    numbers = panel.values.dtype.kind != "U"
    digits = panel.decimals if panel.values.dtype.kind == "f" else 0
    hidden = panel.masked if panel.masked is not None else np.zeros(panel.values.shape, bool)
    rows = [["·" if gone else f"{v:.{digits}f}" if numbers else str(v) for v, gone in zip(line, flags)] for line, flags in zip(panel.values, hidden)]
    colours = None
    if panel.shade:
        most = np.abs(panel.values).max() or 1.0
        low, high = (-most, most) if panel.shade == "diverging" else (panel.values.min(), panel.values.max())
        colours = colour_map(panel.shade)((panel.values - low) / ((high - low) or 1.0))
        colours[hidden] = (0, 0, 0, 0)
    axes.set_title(panel.title, fontsize=10)
    _cells(axes, rows, panel.column_labels, panel.row_labels, set(panel.highlight), colours)


def _table(axes, panel: Table) -> None:
    axes.set_title(panel.title, fontsize=10)
    lit = {(i, j) for i in panel.highlight for j in range(len(panel.columns))}
    _cells(axes, [[_said(v) for v in row] for row in panel.rows], panel.columns, (), lit)


def draw(title: str, panels: list[Panel]) -> bytes:
    """PNG bytes of one state, its panels from top to bottom, on transparent paper."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(settings()):
        heights = [_height(panel) for panel in panels]
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=12, fontweight="bold")
        for part, panel in zip(np.atleast_1d(figure.subfigures(len(panels), 1, height_ratios=heights)), panels):
            if isinstance(panel, Matrices):
                rows = _rows_of(panel)
                grid = part.subplots(len(rows), max(map(len, rows)), squeeze=False)
                for axes in grid.flat:
                    axes.set_axis_off()
                for line, row in zip(grid, rows):
                    for axes, one in zip(line, row):
                        _matrix(axes, one)
                continue
            axes = part.subplots()
            if isinstance(panel, HeatMap):
                _heat_map(axes, panel)
            elif isinstance(panel, Lines):
                _lines(axes, panel)
            elif isinstance(panel, Bars):
                _bars(axes, panel)
            elif isinstance(panel, Table):
                _table(axes, panel)
            else:
                axes.set_axis_off()
                axes.text(0, 1, "\n".join(_wrapped(panel)), va="top", fontsize=10, transform=axes.transAxes,
                          family="DejaVu Sans Mono" if getattr(panel, "code", False) else None)
                continue
            if not isinstance(panel, Table):
                axes.set_title(panel.title, fontsize=10)
        return png(figure)
