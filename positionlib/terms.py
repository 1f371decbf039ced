"""What a mechanism may change: the kinds of term.

A term is a description (tables, a class rule, slopes), built from tensors alone. The eager reference expands it to the exact
[1|B, H, Q, K] it means; a kernel evaluates the same description inside a tile and never builds that object.

==================  =======================================  ==============================
kind                changes                                  examples
==================  =======================================  ==============================
StateRows           the input state [.., N, D]               sinusoidal, learned absolute
ScoreBias           the scores [1|B, H, Q, K]                T5 (ClassBias), ALiBi (SlopeBias)
Relation            scores and the value sum                 Shaw
Decomposition       the scores as a sum of q, k and          Transformer-XL, DeBERTa, TUPE
                    position products
QKTransform         q and k before their product             rotary
VisibilityOnly      nothing: the mask carries the order      causal NoPE
==================  =======================================  ==============================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.errors import PositionContractError, require, require_choice
from positionlib.rules import check_sign, integers, readable

SLOPE_FORMS = ("relative", "symmetric", "key_index", "key_minus_last")
PAIRINGS = ("interleaved", "half_split")


class ClassRule(Protocol):
    """A rule that maps signed offsets to class ids 0..num_classes-1.

    A fused kernel takes a rule that also has ``max_distance``, beyond which the class no longer changes on either side.
    """

    num_classes: int

    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]: ...


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


@dataclass(frozen=True, eq=False)
class Term:
    """A description of what changes. ``score_scale`` multiplies q·k; None means 1/√d_head."""

    score_scale: float | None = None

    def by_offset(self, offsets: Int[Tensor, "W"], scale: float, dtype: torch.dtype) -> ByOffset | None:
        """The term on a line of key-minus-query offsets, in ``dtype``; None where more than the offset decides."""
        return None

    def slice_queries(self, start: int, stop: int) -> Term:
        """The term of query rows start..stop-1; a term that stores something for each pair returns that part of it."""
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class StateRows(Term):
    """Coordinate rows to be added to the state once, before any projection. ``mark`` names the mechanism that made them."""

    rows: Float[Tensor, "*B N D"]
    mark: str

    def add_to(self, x: Float[Tensor, "B N D"], *, again: bool = False, batch_first: bool = True) -> Float[Tensor, "B N D"]:
        """x + rows, in x's dtype, rounded once. ``batch_first=False`` names a state [N, B, D], which its shape cannot tell.

        The result remembers the mark, and adding the same mechanism's rows to it a second time is refused unless ``again``
        says that this is meant. The memory ends with the next operation on the tensor, and there is none in a compiled
        graph: it guards the seam between two modules that both add positions, not a whole network.

        Raises
        ------
        PositionContractError
            rows and state of different length or width, or a second application.
        """
        # Only the batch may share rows: one position spread over many rows is a wrong coordinate of the right shape.
        state, shared = (x.shape if batch_first else x.transpose(0, 1).shape), self.rows.shape[:-2]
        require(x.dtype.is_floating_point and state[-2:] == self.rows.shape[-2:] and shared in ((), (1,), state[:-2]), "x", x, f"a floating-point state that ends in {tuple(self.rows.shape)}",
                "Add coordinates of the model's own width to [B, N, D] rows, after the projector.")
        marks = getattr(x, "_position_marks", ())
        require(again or self.mark not in marks, "x", x, f"a state without {self.mark} coordinates",
                "The coordinates are already in this state: drop one of the two additions, or pass again=True.")
        rows = self.rows if batch_first else self.rows[:, None] if self.rows.ndim == 2 else self.rows.transpose(0, 1)
        wide = torch.promote_types(x.dtype, rows.dtype)
        positioned = (x.to(wide) + rows.to(wide)).to(x.dtype)
        if not torch.compiler.is_compiling():
            positioned._position_marks = (*marks, self.mark)
        return positioned


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreBias(Term):
    """A finite preference added to the scores. It never hides a key: that is visibility's work.

    ``inside_scale`` adds the bias before the scores are scaled, which shrinks it by √d_head (Falcon); every paper adds it after.
    """

    inside_scale: bool = False

    @property
    def heads(self) -> int:
        raise NotImplementedError

    def materialize(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                    dtype: torch.dtype = torch.float32) -> Float[Tensor, "B H Q K"]:
        """The exact bias, [1, H, Q, K] when the positions are shared by the batch, else [B, H, Q, K]."""
        raise NotImplementedError

    def _line(self, offsets: Tensor, scale: float, dtype: torch.dtype) -> ByOffset:
        """The bias that a query at 0 has for keys at ``offsets``."""
        bias = self.materialize(offsets.new_zeros(1), offsets, dtype)[0, :, 0]
        return ByOffset(bias=bias * scale if self.inside_scale else bias)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassBias(ScoreBias):
    """One learned number for each (class of offset, head): ``table`` is [classes, H], whatever layout the module stores."""

    table: Float[Tensor, "R H"]
    rule: ClassRule
    sign: str

    def __post_init__(self) -> None:
        check_sign(self.sign)
        require(self.table.ndim == 2 and self.table.shape[0] == self.rule.num_classes, "table", self.table,
                f"[{self.rule.num_classes}, heads]", "Orient the table as [classes, heads]: name table_layout where it is loaded.")

    @property
    def heads(self) -> int:
        return self.table.shape[1]

    def materialize(self, query_positions, key_positions, dtype=torch.float32):
        classes = self.rule.classes(_offsets(query_positions, key_positions, self.sign))
        bias = self.table.to(dtype)[classes]  # [*B, Q, K, H]
        return _batched(bias.movedim(-1, -3))

    def by_offset(self, offsets, scale, dtype):
        return self._line(offsets, scale, dtype)


@dataclass(frozen=True, eq=False, kw_only=True)
class SlopeBias(ScoreBias):
    """One number a head times a distance. ``form`` says which distance the source stores.

    - ``relative``: −m·max(i−j, 0), the paper's penalty; the future gets 0 and must be hidden by the mask.
    - ``symmetric``: −m·|i−j| (x-transformers); not the paper's, it orders a bidirectional model by distance alone.
    - ``key_index``: +m·j, the same row for every query (ALiBi's repository, BLOOM, Falcon). Equal to ``relative`` after a
      softmax under a causal mask, and only there; in float32 the difference of two large products loses digits.
    - ``key_minus_last``: +m·(j − last key), MPT.

    ``rounded`` is a dtype in which slope and product are rounded first (Falcon: bfloat16).
    """

    slopes: Float[Tensor, "H"]
    form: str = "relative"
    rounded: torch.dtype | None = None

    def __post_init__(self) -> None:
        require_choice("form", self.form, SLOPE_FORMS)
        require(self.slopes.ndim == 1, "slopes", self.slopes, "one slope a head, [H]", "Flatten it: a second axis would broadcast.")
        require(self.rounded is None or isinstance(self.rounded, torch.dtype) and self.rounded.is_floating_point, "rounded", self.rounded,
                "a floating-point dtype or None", "Falcon's is torch.bfloat16.")

    @property
    def heads(self) -> int:
        return self.slopes.shape[0]

    def materialize(self, query_positions, key_positions, dtype=torch.float32):
        # A distance above 2^8 has no bfloat16: the product is made wide and rounded once, unless the source rounds first.
        cast = self.rounded or torch.promote_types(dtype, torch.float32)
        if self.form in ("relative", "symmetric"):
            distance = _offsets(query_positions, key_positions, "query_minus_key")
            distance = -(distance.abs() if self.form == "symmetric" else distance.clamp_min(0))
        else:
            last = key_positions.amax(-1, keepdim=True) if self.form == "key_minus_last" and key_positions.shape[-1] else 0
            distance = (key_positions - last)[..., None, :].expand(*key_positions.shape[:-1], query_positions.shape[-1], -1)
        return _batched(self.slopes.to(cast)[:, None, None] * distance[..., None, :, :].to(cast)).to(dtype)

    def by_offset(self, offsets, scale, dtype):
        # m·j is m·(j−i) and one number a query, which the softmax removes; a product that was rounded first does not split so.
        return None if self.rounded is not None and self.form.startswith("key") else self._line(offsets, scale, dtype)


@dataclass(frozen=True, eq=False, kw_only=True)
class Relation(Term):
    """A learned vector for each class of offset, added to the keys in the scores and to the values in the sum.

    Tables are [C, D], shared by the heads, or [H, C, D]; either may be None (the variants without a value or key side).
    """

    key_table: Float[Tensor, "*H C D"] | None
    value_table: Float[Tensor, "*H C D"] | None
    rule: ClassRule
    sign: str

    def __post_init__(self) -> None:
        check_sign(self.sign)
        self._check_tables()

    def _check_tables(self) -> None:
        for name in ("key_table", "value_table"):
            t = getattr(self, name)
            require(t is None or (t.ndim in (2, 3) and t.shape[-2] == self.rule.num_classes), name, t,
                    f"[{self.rule.num_classes}, D] or [H, {self.rule.num_classes}, D]", "Give one row for each class of the rule.")

    def classes(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> Int[Tensor, "*B Q K"]:
        """Class id of every pair."""
        return self.rule.classes(_offsets(query_positions, key_positions, self.sign))

    def by_offset(self, offsets, scale, dtype):
        classes = self.classes(offsets.new_zeros(1), offsets)[0]
        keys, values = (None if t is None else t.to(dtype).index_select(-2, classes) for t in (self.key_table, self.value_table))
        return ByOffset(query_rows=keys, value_rows=values)


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition(Term):
    """Scores that are a sum of products of content and position; the mechanism's own subclass says of which."""

    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        """The finished scores, content and ``scale`` included."""
        raise NotImplementedError


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
        require(self.inverse_frequency.ndim == 1, "inverse_frequency", self.inverse_frequency, "one frequency a pair, [P]",
                "Flatten it: a second axis would broadcast.")

    def rotate(self, x: Float[Tensor, "B H N D"], positions: Int[Tensor, "*B N"]) -> Float[Tensor, "B H N D"]:
        """x rotated by the position of each row, which may be negative; computed in at least float32 and rounded to x's dtype once.

        Phases are float64: an angle is off by at most |position| · ω · 2⁻⁵² radians, 5·10⁻⁷ at position 2³¹. From 2⁵³ on float64 no
        longer tells neighbours apart.

        Raises
        ------
        PositionContractError
            rows that are no [B, H, N, D] of the right width, positions of another length or batch, no integers, or beyond ±2⁵³.
        """
        width, positions = 2 * self.inverse_frequency.shape[0], integers("positions", positions)
        require(isinstance(x, Tensor) and x.ndim == 4 and x.dtype.is_floating_point, "x", x, "a floating-point [B, H, N, D]", "Split the heads first.")
        fits = width <= x.shape[-1] if self.d_head is None else x.shape[-1] == self.d_head
        require(fits, "x", x, f"heads of width {self.d_head or f'{width} or more'}", "Build the term for the model's d_head.")
        require(tuple(positions.shape) in (x.shape[2:3], (x.shape[0], x.shape[2])), "positions", positions, f"{x.shape[2]} a sequence, shared or of "
                f"each of {x.shape[0]} batch rows", "Give one position a row; a layout [B, N, H, D] needs a transpose.")
        if readable(positions):
            require(-(2**53) <= int(positions.min()) <= int(positions.max()) <= 2**53, "positions", int(positions.abs().max()),
                    "positions up to 2^53, which a float64 phase can tell apart", "Subtract a common origin: only differences matter.")
        wide = torch.promote_types(x.dtype, torch.float32)
        phase = positions[..., None, :, None].to(torch.float64) * self.inverse_frequency.to(positions.device, torch.float64)
        cos, sin = phase.cos().to(wide), phase.sin().to(wide)
        turned, rest = x[..., :width].to(wide), x[..., width:]
        if self.pairing == "interleaved":
            a, b = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            out = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return torch.cat((out.to(x.dtype), rest), -1)

    def by_offset(self, offsets, scale, dtype):
        return ByOffset()  # of rotated queries and keys


@dataclass(frozen=True, eq=False, kw_only=True)
class VisibilityOnly(Term):
    """No coordinate anywhere: order can come only from which keys a row may read."""

    requires: str = "causal"

    def by_offset(self, offsets, scale, dtype):
        return ByOffset()


def _offsets(query_positions: Tensor, key_positions: Tensor, sign: str) -> Tensor:
    offset = key_positions[..., None, :] - query_positions[..., :, None]
    return offset if sign == "key_minus_query" else -offset


def _batched(bias: Tensor) -> Tensor:
    return bias if bias.ndim == 4 else bias[None]


def require_heads(term: ScoreBias, heads: int) -> None:
    """Refuse a bias whose head count is not the call's: it would broadcast one head's preference over all."""
    if term.heads != heads:
        raise PositionContractError("term", term.heads, f"{heads} heads, as q has",
                                    "Build the term for all heads and slice it by head ids on a shard.")
