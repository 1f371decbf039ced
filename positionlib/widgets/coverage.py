"""Row coverage: which rows of a learned position table a training mix reaches, and how often.

    c_r = Σ_e 1[L_e > r]        over examples e of length L_e, cut to the rows of the table

Contract: every curve is :func:`positionlib.mechanisms.learned.row_support` of the lengths drawn above it; nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from positionlib.mechanisms.learned import row_support
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars, Lines, Mark, Series

EXAMPLES = 1000
MIXES = {"staged": "900 texts of 128, 100 of 512", "full": "all texts 512", "even": "1 to 512, evenly", "short": "short: mean about 60"}
START = {"mix": "staged", "rows": 512, "enough": 500}
BINS = 64  # lengths to a bar


@cache
def mix_lengths(mix: str) -> tuple[int, ...]:
    """The lengths of the 1,000 texts of one mix, in ascending order."""
    if mix == "staged":
        return (128,) * 900 + (512,) * 100
    if mix == "full":
        return (512,) * EXAMPLES
    if mix == "even":
        return tuple(math.ceil((i + 1) * 512 / EXAMPLES) for i in range(EXAMPLES))
    return tuple(math.ceil(-60 * math.log1p(-(i + 0.5) / EXAMPLES)) for i in range(EXAMPLES))  # exponential, at its quantiles


def row_coverage(mix: Sequence[str] = tuple(MIXES), rows: Sequence[int] = (256, 512, 1024), enough: Sequence[int] = (1, 100, 500)) -> Explorer:
    """The explorer of chapter 0x07. Every argument lists at least two values; ``enough`` counts texts out of 1,000.

    Raises
    ------
    PositionContractError
        a list with one value, or more than 400 kB of states.
    """
    controls = [Control("mix", "Training texts", mix, labels=[MIXES[name] for name in mix]), Control("rows", "Table rows", rows),
                Control("enough", "Enough texts", enough)]
    start = {control.name: START[control.name] if START[control.name] in control.values else control.values[0] for control in controls}
    return Explorer(name="row-coverage", title="Row coverage", question="Which rows of the table are reached often enough?",
                    controls=controls, compute=_panels, caption=_caption, start=start)


@cache
def _support(mix: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths after the cut to ``rows`` tokens, and c_r."""
    lengths = np.minimum(mix_lengths(mix), rows)
    return lengths, row_support(lengths.tolist(), rows).numpy()


def _panels(mix: str, rows: int, enough: int):
    lengths, support = _support(mix, rows)
    edges = range(0, rows, BINS)
    held = [int(((lengths > low) & (lengths <= low + BINS)).sum()) for low in edges]
    reached, good = int((support > 0).sum()), int((support >= enough).sum())
    bars = Bars("Lengths of 1,000 texts", [f"{low + 1}–{low + BINS}" for low in edges], np.array(held), label="length (tokens)",
                value_label="texts", decimals=0, limits=(0.0, float(EXAMPLES)),
                alt=f"Lengths in bins of {BINS}; the longest text has {lengths.max()} tokens, {held[-1]} texts end in the last bin.")
    curve = Lines("Texts that reach each row", np.arange(rows, dtype=float), [Series("c_r", support, kind="step")], x_label="row r (from 0)",
                  y_label="texts longer than r", decimals=0, limits=(0.0, float(EXAMPLES)), marks=(Mark(float(good), f"row {good}: fewer than {enough}"),) if good < rows else (),
                  alt=f"Row support falls from {support[0]} at row 0 to {support[-1]} at row {rows - 1}; {good} of {rows} rows are reached by {enough} or more.")
    return [bars, curve, Badges([
        Badge("rows in the table", f"{rows:,}"), Badge(f"reached by {enough} or more", f"{good:,}", "ok" if good == rows else "warn"),
        Badge("reached by fewer", f"{reached - good:,}", "warn" if reached > good else "plain"),
        Badge("never reached", f"{rows - reached:,}", "bad" if rows > reached else "plain"),
        Badge("row 0 over the last reached row", f"{support[0] / support[reached - 1]:,.0f} : 1")])]


def _caption(mix: str, rows: int, enough: int) -> str:
    _, support = _support(mix, rows)
    reached, good = int((support > 0).sum()), int((support >= enough).sum())
    cut = " Longer texts are cut to the table." if max(mix_lengths(mix)) > rows else ""
    said = f"{MIXES[mix][0].upper()}{MIXES[mix][1:]}; a table of {rows:,} rows. "
    if good == rows:
        said += f"Every row is reached by at least {enough} of 1,000 texts; the last one by {support[-1]}."
    else:
        said += f"Rows 0 to {good - 1} are reached by at least {enough} of 1,000 texts."
        if reached > good:
            said += f" Rows {good} to {reached - 1} are reached, by fewer: the last of them by {support[reached - 1]}."
        if rows > reached:
            said += f" Rows {reached} to {rows - 1} exist, and no text ever stood on them."
    return said + cut
