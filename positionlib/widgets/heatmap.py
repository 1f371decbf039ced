"""The sinusoidal table as a heat map: which pairs turn inside the rows shown, and which hardly move.

    θ = t · ω_i,   ω_i = base^(−2i/d),   λ_i = 2π/ω_i          (Vaswani et al. 2017, section 3.5)

Contract: cells are rows of :func:`positionlib.mechanisms.sinusoidal.sinusoidal_table` (paper ladder, built in float64), shown to two
decimals; length, offset and layout choose rows and order of the same stored numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch

from positionlib.mechanisms.sinusoidal import LAYOUTS, inverse_frequencies, layout_permutation, sinusoidal_table
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, Badge, Badges, HeatMap, Lines, Mark, Series

STILL = 0.1  # radians: a pair that turns by less over the whole window moves a sine by less than 0.1
START = {"base": 10_000, "d_model": 32, "length": 64, "offset": 0, "layout": "interleaved"}


def sinusoidal_heatmap(base: Sequence[float] = (100, 10_000, 1_000_000), d_model: Sequence[int] = (16, 32, 64),
                       length: Sequence[int] = (16, 64), offset: Sequence[int] = (0, 64, 4096),
                       layout: Sequence[str] = LAYOUTS) -> Explorer:
    """The explorer of chapter 0x05. Every argument lists at least two values; the state at rest is the usual base in the middle width.

    Raises
    ------
    PositionContractError
        a list with one value, an odd width, a base not above 1, or more than 400 kB of states.
    """
    controls = [Control("base", "Base", base), Control("d_model", "Width d", d_model), Control("length", "Rows", length),
                Control("offset", "First position", offset), Control("layout", "Layout", layout)]
    start = {control.name: _first(control.values, START[control.name]) for control in controls}
    return Explorer(name="sinusoidal-heatmap", title="Slow and fast channels",
                    question="Which pairs tell neighbours apart, and which only tell regions apart?",
                    controls=controls, compute=_panels, caption=_caption, start=start)


def _first(values: Sequence[Hashable], wanted: Hashable) -> Hashable:
    return wanted if wanted in values else values[0]


def _panels(base, d_model, length, offset, layout):
    frequencies, wavelengths = _ladder(base, d_model)
    order = layout_permutation(d_model, "interleaved", layout).numpy()
    pair = order // 2
    table = HeatMap(
        "The table", sinusoidal_table(length, d_model, offset=offset, base=base, output_dtype=torch.float64).numpy(),
        rows=Axis("position t", start=offset), columns=Axis("channel"), scale="diverging", limits=(-1.0, 1.0), decimals=2,
        order=None if layout == "interleaved" else order,
        column_hover={"pair": pair, "wavelength (positions)": [float(f"{w:.6g}") for w in wavelengths[pair]]},
        cell_hover={"angle (rad)": (np.arange(offset, offset + length), frequencies[pair])},
        alt=f"{length} rows of width {d_model}, base {base:,}: pair 0 repeats about every 6 rows, "
            f"pair {len(pair) // 2 - 1} once in {wavelengths[-1]:,.0f}.")
    turning, pairs = _turning(wavelengths, length), np.arange(len(frequencies))
    ladder = Lines(
        "The ladder of wavelengths", wavelengths, [Series("pair i", pairs, kind="points")],
        x_label="wavelength (positions)", y_label="pair i", decimals=2, limits=(0.0, float(pairs[-1])), log_x=True,
        marks=(Mark(float(length - 1), f"{length - 1}: {turning} of {len(pairs)} turn"),),
        alt=f"Equal steps on a logarithmic axis: from 6.28 positions at pair 0 to {wavelengths[-1]:,.0f} at pair {pairs[-1]}; "
            f"{turning} of {len(pairs)} wavelengths fit into the {length - 1} steps shown.")
    still = int((frequencies * (length - 1) < STILL).sum())
    return [table, ladder, Badges([
        Badge("pairs that complete a turn", f"{turning} of {len(frequencies)}"),
        Badge(f"pairs that turn less than {STILL} rad", f"{still} of {len(frequencies)}"),
        Badge("shortest wavelength", f"{wavelengths[0]:.2f}"), Badge("longest wavelength", f"{wavelengths[-1]:,.0f}"),
        Badge("norm of every row", f"{math.sqrt(d_model / 2):.3f}")])]


def _caption(base, d_model, length, offset, layout):
    frequencies, wavelengths = _ladder(base, d_model)
    outcome = "it tells regions apart" if wavelengths[-1] > length - 1 else "it repeats inside the window too"
    left, right = ("on the left", "on the right") if layout == "interleaved" else ("first in each half", "last in each half")
    return (f"Pair 0, {left}, repeats about every six rows and tells neighbours apart. Pair {len(frequencies) - 1}, {right}, turns by "
            f"{frequencies[-1] * (length - 1):.2g} rad in these {length} rows and once in {wavelengths[-1]:,.0f}: {outcome}. "
            f"{_turning(wavelengths, length)} of {len(frequencies)} pairs complete a turn here.")


def _ladder(base: float, d_model: int) -> tuple[np.ndarray, np.ndarray]:
    """ω_i in radians a position and λ_i in positions."""
    frequencies = inverse_frequencies(d_model, base=base).numpy()
    return frequencies, 2 * math.pi / frequencies


def _turning(wavelengths: np.ndarray, length: int) -> int:
    """Pairs whose wavelength fits between the first and the last row shown."""
    return int((wavelengths <= length - 1).sum())
