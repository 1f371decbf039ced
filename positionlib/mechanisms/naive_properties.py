"""What a position code is like, measured: identity, bounded scale, local smoothness, extension.

A code is any callable ``code(positions [N], length) -> rows [N, D]``, where ``length`` is that of the whole sequence: a naive code, a
sinusoid, a learned table, the one-hot bucket of an offset. The numbers hold for the range that was looked at and for no other.

==============  ============================================================================================
property        measurement
==============  ============================================================================================
identity        :func:`distinct_rows`: how many rows differ, and the first pair that does not
bounded scale   :func:`norm_profile`, :func:`content_ratio`; ``growth`` of :func:`extension`
smoothness      :func:`step_profile`, :func:`distance_profile`, :func:`direction_rank`
extension       :func:`extension`: do the rows of a sequence move when it grows, and is there a row beyond it
==============  ============================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import require, require_count

Code = Callable[[Int[Tensor, "N"], int], Float[Tensor, "N D"]]


@dataclass(frozen=True, eq=False)
class Extension:
    """What happens to a code when a sequence of ``length`` rows grows to ``longer``.

    moved : how far each of the first ``length`` rows moves.
    beyond : ``refused`` (no row), ``collides`` (a row beyond equals another row) or ``continues``.
    growth : the largest norm of the longer sequence over that of the shorter; NaN when refused or when neither has one. A bounded code stays near 1.
    """

    moved: Float[Tensor, "N"]
    beyond: str
    growth: float


@dataclass(frozen=True, eq=False)
class Properties:
    """The four properties of one code. ``closest`` and ``farthest`` are those of :func:`distance_profile`."""

    distinct: int
    first_collision: tuple[int, int] | None
    norms: Float[Tensor, "N"]
    steps: Float[Tensor, "N-1"]
    closest: Float[Tensor, "N-1"]
    farthest: Float[Tensor, "N-1"]
    rank: int
    extension: Extension


@checked
def norm_profile(rows: Float[Tensor, "N D"]) -> Float[Tensor, "N"]:
    """‖p_t‖₂, float64."""
    return _checked(rows).double().norm(dim=1)


@checked
def content_ratio(rows: Float[Tensor, "N D"], sigma: float) -> Float[Tensor, "N"]:
    """‖p_t‖ / (σ √D): the row beside a content row of independent channels with scale σ. For α t · 1_D it is |α| t / σ at any width."""
    require(sigma > 0, "sigma", sigma, "a finite number above 0", "Pass the scale of a content channel.")
    return norm_profile(rows) / (float(sigma) * math.sqrt(rows.shape[1]))


@checked
def step_profile(rows: Float[Tensor, "N D"]) -> Float[Tensor, "N-1"]:
    """‖p_{t+1} − p_t‖₂, float64. For binary digits its square is the number of digits that the step flips."""
    return _checked(rows).double().diff(dim=0).norm(dim=1)


@checked
def distance_profile(rows: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N-1"], Float[Tensor, "N-1"]]:
    """Smallest and largest ‖p_{t+k} − p_t‖₂ over t, for k = 1 … N−1. The two agree where distance depends on the offset alone."""
    wide = _checked(rows).double()
    gaps = [(wide[k:] - wide[:-k]).norm(dim=1) for k in range(1, len(wide))]
    return tuple(torch.stack([end(gap) for gap in gaps]) if gaps else wide.new_zeros(0) for end in (torch.amin, torch.amax))


@checked
def distinct_rows(rows: Float[Tensor, "N D"]) -> tuple[int, tuple[int, int] | None]:
    """How many different rows there are, and (earlier, later) of the first row that equals an earlier one, or None."""
    different, which = torch.unique(_checked(rows), dim=0, return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    earliest = torch.full((len(different),), len(rows), device=rows.device).scatter_reduce(0, which, index, "amin")[which]
    repeated = (earliest != index).nonzero()[:1].flatten().tolist()
    return len(different), (int(earliest[repeated[0]]), repeated[0]) if repeated else None


@checked
def direction_rank(rows: Float[Tensor, "N D"]) -> int:
    """Rank of the rows as a matrix, up to the rounding of their dtype. 1 for a scalar that is repeated on every channel."""
    tolerance = max(rows.shape) * torch.finfo(_checked(rows).dtype).eps
    return int(torch.linalg.matrix_rank(rows.double(), rtol=tolerance))


@checked
def extension(code: Code, length: int, longer: int) -> Extension:
    """Let a sequence grow from ``length`` to ``longer`` rows.

    Raises
    ------
    PositionContractError
        ``longer`` not above ``length``. A code refuses a row by :class:`positionlib.PositionRangeError` or IndexError; any other
        error is its own and passes through.
    """
    require_count("longer", longer, require_count("length", length) + 1)
    before, after = _rows(code, 0, length, length), _rows(code, 0, length, longer)
    moved = (after.double() - before.double()).norm(dim=1)
    try:
        beyond = _rows(code, length, longer, longer)
    except IndexError:
        return Extension(moved, "refused", math.nan)
    whole, peak = torch.cat((after, beyond)), norm_profile(before).max()
    new = distinct_rows(whole)[0] - distinct_rows(after)[0]
    growth = float(norm_profile(whole).max() / peak)  # of no norm: ∞, or NaN when nothing grew
    return Extension(moved, "continues" if new == len(beyond) else "collides", growth)


@checked
def measure(code: Code, length: int, longer: int) -> Properties:
    """All four properties on rows 0..length−1, and on the growth to ``longer`` rows."""
    grown = extension(code, length, longer)
    rows = _rows(code, 0, length, length)
    closest, farthest = distance_profile(rows)
    return Properties(*distinct_rows(rows), norm_profile(rows), step_profile(rows), closest, farthest, direction_rank(rows), grown)


def _rows(code: Code, start: int, stop: int, length: int) -> Float[Tensor, "N D"]:
    require(callable(code), "code", code, "a function of positions and a length", "Pass lambda positions, length: rows.")
    rows = _checked(code(torch.arange(start, stop), length))
    require(len(rows) == stop - start, "rows", rows, f"one row for each of {stop - start} positions", "A code returns [N, D] for positions [N].")
    return rows


def _checked(rows: object) -> Float[Tensor, "N D"]:
    require(isinstance(rows, Tensor) and rows.ndim == 2 and rows.dtype.is_floating_point and not rows.is_meta, "rows", rows,
            "floating-point rows [N, D] with values", "Measure one sequence at a time.")
    require(min(rows.shape) > 0 and bool(rows.isfinite().all()), "rows", rows,
            "finite floating-point rows [N, D], at least one", "Measure one sequence at a time.")
    return rows.detach()
