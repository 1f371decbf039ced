"""Which sinusoidal rows a dtype can still tell apart: a finite-range measurement, not a proof of uniqueness.

A position passes through three roundings: the integer itself, the phase, the finished row. ``cast`` says which of them runs in
the low-precision dtype:

- ``positions``: the integer is rounded first, then phases and rows are built wide (a module that was moved to half precision
  and computes arange in its own dtype);
- ``table``: everything is built wide and the finished row is rounded once (what this library does);
- ``none``: nothing is rounded below float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import PositionContractError, require, require_choice, require_count
from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows

CASTS = ("positions", "table", "none")


@dataclass(frozen=True)
class PrecisionReport:
    """What a range of rows looks like after rounding.

    first_collision : (earlier, later) positions of the first row that equals an earlier one, or None.
    distinct_rows : how many different rows there are.
    minimum_distance : smallest Euclidean distance of two rows of the range.
    minimum_pair : positions of a pair at that distance.
    """

    first_collision: tuple[int, int] | None
    distinct_rows: int
    minimum_distance: float
    minimum_pair: tuple[int, int]


@checked
def first_position_alias(dtype: torch.dtype) -> tuple[int, int]:
    """The first two consecutive integers that ``dtype`` rounds to one number: 2^p and 2^p + 1 with p significand bits.

    Raises
    ------
    PositionContractError
        a dtype that is not floating point.
    """
    if not dtype.is_floating_point:
        raise PositionContractError("dtype", dtype, "a floating-point dtype", "Integers alias only where they overflow.")
    boundary = round(2 / torch.finfo(dtype).eps)
    return boundary, boundary + 1


@checked
def precision_sweep(length: int, d_model: int, *, base: float = 10_000.0, dtype: torch.dtype = torch.bfloat16, cast: str = "table",
                    start: int = 0) -> PrecisionReport:
    """Measure rows start..start+length-1 after rounding to ``dtype`` where ``cast`` says. 2^17 rows of width 64 take seconds.

    Raises
    ------
    PositionContractError
        fewer than two rows, an unknown cast, positions that the dtype turns into infinity, or a width or base that the table
        refuses.
    """
    last = require_count("start", start, 0) + require_count("length", length, 2) - 1
    require_choice("cast", cast, CASTS)
    require(dtype.is_floating_point, "dtype", dtype, "a floating-point dtype", "Integers round nothing.")
    require(cast != "positions" or last <= torch.finfo(dtype).max, "dtype", dtype, f"a range that reaches position {last}",
            "Cast the table instead: an infinite position has no sine.")
    positions = torch.arange(start, start + length)
    exact = sinusoidal_rows(positions, d_model, base=base, output_dtype=torch.float64)
    stored = _stored(positions, exact, d_model, base, dtype, cast)
    collision, distinct = _collisions(stored.to(dtype) if cast == "table" else stored)
    if collision is not None:
        pair, distance = collision, 0.0
    else:
        pair, distance = _closest(stored, exact, inverse_frequencies(d_model, base=base))
    shifted = None if collision is None else (collision[0] + start, collision[1] + start)
    return PrecisionReport(shifted, distinct, distance, (pair[0] + start, pair[1] + start))


def _stored(positions, exact, d_model, base, dtype, cast) -> Float[Tensor, "N D"]:
    """The rounded rows, held in float64 so that their differences are exact."""
    if cast == "table":
        return exact.to(dtype).double()
    if cast == "none":
        return exact
    frequencies = inverse_frequencies(d_model, base=base)
    phase = positions.to(dtype).double()[:, None] * frequencies
    return torch.stack((phase.sin(), phase.cos()), -1).flatten(1)


def _collisions(rows: Tensor) -> tuple[tuple[int, int] | None, int]:
    """First row that equals an earlier one, by hashing the rows' bytes; −0.0 is 0.0."""
    data = (rows.double() + 0.0).numpy()
    keys = np.ascontiguousarray(data).view(np.dtype((np.void, data.shape[1] * data.itemsize))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    earliest = first[inverse]
    repeated = np.nonzero(earliest != np.arange(len(keys)))[0]
    found = None if len(repeated) == 0 else (int(earliest[repeated[0]]), int(repeated[0]))
    return found, len(first)


def _closest(stored: Tensor, exact: Tensor, frequencies: Tensor) -> tuple[tuple[int, int], float]:
    """Closest pair of rows, exactly, without looking at every pair.

    Unrounded rows k apart are all at distance D(k) = √Σ(2 − 2cos kω_i), and rounding moves a row by at most e. So a pair k apart
    cannot come closer than D(k) − 2e: offsets are tried in the order of D(k), until that bound passes the best pair found.
    """
    offsets = torch.arange(1, len(stored))
    distance = (2 - 2 * (offsets[:, None].double() * frequencies).cos()).sum(-1).clamp_min(0).sqrt()
    moved = 2 * float((stored - exact).norm(dim=1).max()) + 1e-12  # the table of D(k) is rounded too
    best, pair = float("inf"), (0, 1)
    for index in distance.argsort():
        if float(distance[index]) - moved > best:
            break
        k = int(offsets[index])
        gaps = (stored[k:] - stored[:-k]).norm(dim=1)
        m = int(gaps.argmin())
        if float(gaps[m]) < best:
            best, pair = float(gaps[m]), (m, m + k)
    return pair, best
