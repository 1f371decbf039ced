"""Relative keys and values (Shaw et al. 2018, section 3.2; tensor2tensor bafdc1b).

    e_ij = q_i · (k_j + a^K_ij) / √d        z_i = Σ_j α_ij (v_j + a^V_ij)        a_ij = R[clip(j − i, −k, k) + k]

Contract
- coordinate source: the geometry's query and key positions in one frame, or given edge types; the sign of an offset is named.
- changed tensor: the scores, inside the 1/√d, and the value sum; either side may be left out, which is another model.
- shape: scores [B, H, Q, K] and output [B, H, Q, D]; class ids are [Q, K], or [B, Q, K] for positions or edges of each batch row.
- parameters: one key and one value table of 2k+1 rows, [2k+1, D] shared by the heads (the paper) or [H, 2k+1, D].
- training path: ∂L/∂R^K_r = Σ g_ij q_i / √d over the pairs of class r, ∂L/∂R^V_r = Σ α_ij g_i; shared tables sum over the heads,
  and border rows collect every offset from k on.
- runtime offset: a decode step needs its true position; tensor2tensor puts Q queries at the end of K keys.
- failure modes: the sign reversed, a local arange in decode, a table of another k, a missing value side, a relation factor outside
  the scale, and [Q, K, D] relation vectors in memory, which ``memory_ledger`` counts.
- compiled or exported: nothing looks at edge types before torch's lookup refuses one without a row.

The released relatives (BERT's relative_key, the Music Transformer) are in :mod:`positionlib.mechanisms.shaw_variants`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.attention import class_mass, pick
from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.forms import ByClass
from positionlib.geometry import AttentionGeometry
from positionlib.rules import Clip, check_sign, integers, readable, require_ids
from positionlib.terms import Relation

SIDES = ("both", "keys", "values")


class RelationTables(nn.Module):
    """The key and value tables of a relation: ``key_table`` and ``value_table``, None where the side is missing.

    Parameters
    ----------
    classes : rows of a table.
    heads : None for tables shared by the heads, else their number, and each head has its own.
    sides : both, keys or values.
    d_value : width of the values, when it is not d_head.
    """

    def __init__(self, classes: int, d_head: int, *, heads: int | None, sides: str, d_value: int | None) -> None:
        super().__init__()
        require_choice("sides", sides, SIDES)
        lead = () if heads is None else (require_count("heads", heads),)
        widths = {"key_table": require_count("d_head", d_head), "value_table": d_head if d_value is None else require_count("d_value", d_value)}
        for name, other in (("key_table", "values"), ("value_table", "keys")):
            table = None if sides == other else nn.Parameter(torch.randn(*lead, classes, widths[name]) * d_head**-0.5)
            self.register_parameter(name, table)


class ShawRelative(RelationTables):
    """module(geometry) returns a :class:`Relation` whose class is the clipped offset.

    Parameters
    ----------
    max_distance : k; the tables have 2k+1 rows.
    sign : ``key_minus_query`` (the paper, tensor2tensor) or ``query_minus_key``. No default: no shape tells them apart.

    Raises
    ------
    PositionContractError
        settings that are no counts or no known names; a geometry without a shared frame.
    """

    def __init__(self, max_distance: int, d_head: int, *, sign: str, heads: int | None = None, sides: str = "both",
                 d_value: int | None = None) -> None:
        rule = Clip(max_distance)
        super().__init__(rule.num_classes, d_head, heads=heads, sides=sides, d_value=d_value)
        self.rule, self.sign = rule, check_sign(sign)

    @checked
    def forward(self, geometry: AttentionGeometry) -> Relation:
        """The relation of this call."""
        geometry.require_shared_frame("clipped offsets")
        return Relation(key_table=self.key_table, value_table=self.value_table, rule=self.rule, sign=self.sign)

    def extra_repr(self) -> str:
        return f"max_distance={self.rule.max_distance}, sign={self.sign!r}"


@checked
@dataclass(frozen=True)
class EdgeTypes:
    """Class ids that are given, not computed from an offset: 0..num_classes−1."""

    num_classes: int

    @checked
    def classes(self, edge_types: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The ids themselves, int64, after a look at their range (a compiled graph has no values to look at)."""
        return require_rows("edge_types", edge_types, edge_types, self.num_classes)


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeRelation(Relation):
    """A relation whose class of every pair is given: ``edge_types[.., i, j]`` labels the edge from query i to key j."""

    edge_types: Int[Tensor, "*B Q K"]
    sign: None = None  # a label has no sign; that of j to i is another entry

    def __post_init__(self) -> None:
        self._check_tables()

    def classes(self, query_positions, key_positions):
        return self.edge_types

    def by_offset(self, offsets, scale, dtype):
        return None

    def by_class(self, query_positions, key_positions, scale):
        return ByClass(classes=self.edge_types, query_rows=self.key_table, value_rows=self.value_table)

    def slice_queries(self, start, stop):
        return replace(self, edge_types=self.edge_types[..., start:stop, :])


class EdgeRelative(RelationTables):
    """module(geometry, edge_types) returns an :class:`EdgeRelation`: Shaw's equations over typed graph edges.

    Raises
    ------
    PositionRangeError
        an edge type outside 0..num_types−1; "no edge" needs a type of its own, or visibility.
    PositionContractError
        types that are no integers, or not of the geometry's [Q, K], or batched where the geometry is not.
    """

    def __init__(self, num_types: int, d_head: int, *, heads: int | None = None, sides: str = "both", d_value: int | None = None) -> None:
        super().__init__(require_count("num_types", num_types), d_head, heads=heads, sides=sides, d_value=d_value)
        self.rule = EdgeTypes(num_types)

    @checked
    def forward(self, geometry: AttentionGeometry, edge_types: Int[Tensor, "*B Q K"]) -> EdgeRelation:
        """The relation of this call."""
        pairs = (geometry.query_length, geometry.key_length)
        # The batch must stand in the geometry too, where attend() compares it with q's.
        shapes = [pairs] if geometry.batch is None else [pairs, (geometry.batch, *pairs)]
        require(isinstance(edge_types, Tensor) and tuple(edge_types.shape) in shapes, "edge_types", edge_types,
                " or ".join(map(str, shapes)), "One type a pair; for types of each batch row give the geometry positions of each batch row.")
        require(edge_types.device == geometry.device, "edge_types", edge_types.device, str(geometry.device), "Move them to one device.")
        return EdgeRelation(key_table=self.key_table, value_table=self.value_table, rule=self.rule, edge_types=self.rule.classes(edge_types))

    def extra_repr(self) -> str:
        return f"num_types={self.rule.num_classes}"


@checked
def direct_rows(table: Float[Tensor, "*H C D"], classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q K D"]:
    """The relation vector of every pair, [1|B, 1|H, Q, K, D]: the object that the compact schedule never builds."""
    require_ids("classes", classes, table.shape[-2])
    require(classes.ndim in (2, 3), "classes", classes, "[Q, K] or [B, Q, K]", "Class ids are shared by the heads.")
    if table.ndim == 2:
        rows = table[classes].unsqueeze(-4)
    else:
        rows = table[:, classes] if classes.ndim == 2 else table[:, classes].transpose(0, 1)
    return rows if rows.ndim == 5 else rows[None]


@checked
def direct_key_scores(q: Float[Tensor, "B H Q D"], table: Float[Tensor, "*H C D"], classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q K"]:
    """q_i · a_ij by gathering a vector for each pair, unscaled: the plainest oracle."""
    _check_heads(table, q)
    return torch.einsum("bhqd,bhqkd->bhqk", q, direct_rows(table, classes))


@checked
def compact_key_scores(q: Float[Tensor, "B H Q D"], table: Float[Tensor, "*H C D"], classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q K"]:
    """The same from the scores of all classes, q · Rᵀ [B, H, Q, C], of which every pair takes its own."""
    _check_heads(table, q)
    return pick(q @ table.mT, classes)


@checked
def direct_value_sum(probabilities: Float[Tensor, "B H Q K"], table: Float[Tensor, "*H C D"],
                     classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q D"]:
    """Σ_j α_ij a_ij by gathering a vector for each pair."""
    _check_heads(table, probabilities)
    return torch.einsum("bhqk,bhqkd->bhqd", probabilities, direct_rows(table, classes))


@checked
def compact_value_sum(probabilities: Float[Tensor, "B H Q K"], table: Float[Tensor, "*H C D"],
                      classes: Int[Tensor, "*B Q K"]) -> Float[Tensor, "B H Q D"]:
    """The same from the probability that falls on each class, [B, H, Q, C]."""
    _check_heads(table, probabilities)
    return class_mass(probabilities, classes, table.shape[-2]) @ table


def _check_heads(table: Tensor, by_head: Tensor) -> None:
    require(table.ndim == 2 or table.ndim == 3 and len(table) == by_head.shape[1], "table", table, f"[C, D], or [{by_head.shape[1]}, C, D]",
            "Give one table for all heads, or one for each.")


@dataclass(frozen=True)
class RelationLedger:
    """Numbers of elements. ``parameters`` are the two tables; ``direct_*`` and ``compact_*`` the temporaries that a schedule adds to the
    ``scores`` that both hold."""

    parameters: int
    direct_keys: int
    direct_values: int
    compact_keys: int
    compact_values: int
    scores: int


@checked
def memory_ledger(batch: int, heads: int, queries: int, keys: int, d_head: int, max_distance: int, *, per_head: bool = False,
                  batched_classes: bool = False, d_value: int | None = None) -> RelationLedger:
    """What Shaw's tables and the two schedules hold, in elements.

    Direct: [Q, K, D], times H for tables of each head, times B for class ids of each batch row. Compact: [B, H, Q, 2k+1] a side.
    The compact one is not always smaller: with shared tables and ids it is where B · H · (2k+1) < K · D.
    """
    sizes = dict(batch=batch, heads=heads, queries=queries, keys=keys, d_head=d_head, d_value=d_head if d_value is None else d_value)
    b, h, q, k, d, dv = (require_count(name, size) for name, size in sizes.items())
    classes, tables = Clip(max_distance).num_classes, h if per_head else 1
    gathers = tables * (b if batched_classes else 1)
    return RelationLedger(parameters=tables * classes * (d + dv), direct_keys=gathers * q * k * d, direct_values=gathers * q * k * dv,
                          compact_keys=b * h * q * classes, compact_values=b * h * q * classes, scores=b * h * q * k)


@checked
def require_rows(field: str, values: Int[Tensor, "*shape"], ids: Int[Tensor, "*shape"], rows: int) -> Int[Tensor, "*shape"]:
    """Return ``ids`` when all are in 0..rows−1; the refusal names the value behind the first that is not, and the row count."""
    if readable(ids):
        outside = (ids < 0) | (ids >= rows)
        if bool(outside.any()):
            raise PositionRangeError(field, int(values[outside][0]), f"one of the values that the {rows} rows are for",
                                     "This table neither clips nor wraps: shorten the call or use a table that reaches so far.")
    return ids

