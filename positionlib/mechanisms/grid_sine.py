"""Sinusoidal coordinates on several axes, one block of channels an axis (Carion et al. 2020, section 3.2; He et al. 2022, appendix A.1).

    row = [block(t_a), block(t_b), …]       block(t) = sines and cosines of t · base^(−2i/w), i < w/2, w the width of a block

Contract
- coordinate source: the geometry's query positions on a named grid, or explicit coordinates, which may be fractions.
- changed tensor: the input state, once (MAE), or the input of every layer's queries and keys, by again=True (DETR).
- shape: rows [N, D] or [B, N, D]; a leading token has a row of zeros.
- parameter or buffer state: none; frequencies follow from the configuration, in float64, whatever dtype the model has.
- training path: none.
- runtime offset: in the positions; the origin of masked coordinates is 1.
- failure modes: the axes exchanged, which a square grid's shape hides; the other layout; counts of padded cells; the last block cut.

What released code does, by name:

=====================================  ==================  ============  =========  ===========================
source                                 ``order``           ``layout``    odd width  coordinates
=====================================  ==================  ============  =========  ===========================
facebookresearch/mae efb2a80           col, row            concatenated  refused    from 0; zeros for CLS
DETR's sine form, transformers 5.24    row, col            interleaved   refused    counts of real pixels, from 1
positional-encodings 6.0.3             as the axes stand   interleaved   next_even  from 0
=====================================  ==================  ============  =========  ===========================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from positionlib.contract import KINDS, checked
from positionlib.errors import require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.grid import Grid, check_axes, check_grid, names
from positionlib.rules import frequency_ladder, readable
from positionlib.terms import StateRows

LAYOUTS = ("interleaved", "concatenated")
ODD_WIDTHS = ("error", "next_even")


class SineGrid(nn.Module):
    """module(geometry, grid) returns the :class:`StateRows` of the query positions; module.at(coordinates) those of given coordinates.

    Parameters
    ----------
    order : axis names in the order of their channel blocks. No shape shows it.
    layout : of one block, ``interleaved`` or ``concatenated``.
    odd_width : where d_model is no even width for each axis: ``error``, or ``next_even`` (blocks of the next even width, and the last
        channels cut off: the last axis loses its slowest ones, or all).

    Raises
    ------
    PositionContractError
        a width that does not divide under ``error``, an unknown layout, a call on other axes, coordinates below 0 or not finite.
    """

    @checked
    def __init__(self, d_model: int, *, order: Sequence[str], layout: str, odd_width: str = "error", base: float = 10_000.0,
                 output_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.d_model, self.order = require_count("d_model", d_model), names("order", order)
        require(len(self.order) > 0, "order", order, "at least one axis", "Name the axes.")
        self.layout, self.odd_width = require_choice("layout", layout, LAYOUTS), require_choice("odd_width", odd_width, ODD_WIDTHS)
        self.pairs = math.ceil(d_model / (2 * len(self.order)))  # of one block
        require(odd_width == "next_even" or d_model == 2 * self.pairs * len(self.order), "d_model", d_model, f"a multiple of {2 * len(self.order)}",
                "Each axis takes whole pairs of channels: choose such a width, or name odd_width='next_even'.")
        require(output_dtype.is_floating_point, "output_dtype", output_dtype, "a floating-point dtype", "Rows are sines and cosines.")
        frequency_ladder(self.pairs, 2 * self.pairs, base)  # refuses a bad base here and not in the first call
        self.base, self.output_dtype = base, output_dtype

    def at(self, coordinates: Mapping[str, Float[Tensor, "*B N"] | Int[Tensor, "*B N"]]) -> StateRows:
        """Rows [*B, N, D] at coordinates by axis name, integers or floats, in cells."""
        check_axes(coordinates, self.order)
        for axis, c in coordinates.items():
            real, wide = c.dtype in (*KINDS["Float"][1], *KINDS["Int"][1]) and c.layout == torch.strided, c.double()
            require(real and (not readable(c) or bool(((wide >= 0) & (wide <= 2**53)).all())), f"coordinates.{axis}", c, "finite numbers of at least 0",
                    "A padded cell keeps a coordinate, and a leading token has none; beyond 2^53 phases do not tell neighbours apart.")
        return StateRows(rows=self._rows(coordinates), mark="sine_grid")

    @checked
    def forward(self, geometry: AttentionGeometry, grid: Grid) -> StateRows:
        """Rows [N, D] or [B, N, D] of the query positions, which number the tokens of the call's ``grid``."""
        require(set(check_grid(grid).axes) == set(self.order), "grid.axes", grid.axes, f"the axes {self.order}", "One block serves one axis.")
        positions = geometry.query_positions
        rows = self._rows(grid.coordinates(positions))
        return StateRows(rows=rows.masked_fill((positions < len(grid.leading))[..., None], 0.0), mark="sine_grid")

    def _rows(self, coordinates):
        blocks = []
        for axis in self.order:
            frequencies = frequency_ladder(self.pairs, 2 * self.pairs, self.base).to(coordinates[axis].device)
            phase = coordinates[axis].to(torch.float64)[..., None] * frequencies
            both = phase.sin(), phase.cos()
            blocks.append(torch.stack(both, -1).flatten(-2) if self.layout == "interleaved" else torch.cat(both, -1))
        return torch.cat(blocks, -1)[..., : self.d_model].to(self.output_dtype)

    def extra_repr(self) -> str:
        return f"{self.d_model}, order={self.order}, layout={self.layout!r}, odd_width={self.odd_width!r}, base={self.base:g}"


@checked
def real_cell_coordinates(real: Bool[Tensor, "B R C"], *, scale: float | None) -> dict[str, Float[Tensor, "B R*C"]]:
    """DETR's coordinates in a padded batch: how many real pixels a column has down to the row, and a row up to the column.

    They are float64, row-major, and start at 1. With ``scale`` (2π in DETR) each is divided by its line's last count plus 10⁻⁶ and
    multiplied by it; None leaves the counts. ``real`` is True at real pixels; a padded pixel repeats the count before it.
    """
    require(scale is None or scale > 0, "scale", scale, "a number above 0, or None", "DETR's is 2π.")
    counts = {}
    for axis, dim in (("row", 1), ("col", 2)):
        count = real.to(torch.float64).cumsum(dim)
        if scale is not None and count.numel():
            count = count / (count.narrow(dim, -1, 1) + 1e-6) * float(scale)
        counts[axis] = count.flatten(1)
    return counts
