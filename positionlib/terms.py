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

from positionlib.contract import checked
from positionlib.errors import PositionContractError, require, require_choice
from positionlib.forms import ByClass, ByOffset
from positionlib.rules import check_sign

SLOPE_FORMS = ("relative", "symmetric", "key_index", "key_minus_last")


class ClassRule(Protocol):
    """A rule that maps signed offsets to class ids 0..num_classes-1.

    A fused kernel takes a rule that also has ``max_distance``, beyond which the class no longer changes on either side.
    """

    num_classes: int

    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]: ...


@dataclass(frozen=True, eq=False)
class Term:
    """A description of what changes. ``score_scale`` multiplies q·k; None means 1/√d_head.

    ``requires`` names the only visibility that the term was made for, ``causal`` or ``bidirectional``; None admits both. It lets the
    guard of a mechanism outlive the geometry that its module was shown.
    """

    score_scale: float | None = None
    requires: str | None = None

    def admits(self, causal: bool) -> bool:
        """Whether a geometry of this causality is one that the term was made for."""
        wanted = "causal" if causal else "bidirectional"
        return self.requires is None or require_choice("requires", self.requires, ("causal", "bidirectional")) == wanted

    def by_offset(self, offsets: Int[Tensor, "W"], scale: float, dtype: torch.dtype) -> ByOffset | None:
        """The term on a line of key-minus-query offsets, in ``dtype``; None where more than the offset decides."""
        return None

    def by_class(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"], scale: float) -> ByClass | None:
        """The term as what its pairs read by class; None where it is none of that."""
        return None

    def slice_queries(self, start: int, stop: int) -> Term:
        """The term of query rows start..stop-1; a term that stores something for each pair returns that part of it."""
        return self


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class StateRows(Term):
    """Coordinate rows to be added to the state once, before any projection. ``mark`` names the mechanism that made them."""

    rows: Float[Tensor, "*B N D"]
    mark: str

    @checked
    def add_to(self, x: Float[Tensor, "*B N D"], *, again: bool = False, batch_first: bool = True) -> Float[Tensor, "*B N D"]:
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


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassBias(ScoreBias):
    """One learned number for each (class of offset, head): ``table`` is [classes, H], whatever layout the module stores."""

    table: Float[Tensor, "R H"]
    rule: ClassRule
    sign: str

    def __post_init__(self) -> None:
        check_sign(self.sign)
        _check_rule(self.rule)
        require(self.table.shape[0] == self.rule.num_classes, "table", self.table,
                f"[{self.rule.num_classes}, heads]", "Orient the table as [classes, heads]: name table_layout where it is loaded.")

    @property
    def heads(self) -> int:
        return self.table.shape[1]

    @checked
    def materialize(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                    dtype: torch.dtype = torch.float32) -> Float[Tensor, "B H Q K"]:
        classes = self.rule.classes(_offsets(query_positions, key_positions, self.sign))
        bias = self.table.to(dtype)[classes]  # [*B, Q, K, H]
        return _batched(bias.movedim(-1, -3))

    def by_offset(self, offsets, scale, dtype):
        return self._line(offsets, scale, dtype)


@checked
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

    @checked
    def materialize(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                    dtype: torch.dtype = torch.float32) -> Float[Tensor, "B H Q K"]:
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


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Relation(Term):
    """A learned vector for each class of offset, added to the keys in the scores and to the values in the sum.

    Tables are [C, D], shared by the heads, or [H, C, D]; either may be None (the variants without a value or key side).
    """

    key_table: Float[Tensor, "*H C D"] | None
    value_table: Float[Tensor, "*H C Dv"] | None
    rule: ClassRule
    sign: str

    def __post_init__(self) -> None:
        check_sign(self.sign)
        self._check_tables()

    def _check_tables(self) -> None:
        _check_rule(self.rule)
        for name in ("key_table", "value_table"):
            t = getattr(self, name)
            require(t is None or (t.ndim in (2, 3) and t.shape[-2] == self.rule.num_classes), name, t,
                    f"[{self.rule.num_classes}, D] or [H, {self.rule.num_classes}, D]", "Give one row for each class of the rule.")

    @checked
    def classes(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> Int[Tensor, "*B Q K"]:
        """Class id of every pair."""
        return self.rule.classes(_offsets(query_positions, key_positions, self.sign))

    def by_offset(self, offsets, scale, dtype):
        classes = self.classes(offsets.new_zeros(1), offsets)[0]
        keys, values = (None if t is None else t.to(dtype).index_select(-2, classes) for t in (self.key_table, self.value_table))
        return ByOffset(query_rows=keys, value_rows=values)

    def by_class(self, query_positions, key_positions, scale):
        return ByClass(rule=self.rule, sign=self.sign, query_rows=self.key_table, value_rows=self.value_table)


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition(Term):
    """Scores that are a sum of products of content and position; the mechanism's own subclass says of which."""

    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        """The finished scores, content and ``scale`` included."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, kw_only=True)
class VisibilityOnly(Term):
    """No coordinate anywhere: order can come only from which keys a row may read."""

    requires: str = "causal"

    def by_offset(self, offsets, scale, dtype):
        return ByOffset()


def _offsets(query_positions: Tensor, key_positions: Tensor, sign: str) -> Tensor:
    offset = key_positions[..., None, :] - query_positions[..., :, None]
    return offset if sign == "key_minus_query" else -offset


def _check_rule(rule: object) -> None:
    known = hasattr(rule, "num_classes") and hasattr(rule, "classes")
    require(known, "rule", rule, "a rule with num_classes and classes(offset)", "T5Buckets and Clip are two.")


def _batched(bias: Tensor) -> Tensor:
    return bias if bias.ndim == 4 else bias[None]


@checked
def require_heads(term: ScoreBias, heads: int) -> None:
    """Refuse a bias whose head count is not the call's: it would broadcast one head's preference over all."""
    if term.heads != heads:
        raise PositionContractError("term", term.heads, f"{heads} heads, as q has",
                                    "Build the term for all heads and slice it by head ids on a shard.")
