"""Three naive codes, each with one property of a coordinate system and without another.

    integer      p_t = α t · 1_D                              distinct, but as long as t: one direction that outgrows the content
    normalised   p_t = (t / L) · 1_D                          bounded, but another coordinate at every length L
    binary       p_t = [b_{m−1}, …, b_0],  t = Σ_k b_k 2^k    bounded and distinct below 2^m, but 7 → 8 flips four digits and 6 → 7 one

Contract
- coordinate source: the integer position of the geometry; for ``length="current"`` its number of keys too, pads included.
- changed tensor: the input state [B, N, D], once, before any projection.
- shape: rows [N, D] or [B, N, D].
- parameter or buffer state: none.
- training path: none; a layer behind them meets norms (integer) or spacings (normalised) that it was not trained on.
- runtime offset: in the positions. A decode step of the current-length code gives every cached row another coordinate than it has.
- failure modes: what the equations say, and a position past the fixed length or the last digit, which is refused by name.

They are counterexamples, not proposals; :mod:`positionlib.mechanisms.naive_properties` measures them and any other code.
Source: the definitions are elementary. Vaswani et al. 2017, section 3.5, is the answer to what they lack.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.rules import integers, readable
from positionlib.terms import StateRows

OVERFLOWS = ("error", "wrap")


@checked
def integer_rows(positions: Int[Tensor, "*B N"], d_model: int, *, alpha: float = 1.0,
                 output_dtype: torch.dtype = torch.float32) -> Float[Tensor, "*B N D"]:
    """α t on every channel, rounded once: beyond 2^24 float32 has neighbours with one row.

    Raises
    ------
    PositionContractError
        positions that are no integers, an α that is 0 or not finite, or a dtype that is not floating point.
    """
    require(alpha != 0, "alpha", alpha, "a finite number other than 0",
            "The raw integer is alpha=1.")
    return _repeated(float(alpha) * positions.double(), d_model, output_dtype)


@checked
def normalised_rows(positions: Int[Tensor, "*B N"], d_model: int, *, length: int,
                    output_dtype: torch.dtype = torch.float32) -> Float[Tensor, "*B N D"]:
    """t / L on every channel, in 0 ≤ p < 1 until it is rounded, once.

    Raises
    ------
    PositionRangeError
        a position outside 0..L−1.
    """
    length = require_count("length", length, 1 if readable(positions) else 0)  # a sequence of no rows has length 0
    positions = _within(positions, length, "State the length that the coordinate is a fraction of.")
    return _repeated(positions.double() / length, d_model, output_dtype)


@checked
def binary_rows(positions: Int[Tensor, "*B N"], bits: int, *, overflow: str = "error",
                output_dtype: torch.dtype = torch.float32) -> Float[Tensor, "*B N m"]:
    """The m = ``bits`` binary digits of t as 0 and 1, the most significant first.

    ``overflow`` says what a position of 2^m or more is: ``error``, or ``wrap``, the last m digits, which some smaller position has too.

    Raises
    ------
    PositionRangeError
        a position below 0, or of 2^m or more under ``overflow="error"``.
    """
    require(require_count("bits", bits) <= 62, "bits", bits, "at most 62", "Positions are int64.")
    limit = 2**bits if require_choice("overflow", overflow, OVERFLOWS) == "error" else 2**63
    positions = _within(positions, limit, "Add a digit, or name overflow='wrap' and its collisions.")
    places = torch.arange(bits - 1, -1, -1, device=positions.device)
    return _floating(positions[..., None] >> places & 1, output_dtype)


class IntegerCode(nn.Module):
    """module(geometry) returns the :class:`StateRows` of :func:`integer_rows` at the query positions."""

    @checked
    def __init__(self, d_model: int, *, alpha: float = 1.0) -> None:
        super().__init__()
        self.d_model, self.alpha = require_count("d_model", d_model), alpha

    @checked
    def forward(self, geometry: AttentionGeometry) -> StateRows:
        return StateRows(rows=integer_rows(geometry.query_positions, self.d_model, alpha=self.alpha), mark="integer")


class NormalisedCode(nn.Module):
    """module(geometry) returns the :class:`StateRows` of :func:`normalised_rows` at the query positions.

    ``length`` is ``"current"``, the number of keys of the call, or a fixed number: another coordinate system, with a last position.
    """

    @checked
    def __init__(self, d_model: int, *, length: int | str) -> None:
        super().__init__()
        current = isinstance(length, str) and length == "current"
        self.d_model, self.length = require_count("d_model", d_model), length if current else require_count("length", length)

    @checked
    def forward(self, geometry: AttentionGeometry) -> StateRows:
        length = geometry.key_length if self.length == "current" else self.length
        return StateRows(rows=normalised_rows(geometry.query_positions, self.d_model, length=length), mark="normalised")


class BinaryCode(nn.Module):
    """module(geometry) returns the :class:`StateRows` of :func:`binary_rows` at the query positions; the width is ``bits``."""

    @checked
    def __init__(self, bits: int, *, overflow: str = "error") -> None:
        super().__init__()
        self.bits, self.overflow = require_count("bits", bits), require_choice("overflow", overflow, OVERFLOWS)

    @checked
    def forward(self, geometry: AttentionGeometry) -> StateRows:
        return StateRows(rows=binary_rows(geometry.query_positions, self.bits, overflow=self.overflow), mark="binary")


def _repeated(scalar: Float[Tensor, "*B N"], d_model: int, output_dtype: torch.dtype) -> Float[Tensor, "*B N D"]:
    return _floating(scalar[..., None], output_dtype).expand(*scalar.shape, require_count("d_model", d_model))


def _floating(rows: Tensor, output_dtype: torch.dtype) -> Tensor:
    require(output_dtype.is_floating_point, "output_dtype", output_dtype, "a floating-point dtype", "Rows are added to a state.")
    return rows.to(output_dtype)


def _within(positions: Tensor, limit: int, remedy: str) -> Int[Tensor, "*B N"]:
    """Positions as int64, checked on the host; a compiled graph has no values to look at and checks nothing."""
    positions = integers("positions", positions)
    if readable(positions):
        for value in (int(positions.min()), int(positions.max())):
            if not 0 <= value < limit:
                raise PositionRangeError("positions", value, f"0..{limit - 1}", remedy)
    return positions
