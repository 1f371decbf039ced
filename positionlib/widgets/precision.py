"""Precision collisions: which sinusoidal rows a dtype can still tell apart, and where the cast that merged them happened."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.mechanisms.sinusoidal_precision import first_position_alias, precision_sweep
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Mark, Series, Table

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LADDERS = ((64, 10_000.0), (64, 100.0), (4, 10_000.0), (4, 100.0), (2, 10_000.0))  # (width, base); one pair alone has no use for a base
RANGES = ((0, 512), (0, 4096), (65_536, 256))  # (first position, number of rows)
WINDOW = 40  # neighbours drawn: more than SHORT, so that the numbers are packed, and few enough to tell points apart


def stored_rows(positions, d_model, base, dtype, cast):
    """Float64 copies of the rows after the cast, as in ``precision_sweep``: integer first, or finished row last."""
    if cast == "table":
        return sinusoidal_rows(positions, d_model, base=base, output_dtype=dtype).double()
    # A rounded integer is still an integer: the library may build its row.
    return sinusoidal_rows(positions.to(dtype).long(), d_model, base=base, output_dtype=torch.float64)


def significant(distance: float) -> str:
    """Four significant digits: what two machines agree on."""
    return "0" if distance == 0 else f"{distance:.4g}"


@cache
def _report(dtype, cast, ladder, span):
    (width, base), (start, length) = ladder, span
    return precision_sweep(length, width, base=base, dtype=DTYPES[dtype], cast=cast, start=start)


def _overflows(dtype, cast, span) -> bool:
    """Whether the positions leave the dtype's range: they become infinite, and sine and cosine of infinity are NaN."""
    return cast == "positions" and span[0] > torch.finfo(DTYPES[dtype]).max


def _neighbours(rows):
    return (rows[1:] - rows[:-1]).norm(dim=1).numpy()


def _compute(dtype, cast, ladder, span):
    start, length = span
    if _overflows(dtype, cast, span):
        collision, later, gap, badges = None, start + 9, 1, _overflow_badges(dtype, length)
    else:
        report = _report(dtype, cast, ladder, span)
        collision, gap = report.first_collision, report.minimum_pair[1] - report.minimum_pair[0]
        later = start + length if collision is None else collision[1]  # without a collision: the end, where rounding is coarsest
        badges = _badges(report, gap, dtype, length)
    first = min(max(later - 9, start), start + length - WINDOW - 1)
    return [badges, _lines(first, collision, dtype, cast, ladder, span), _table(collision, gap, dtype, cast, ladder, span)]


def _badges(report, gap, dtype, length):
    collision = report.first_collision
    return Badges([
        Badge("first collision", "none here" if collision is None else f"{collision[0]:,} = {collision[1]:,}", "bad" if collision else "ok"),
        Badge("distinct rows", f"{report.distinct_rows:,} of {length:,}", "ok" if report.distinct_rows == length else "bad"),
        Badge("smallest distance", significant(report.minimum_distance), "bad" if collision else "ok"),
        Badge("offset of the closest pair", f"{gap:,}"),
        Badge(f"{dtype} merges", "{:,} and {:,}".format(*first_position_alias(DTYPES[dtype]))),
    ])


def _overflow_badges(dtype, length):
    return Badges([Badge("finite rows", f"0 of {length:,}", "bad"),
                   Badge(f"{dtype} ends at", f"{torch.finfo(DTYPES[dtype]).max:,.0f}"),
                   Badge(f"{dtype} merges", "{:,} and {:,}".format(*first_position_alias(DTYPES[dtype])))])


def _lines(first, collision, dtype, cast, ladder, span):
    width, base = ladder
    positions = torch.arange(first, first + WINDOW + 1)
    series = [Series("exact", _neighbours(sinusoidal_rows(positions, width, base=base, output_dtype=torch.float64)))]
    where, finding = f"Distance of row p to row p + 1, p from {first:,} to {first + WINDOW - 1:,}: ", "no stored row is a number."
    if not _overflows(dtype, cast, span):
        stored = _neighbours(stored_rows(positions, width, base, DTYPES[dtype], cast))
        series.append(Series("stored", stored, kind="points"))
        finding = "the stored points follow the exact line." if stored.all() else "zero wherever two neighbours became one row."
    marks = ()
    if collision is not None:
        adjacent = collision[1] - collision[0] == 1
        marks = (Mark(collision[0] if adjacent else collision[1], "first collision"),)
    return Lines("Distance between neighbouring rows", np.arange(first, first + WINDOW), series,
                 x_label="position p of the pair (p, p + 1)", y_label="distance", decimals=3, marks=marks, alt=where + finding)


def _table(collision, gap, dtype, cast, ladder, span):
    """The colliding rows and the next one; without a collision the first two rows at the offset that comes closest."""
    width, base = ladder
    earlier, later = collision or (span[0], span[0] + gap)
    shown = torch.tensor([earlier, later, later + 1])
    used = shown.to(DTYPES[dtype]).double() if cast == "positions" else shown.double()
    channels = min(width, 4)
    if _overflows(dtype, cast, span):
        words = [["NaN"] * channels] * 3
    else:
        words = [[f"{float(v) + 0.0:.4f}" for v in row[:channels]] for row in stored_rows(shown, width, base, DTYPES[dtype], cast)]
    body = [(f"{int(p):,}", f"{float(u):,.0f}", *row) for p, u, row in zip(shown, used, words)]
    return Table("Rows as stored, first channels", ["position", "number used", *(f"channel {c}" for c in range(channels))], body,
                 highlight=() if collision is None else (0, 1))


def _caption(dtype, cast, ladder, span):
    start, length = span
    where = f"{start:,} to {start + length - 1:,}"
    if _overflows(dtype, cast, span):
        return f"{dtype} ends at {torch.finfo(DTYPES[dtype]).max:,.0f}: every position {where} becomes infinity, and every row NaN."
    report = _report(dtype, cast, ladder, span)
    what = f"Positions rounded to {dtype} first" if cast == "positions" else f"Table built wide, then rounded to {dtype}"
    if report.first_collision is None:
        return f"{what}: the {length:,} rows {where} stay different; the closest two are {significant(report.minimum_distance)} apart."
    earlier, later = report.first_collision
    distinct = "one row is left" if report.distinct_rows == 1 else f"{report.distinct_rows:,} different rows are left"
    return f"{what}: rows {earlier:,} and {later:,} are the same {ladder[0]} numbers; of the {length:,} rows {where}, {distinct}."


def precision_collisions(ladders=LADDERS) -> Explorer:
    """Which rows does a dtype merge, and does it matter where the cast happens? At rest: bfloat16 positions meet at 256 = 257."""
    return Explorer(
        name="precision-collisions", title="Precision collisions", question="Which rows become one, and where was the cast?",
        controls=[
            Control("dtype", "Dtype", list(DTYPES)),
            Control("cast", "What is cast", ["positions", "table"], labels=["the positions", "the finished table"]),
            Control("ladder", "Width and base", list(ladders),
                    labels=[f"d = {d}, " + ("any base" if d == 2 else f"base {base:,.0f}") for d, base in ladders]),
            Control("span", "Positions", list(RANGES), labels=[f"{a:,} – {a + n - 1:,}" for a, n in RANGES]),
        ],
        compute=_compute, caption=_caption, start={"dtype": "bfloat16", "cast": "positions", "ladder": ladders[0], "span": RANGES[0]})
