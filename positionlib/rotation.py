"""The term that turns queries and keys before their product.

It stands beside :mod:`positionlib.terms`, which describes the other kinds: rotary is a term of q and k, not of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import require, require_choice
from positionlib.rules import require_phase
from positionlib.terms import ByOffset, Term

PAIRINGS = ("interleaved", "half_split")


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class QKTransform(Term):
    """Rotate channel pairs of q and k by position times frequency; the first 2P channels turn and the others pass through.

    ``pairing`` says which two channels are a pair: ``interleaved`` 2c and 2c + 1, ``half_split`` c and c + P. ``d_head`` is the width
    of the heads it was made for; None rotates the first 2P channels of any wider head.

    A row rotated once at its own position stays right, whatever is appended: cache ``rotate(k, positions)``, and let
    ``rotate(q, positions)`` attend with term None. Another ``rotate(·, Δ)`` moves a cached row from position j to j + Δ.
    """

    inverse_frequency: Float[Tensor, "P"]
    pairing: str
    d_head: int | None = None

    def __post_init__(self) -> None:
        require_choice("pairing", self.pairing, PAIRINGS)

    @checked
    def rotate(self, x: Float[Tensor, "B H N D"], positions: Int[Tensor, "*B N"]) -> Float[Tensor, "B H N D"]:
        """x rotated by the position of each row, which may be negative; computed in at least float32 and rounded to x's dtype once.

        Phases are float64: an angle is off by at most |position| · ω · 2⁻⁵² radians, 5·10⁻⁷ at position 2³¹. From 2⁵³ on float64 no
        longer tells neighbours apart.

        Raises
        ------
        PositionContractError
            rows that are no [B, H, N, D] of the right width, positions of another length or batch, no integers, or beyond ±2⁵³.
        """
        self.require_width(x)
        require(tuple(positions.shape) in (x.shape[2:3], (x.shape[0], x.shape[2])), "positions", positions, f"{x.shape[2]} a sequence, shared or of "
                f"each of {x.shape[0]} batch rows", "Give one position a row; a layout [B, N, H, D] needs a transpose.")
        wide, width = torch.promote_types(x.dtype, torch.float32), 2 * self.inverse_frequency.shape[0]
        cos, sin = self.turns(positions, wide)[..., None, :, :, :].unbind(-2)
        turned, rest = x[..., :width].to(wide), x[..., width:]
        if self.pairing == "interleaved":
            a, b = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            out = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return torch.cat((out.to(x.dtype), rest), -1)

    @checked
    def turns(self, positions: Int[Tensor, "*B N"], dtype: torch.dtype) -> Float[Tensor, "*B N 2 P"]:
        """Cosines and sines of the angles of each row, made in float64 and rounded to ``dtype`` once."""
        require_phase("positions", positions)
        phase = positions[..., None].to(torch.float64) * self.inverse_frequency.to(positions.device, torch.float64)
        return torch.stack((phase.cos(), phase.sin()), -2).to(dtype)

    @checked
    def require_width(self, x: Float[Tensor, "B H N D"]) -> None:
        """Refuse rows of another width than the term was made for."""
        width = 2 * self.inverse_frequency.shape[0]
        fits = width <= x.shape[-1] if self.d_head is None else x.shape[-1] == self.d_head
        require(fits, "x", x, f"heads of width {self.d_head or f'{width} or more'}", "Build the term for the model's d_head.")

    def by_offset(self, offsets, scale, dtype):
        return ByOffset()  # of rotated queries and keys


def hand_case(pairing: str = "interleaved") -> tuple[Float[Tensor, "4"], Float[Tensor, "4"], QKTransform]:
    """q, k and a rotation that a pencil can follow: pair 0 turns by a quarter, pair 1 by a half turn a position, and whole numbers stay whole."""
    rows = torch.tensor([[1.0, 0.0, 1.0, 0.0], [2.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    speeds = torch.tensor([math.pi / 2, math.pi], dtype=torch.float64)
    return rows[0], rows[1], QKTransform(inverse_frequency=speeds, pairing=pairing, d_head=4)
