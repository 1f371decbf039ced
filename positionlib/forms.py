"""What a backend reads of a term in place of its pairs: numbers and rows for a line of offsets, by class, or by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ByOffset:
    """A term that depends on a pair's offset alone, written out for a line of W offsets: what a backend needs on runs of positions.

    With t the place of the pair's offset on the line,
    s_ij = scale · ((q_i + content_bias)·k_j + q_i·query_rows[t] + k_j·key_rows[t]) + bias[t],   z_i = Σ_j p_ij (v_j + value_rows[t]).
    None adds nothing; ``content`` False leaves out (q_i + content_bias)·k_j. Rows without H are shared by the heads.
    """

    bias: Float[Tensor, "H W"] | None = None
    query_rows: Float[Tensor, "*H W D"] | None = None
    key_rows: Float[Tensor, "*H W D"] | None = None
    value_rows: Float[Tensor, "*H W Dv"] | None = None
    content_bias: Float[Tensor, "H D"] | None = None
    content: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class ByClass:
    """A term whose pairs read numbers and rows by class: what the fused kernel needs of it, and of size N · C at most.

    With c the class of a pair, and c′ the one by which its key reads,
    s_ij = scale · (q_i·k_j + q_i·query_rows[c] + k_j·key_rows[c′]) + bias[c] + pair_bias_ij,   z_i = Σ_j p_ij (v_j + value_rows[c]).
    None adds nothing; ``content`` False leaves out q_i·k_j. Rows without H are shared by the heads.

    Attributes
    ----------
    rule, sign, key_sign : c is the rule's class of the offset with this sign, and c′ with ``key_sign``. The rule names a ``max_distance``,
        up to which all of its classes occur, on either side.
    classes : or a class for each pair, which is both c and c′.
    pair_bias : a number that the mechanism holds for each pair, [1|B, H, Q, K].
    """

    rule: object | None = None
    sign: str | None = None
    key_sign: str | None = None
    classes: Int[Tensor, "*B Q K"] | None = None
    query_rows: Float[Tensor, "*H C D"] | None = None
    key_rows: Float[Tensor, "*H C D"] | None = None
    value_rows: Float[Tensor, "*H C Dv"] | None = None
    bias: Float[Tensor, "C H"] | None = None
    pair_bias: Float[Tensor, "B H Q K"] | None = None
    content: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class ByLine:
    """A term whose queries meet the keys with one bias and a row for the pair's offset with another: what the fused kernel needs of it.

    s_ij = scale · ((q_i + content_bias)·k_j + (q_i + position_bias)·rows[clamp(j − i − first, 0, W − 1)]), the offset key minus query.
    The two ends of the line, W > 1, serve all offsets beyond.
    """

    rows: Float[Tensor, "H W D"]
    first: int
    content_bias: Float[Tensor, "H D"]
    position_bias: Float[Tensor, "H D"]


@runtime_checkable
class OnALine(Protocol):
    """A term that can be written as :class:`ByLine`."""

    def line(self, first: int, last: int) -> tuple[int, int]:
        """The offsets, key minus query, that have rows of their own where first..last occur."""

    def by_line(self, first: int, last: int) -> ByLine:
        """The term with a row for each of first..last."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ByTurn:
    """A term that turns pairs of channels before the product of q and k: cosines and sines of each row's angles, and which channels are pairs."""

    query_turns: Float[Tensor, "*B Q 2 P"]
    key_turns: Float[Tensor, "*B K 2 P"]
    interleaved: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class ByRow:
    """A term that is a product of two rows, one of the query's position and one of the key's.

    s_ij = scale · q_i·k_j + query_rows_i·key_rows_j + bias[c], with c the class of j − i by ``rule``. Where the key is at ``cls_position``
    the number ``cls[0]`` stands for all but the first product; then, where the query is, ``cls[1]``. None adds or replaces nothing.
    """

    query_rows: Float[Tensor, "*B H Q D"]
    key_rows: Float[Tensor, "*B H K D"]
    rule: object | None = None
    bias: Float[Tensor, "C H"] | None = None
    cls: Float[Tensor, "2 H"] | None = None
    cls_position: int | None = None


@runtime_checkable
class OfRows(Protocol):
    """A term that can be written as :class:`ByRow`, for the positions that it was made for."""

    def by_row(self) -> ByRow:
        """The term in its rows."""

    def require_made_for(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> None:
        """Refuse the positions of another call."""
