"""Layout explorer: one row of the sinusoidal table in two channel orders, in front of a weight that was made for one of them.

    interleaved [sin 0, cos 0, sin 1, …]      concatenated [sin 0, sin 1, …, cos 0, …]      sum = Σ_c weight_c · row_c

Contract: the weight 1, 2, 4, … belongs to the interleaved channels 0, 1, 2, …; an odd width has one sine more than cosines.
"""

from __future__ import annotations

from functools import cache

import torch

from positionlib.mechanisms.sinusoidal import LAYOUTS, layout_permutation, sinusoidal_rows, sinusoidal_table
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, Badge, Badges, HeatMap, Table

POSITION, ROWS = 2, 16
ODD = {"odd_width": "drop_last_cosine"}
COLUMNS = {"stay": "stay as trained", "move": "move along"}


def layout_explorer(d_model=(4, 5, 6, 7, 8)) -> Explorer:
    """Which weight meets which channel? At rest: a concatenated row in front of the weight of an interleaved one."""
    return Explorer(
        name="layout-explorer", title="One row, two orders", question="Does every weight still meet the coordinate it was trained on?",
        controls=[Control("d_model", "Width d", d_model), Control("layout", "Layout of the table", LAYOUTS),
                  Control("columns", "Weight columns", list(COLUMNS), labels=list(COLUMNS.values()))],
        compute=_panels, caption=_caption, start={"d_model": d_model[0], "layout": "concatenated", "columns": "stay"})


@cache
def _meeting(d_model: int, layout: str, columns: str) -> tuple[list[str], list[float], list[int], list[int], float, float]:
    """(names, row, weight, channels with a foreign weight, sum, trained sum), channels in the order of the layout."""
    order = layout_permutation(d_model, "interleaved", layout, **ODD)
    row = sinusoidal_rows(torch.tensor([POSITION]), d_model, layout=layout, output_dtype=torch.float64, **ODD)[0]
    trained_row = sinusoidal_rows(torch.tensor([POSITION]), d_model, output_dtype=torch.float64, **ODD)[0]
    trained = 2 ** torch.arange(d_model)
    weight = trained[layout_permutation(d_model, "interleaved", "concatenated", **ODD)] if columns == "move" else trained
    names = [f"{'cos' if c % 2 else 'sin'} {c // 2}" for c in order.tolist()]
    foreign = (weight != trained[order]).nonzero().flatten().tolist()
    return names, row.tolist(), weight.tolist(), foreign, float(row @ weight.double()), float(trained_row @ trained.double())


def _panels(d_model, layout, columns):
    names, row, weight, foreign, got, trained = _meeting(d_model, layout, columns)
    table = Table(f"Row {POSITION} in front of the weight", ["channel", "holds", "value", "weight", "product"],
                  [(c, names[c], f"{row[c]:.4f}", weight[c], f"{row[c] * weight[c]:.4f}") for c in range(d_model)], highlight=foreign,
                  note="Marked: a weight that was trained on another coordinate." if foreign else "Every weight meets its own coordinate.")
    heat = HeatMap("The table in this layout", sinusoidal_table(ROWS, d_model, layout=layout, output_dtype=torch.float64, **ODD).numpy(),
                   rows=Axis("position t"), columns=Axis("channel", labels=tuple(names)), scale="diverging", limits=(-1.0, 1.0), decimals=2,
                   alt=f"{ROWS} rows whose channels hold {', '.join(names)}: {len(foreign) or 'none'} of {d_model} meet a weight of another coordinate.")
    return [table, Badges([Badge("sum here", f"{got:.4f}"), Badge("sum in training", f"{trained:.4f}"),
                           Badge("foreign weights", f"{len(foreign)} of {d_model}", "bad" if foreign else "ok")]), heat]


def _caption(d_model, layout, columns):
    names, _, _, foreign, got, trained = _meeting(d_model, layout, columns)
    end = f"The last channel holds {names[-1]}."
    if foreign:
        where, did = ", ".join(map(str, foreign)), "moved" if columns == "move" else "stayed as trained"
        return (f"{layout.capitalize()} rows, and the weight columns {did}: channels {where} meet a weight of another coordinate. The layer gives {got:.4f} where it was trained to give {trained:.4f}. {end}")
    why = "the layout that the weight was trained on" if layout == "interleaved" else "the columns moved with the channels"
    return f"{layout.capitalize()} rows: {why}, so every weight meets its coordinate and the layer gives {got:.4f}. {end}"
