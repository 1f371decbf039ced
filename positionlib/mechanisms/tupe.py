"""TUPE's untied positions (Ke et al. 2021, sections 3.1 and 3.2; guolinke/TUPE 4c64ff7).

    s_hij = q_hi · k_hj / √(2d) + a_hij + b_hij        a_hij = (p_i U^Q)_h · (p_j U^K)_h / √(2d),  b_hij = W[bucket(j − i), h] (TUPE-R)

Where j is CLS, a is the learned other-to-CLS number; where i is CLS, it is CLS-to-other. The released code writes the column first
and the row second, so the pair (CLS, CLS) is CLS-to-other.

Contract
- coordinate source: the geometry's query and key positions; CLS is the row at ``cls_position``, by position and not by storage.
- changed tensor: the scores. b is added after the CLS edit, and no scale touches it.
- shape: a + b is [1|B, H, Q, K], computed once by module(geometry) and reused by every layer and batch row. With ``finish=False`` the
  parts are what is made once, [1|B, H, Q, D] and [1|B, H, K, D], and the fused kernel needs no more.
- parameter or buffer state: a table [max_length + 1, D] behind a LayerNorm, one query and one key projection with biases, and for
  TUPE-R a table [num_buckets + 1, H]. Row 0 makes CLS-to-other (p_0 · p_0), row 1 other-to-CLS (p_1 · p_1), row t + 1 is position t.
- training path: gradients of all layers meet in the one term; the row of a position past the training length stays untrained.
- runtime offset: a position without a row is refused; rectangular calls and decode steps use their own positions.
- failure modes: √d for √(2d), the row written before the column, a scaled relative bias, a bias made for other positions.
- compiled or exported: torch alone refuses a position without a row, and only the shape of a reused term's positions is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_count
from positionlib.forms import ByRow
from positionlib.geometry import AttentionGeometry
from positionlib.rules import T5Buckets, readable, require_ids
from positionlib.terms import Decomposition


@checked
def override_cls(scores: Float[Tensor, "*B Q K"], query_is_cls: Bool[Tensor, "*B Q"], key_is_cls: Bool[Tensor, "*B K"],
                 cls_to_other: Float[Tensor, "*B 1 1"], other_to_cls: Float[Tensor, "*B 1 1"]) -> Float[Tensor, "*B Q K"]:
    """Position scores with the CLS column replaced, then the CLS row: (CLS, CLS) is cls_to_other."""
    columns = torch.where(key_is_cls[..., None, :], other_to_cls, scores)
    return torch.where(query_is_cls[..., :, None], cls_to_other, columns)


@checked
def cls_buckets(rule: T5Buckets, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                cls_position: int | None = 0) -> Int[Tensor, "*B Q K"]:
    """Bucket ids of TUPE-R: the rule's own, the extra id num_buckets in the CLS column, then num_buckets / 2 in the CLS row.

    The bidirectional rule never gives num_buckets / 2: that would be a key after the query at distance 0. Without a CLS the rule's own are all.
    """
    require(rule.bidirectional, "bidirectional", rule.bidirectional, "True", "A causal rule uses bucket num_buckets / 2 for a distance.")
    own = rule.classes(key_positions[..., None, :] - query_positions[..., :, None])
    if cls_position is None:
        return own
    own = own.masked_fill(key_positions[..., None, :] == cls_position, rule.num_buckets)
    return own.masked_fill(query_positions[..., :, None] == cls_position, rule.num_buckets // 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Untied(Decomposition):
    """Content scores plus a bias of the positions that it was made for."""

    query_positions: Int[Tensor, "*B Q"]
    key_positions: Int[Tensor, "*B K"]

    def require_made_for(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> None:
        """Refuse a call with other positions."""
        for name, asked in (("query_positions", query_positions), ("key_positions", key_positions)):
            made = getattr(self, name)
            same = made.shape == asked.shape and (not readable(made) or torch.equal(made, asked))
            require(same, name, asked, "the positions that the term was made for", "Call the module with this geometry.")


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class UntiedScores(Untied):
    """Content scores plus one finished bias [1|B, H, Q, K], which belongs to the positions it was made for."""

    bias: Float[Tensor, "B H Q K"]

    @checked
    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        self.require_made_for(query_positions, key_positions)
        wanted = (*q.shape[1:3], k.shape[2])
        require(self.bias.shape in ((1, *wanted), (len(q), *wanted)), "bias", self.bias,
                f"[1 or {len(q)}, {wanted[0]} heads, {wanted[1]}, {wanted[2]}], as q and k", "Build the module for the model's heads.")
        return (q @ k.mT) * scale + self.bias.to(q.dtype)

    def slice_queries(self, start, stop):
        return replace(self, bias=self.bias[:, :, start:stop], query_positions=self.query_positions[..., start:stop])


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class UntiedRows(Untied):
    """The parts of that bias: rows whose products it is, ``query_rows`` scaled, and what replaces or joins them. Nothing is Q·K.

    ``cls`` has other-to-CLS and then CLS-to-other, one number a head; None where the model has no CLS, ``cls_position`` likewise.
    ``relative`` are the numbers of TUPE-R by the buckets of ``rule`` and :func:`cls_buckets`; None is TUPE-A.
    """

    query_rows: Float[Tensor, "B H Q D"]
    key_rows: Float[Tensor, "B H K D"]
    cls: Float[Tensor, "2 H"] | None
    cls_position: int | None
    relative: Float[Tensor, "R H"] | None
    rule: T5Buckets | None

    def __post_init__(self) -> None:
        rows = None if self.rule is None else self.rule.num_buckets + 1
        require((self.relative is None) == (rows is None) and (rows is None or len(self.relative) == rows), "relative", self.relative,
                "no table, as there is no rule" if rows is None else f"[{rows}, heads], a row a bucket and one for CLS", "Build the term with TUPE.")

    def finished(self) -> UntiedScores:
        """The same term with the bias of every pair."""
        queries, keys = self.query_positions, self.key_positions
        bias = torch.einsum("bhqd,bhkd->bhqk", self.query_rows, self.key_rows)
        if self.cls is not None:
            to_cls, to_other = self.cls[:, :, None, None]
            bias = override_cls(bias, queries[..., None, :] == self.cls_position, keys[..., None, :] == self.cls_position, to_other, to_cls)
        if self.relative is not None:
            bias = bias + self.relative[cls_buckets(self.rule, queries, keys, self.cls_position)].movedim(-1, -3)
        return UntiedScores(bias=bias, query_positions=queries, key_positions=keys, score_scale=self.score_scale)

    @checked
    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        return self.finished().scores(q, k, query_positions, key_positions, scale)

    def by_row(self) -> ByRow:
        """What a backend needs to make the bias in a tile."""
        rows = ByRow(query_rows=self.query_rows, key_rows=self.key_rows, cls=self.cls, cls_position=self.cls_position)
        if self.relative is None:
            return rows
        bins = self.rule.num_buckets
        # A CLS pair has a bucket to itself, so its two numbers are one.
        cls = None if self.cls is None else self.cls + self.relative[[bins, bins // 2]]
        return replace(rows, rule=self.rule, bias=self.relative[:bins], cls=cls)

    def slice_queries(self, start, stop):
        return replace(self, query_rows=self.query_rows[:, :, start:stop], query_positions=self.query_positions[..., start:stop])


class TUPE(nn.Module):
    """The stack's position term: module(geometry) returns :class:`UntiedScores` or :class:`UntiedRows`, to be handed to every layer.

    Parameters
    ----------
    max_length : positions 0..max_length−1 have a row.
    relative : bucket rule of TUPE-R, with edge ``transformers`` as released; None is TUPE-A.
    cls_position : the position whose row and column are replaced, or None for a model without CLS.
    finish : whether the bias of all pairs is made here, once for all layers. False hands on its parts, O(Q + K), which the fused kernel
        takes; every other backend makes the bias from them in each layer.

    Raises
    ------
    PositionContractError
        sizes that do not divide, a causal bucket rule, a geometry without a shared frame.
    PositionRangeError
        a position without a row.
    """

    @checked
    def __init__(self, heads: int, d_model: int, max_length: int, *, relative: T5Buckets | None = None, cls_position: int | None = 0,
                 finish: bool = True) -> None:
        super().__init__()
        self.heads, self.max_length, self.relative = require_count("heads", heads), require_count("max_length", max_length), relative
        require(require_count("d_model", d_model) % heads == 0, "d_model", d_model, f"a multiple of {heads} heads", "Heads share it equally.")
        self.d_head = d_model // heads
        require(relative is None or isinstance(relative, T5Buckets) and relative.bidirectional, "relative", relative,
                "bidirectional T5Buckets, or None for TUPE-A", "TUPE is an encoder: a causal rule uses the bucket kept for the CLS row.")
        self.cls_position = None if cls_position is None else require_count("cls_position", cls_position, 0)
        require(max_length > (cls_position or 0), "cls_position", cls_position, f"a position below {max_length}", "CLS is one of the rows.")
        self.finish = finish
        self.weight = nn.Parameter(torch.empty(max_length + 1, d_model))
        nn.init.normal_(self.weight, std=0.02)
        self.norm = nn.LayerNorm(d_model)
        self.query_proj, self.key_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.relative_weight = None if relative is None else nn.Parameter(torch.empty(relative.num_buckets + 1, heads))
        if relative is not None:
            nn.init.normal_(self.relative_weight, std=0.02)

    @property
    def scale(self) -> float:
        """1/√(2d), of content and of position scores."""
        return 1.0 / math.sqrt(2 * self.d_head)

    @checked
    def row_scores(self, query_rows: Int[Tensor, "*B Q"], key_rows: Int[Tensor, "*B K"]) -> Float[Tensor, "*B H Q K"]:
        """Scaled products of table rows, before the CLS edit."""
        q, k = self._projected()
        for name, ids in (("query_rows", query_rows), ("key_rows", key_rows)):
            require_ids(name, ids, len(self.weight))
        return torch.einsum("...hqd,...hkd->...hqk", _rows(q, query_rows), _rows(k, key_rows))

    def _projected(self) -> tuple[Float[Tensor, "R H D"], Float[Tensor, "R H D"]]:
        """The table's rows as queries, scaled, and as keys."""
        rows = self.norm(self.weight)
        # Autocast rounds a product; the numbers that join it in the term have the parameters' dtype.
        q, k = (p(rows).to(self.weight.dtype).unflatten(-1, (self.heads, -1)) for p in (self.query_proj, self.key_proj))
        return q * self.scale, k

    @checked
    def forward(self, geometry: AttentionGeometry) -> UntiedScores | UntiedRows:
        """The term of this call, for all layers."""
        geometry.require_shared_frame("TUPE positions")
        queries, keys = geometry.query_positions, geometry.key_positions
        for positions in (queries, keys):
            if readable(positions) and int(positions.max()) >= self.max_length:
                raise PositionRangeError("position", int(positions.max()), f"0..{self.max_length - 1}: the table has {self.weight.shape[0]} rows, "
                                         "one of them before position 0", "Shorten the call or train a longer table.")
        q, k = self._projected()
        # Row 1 against itself, and row 0 against itself: one number a head.
        cls = None if self.cls_position is None else torch.stack([(q[row] * k[row]).sum(-1) for row in (1, 0)])
        term = UntiedRows(query_rows=_batched(_rows(q, queries + 1)), key_rows=_batched(_rows(k, keys + 1)), cls=cls, cls_position=self.cls_position,
                          relative=self.relative_weight, rule=self.relative, query_positions=queries, key_positions=keys, score_scale=self.scale)
        return term.finished() if self.finish else term

    @checked
    def buckets(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> Int[Tensor, "*B Q K"]:
        """Bucket id of every pair under TUPE-R, with the two CLS ids where the model has a CLS."""
        return cls_buckets(self.relative, query_positions, key_positions, self.cls_position)

    def extra_repr(self) -> str:
        return f"{self.heads}, max_length={self.max_length}, relative={self.relative}, cls_position={self.cls_position}, finish={self.finish}"


def _rows(table: Float[Tensor, "R H D"], ids: Int[Tensor, "*B N"]) -> Float[Tensor, "*B H N D"]:
    return table[ids].transpose(-3, -2)


def _batched(rows: Tensor) -> Tensor:
    return rows if rows.ndim == 4 else rows[None]
