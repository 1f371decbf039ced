"""Released relatives of Shaw's tables, each under its own name.

    BERT relative_key         s_ij = (q_i·k_j + q_i·r_ij) / √d                r_ij = R[i − j + P − 1], no clipping, no value side
    BERT relative_key_query   s_ij = (q_i·k_j + q_i·r_ij + k_j·r_ij) / √d     (transformers 4.57, removed in 5.x)
    Music Transformer         Shaw's equations with a_ij = R[j − i + k − 1] for |j − i| < k and a_ij = 0 beyond the table
                              (Huang et al. 2018; tensor2tensor bafdc1b, attention "relative v2")

Contract
- coordinate source: the geometry's positions in one frame. BERT subtracts query − key, the Music Transformer key − query.
- changed tensor: the scores, inside the scale; the Music Transformer's value sum too, where it has a value table.
- shape: scores [B, H, Q, K], output [B, H, Q, D].
- parameters: BERT one table [2P−1, D] for all heads of a layer; Music [rows, D] or [H, rows, D] a side, with k rows for the past
  (the last is distance 0) or 2k−1 for both directions.
- training path: as Shaw's, with 1/√d in key-side gradients; no gradient comes from pairs beyond a zero-padded table.
- runtime offset: true positions. With a cache BERT's code gives all queries of a call the last key's position, which is right for
  one token and wrong for a chunk; here each query has its own.
- failure modes: Shaw's sign or border row with these tables (no shape differs), an offset of P or more (refused by name), and skewed
  entries above the diagonal, which are leftovers of other rows.
- compiled or exported: nothing looks at BERT's offsets before torch's lookup refuses one without a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import require, require_choice, require_count
from positionlib.forms import ByClass, ByOffset
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.shaw import RelationTables, compact_key_scores, require_rows
from positionlib.rules import integers
from positionlib.terms import Decomposition, Relation, Term

BERT_VARIANTS = ("relative_key", "relative_key_query")


@checked
@dataclass(frozen=True)
class BertDistances:
    """Class i − j + P − 1 of a query-minus-key offset; an offset of P or more, either way, has no row and is refused."""

    max_positions: int

    @property
    def num_classes(self) -> int:
        return 2 * self.max_positions - 1

    @property
    def max_distance(self) -> int:
        """The largest distance with a row."""
        return self.max_positions - 1

    @checked
    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Table rows, int64; PositionRangeError names the first offset without one."""
        offset = integers("offset", offset)
        return require_rows("offset", offset, offset + self.max_positions - 1, self.num_classes)


@checked
@dataclass(frozen=True)
class ZeroPadded:
    """Class j − i + k − 1 within the table, and one more class, the last, for every offset beyond it: its vector is zero.

    ``causal`` tables have rows for the offsets −(k−1)..0, the others for −(k−1)..k−1.
    """

    max_distance: int
    causal: bool

    @property
    def rows(self) -> int:
        """Rows of the stored table, without the zero row."""
        return self.max_distance if self.causal else 2 * self.max_distance - 1

    @property
    def num_classes(self) -> int:
        return self.rows + 1

    @checked
    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Class ids, int64, of key-minus-query offsets."""
        row = integers("offset", offset) + self.max_distance - 1
        return row.masked_fill((row < 0) | (row >= self.rows), self.rows)


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class QueryKeyRelation(Decomposition):
    """BERT's relative_key_query: the same relation vector meets the query and the key."""

    table: Float[Tensor, "C D"]
    rule: BertDistances

    @checked
    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        require(self.table.shape[-1] == q.shape[-1], "weight", self.table, f"width {q.shape[-1]}, as q", "Give rows as wide as a head.")
        classes, table = self.rule.classes(query_positions[..., :, None] - key_positions[..., None, :]), self.table.to(q.dtype)
        from_query = compact_key_scores(q, table, classes)
        from_key = compact_key_scores(k, table, classes.mT).mT
        return (q @ k.mT + from_query + from_key) * scale

    def by_offset(self, offsets, scale, dtype):
        rows = self.table.to(dtype).index_select(0, self.rule.classes(-offsets))
        return ByOffset(query_rows=rows, key_rows=rows)

    def by_class(self, query_positions, key_positions, scale):
        return ByClass(rule=self.rule, sign="query_minus_key", key_sign="query_minus_key", query_rows=self.table, key_rows=self.table)


class BertRelative(nn.Module):
    """module(geometry) returns BERT's relative term: a :class:`Relation`, or a :class:`QueryKeyRelation` for relative_key_query.

    ``weight`` is the released ``distance_embedding.weight``, [2P−1, d_head].

    Raises
    ------
    PositionRangeError
        two positions of the geometry that are P or more apart, hidden ones included, as the released lookup has it.
    """

    def __init__(self, max_positions: int, d_head: int, *, variant: str) -> None:
        super().__init__()
        self.variant, self.rule = require_choice("variant", variant, BERT_VARIANTS), BertDistances(require_count("max_positions", max_positions))
        self.weight = nn.Parameter(torch.randn(self.rule.num_classes, require_count("d_head", d_head)) * 0.02)

    @checked
    def forward(self, geometry: AttentionGeometry) -> Term:
        """The term of this call."""
        self.rule.classes(geometry.offsets("query_minus_key"))  # refuse here, not in the middle of a stack
        if self.variant == "relative_key":
            return Relation(key_table=self.weight, value_table=None, rule=self.rule, sign="query_minus_key")
        return QueryKeyRelation(table=self.weight, rule=self.rule)

    def extra_repr(self) -> str:
        return f"max_positions={self.rule.max_positions}, variant={self.variant!r}"


class MusicRelative(RelationTables):
    """module(geometry) returns a :class:`Relation` that is zero beyond the table.

    Parameters
    ----------
    max_distance : k; rows for distances below k.
    causal : True for the masked form (rows for the past only), False for both directions; part of the checkpoint, so no default.
    heads, sides : as :class:`positionlib.mechanisms.shaw.ShawRelative`'s. The released default is sides="keys".
    """

    def __init__(self, max_distance: int, d_head: int, *, causal: bool, heads: int | None = None, sides: str = "keys",
                 d_value: int | None = None) -> None:
        require(isinstance(causal, bool), "causal", causal, "True or False", "The masked form has k rows, the other 2k−1.")
        rule = ZeroPadded(require_count("max_distance", max_distance), causal)
        super().__init__(rule.rows, d_head, heads=heads, sides=sides, d_value=d_value)
        self.rule = rule

    @checked
    def forward(self, geometry: AttentionGeometry) -> Relation:
        """The relation of this call."""
        geometry.require_shared_frame("relative distances")
        require(geometry.causal == self.rule.causal, "causal", self.rule.causal, f"{geometry.causal}, as the geometry's causal is",
                "A causal table has no row for the future: use the table of this stack.")
        tables = {name: None if table is None else _with_zero_row(table)
                  for name, table in (("key_table", self.key_table), ("value_table", self.value_table))}
        return Relation(**tables, rule=self.rule, sign="key_minus_query", requires="causal" if self.rule.causal else "bidirectional")

    @checked
    def rows_in_order(self, length: int) -> Float[Tensor, "*H R D"]:
        """Key vectors of the offsets −(L−1)..0 (causal) or −(L−1)..L−1: q times them is what ``skew`` aligns."""
        require(self.key_table is not None, "key_table", None, "a key side", "Build the module with sides='keys' or 'both'.")
        offsets = torch.arange(1 - require_count("length", length), 1 if self.rule.causal else length, device=self.key_table.device)
        return _with_zero_row(self.key_table)[..., self.rule.classes(offsets), :]

    def extra_repr(self) -> str:
        return f"max_distance={self.rule.max_distance}, causal={self.rule.causal}"


@checked
def skew(compact: Float[Tensor, "*B L L"]) -> Float[Tensor, "*B L L"]:
    """From columns of offsets −(L−1)..0 to columns of keys 0..L−1, by one pad and one reshape (the memory-saving procedure).

    Entry [i, j] becomes compact[i, j − i + L − 1] for j ≤ i. Above the diagonal stand zeros and entries of the next row: mask them.
    """
    length = _rows(compact, compact.shape[-1])
    return nn.functional.pad(compact, (1, 0)).reshape(*compact.shape[:-2], length + 1, length)[..., 1:, :]


@checked
def unskew(aligned: Float[Tensor, "*B L L"]) -> Float[Tensor, "*B L L"]:
    """The way back, for the value side: entry [i, c] becomes aligned[i, i + c − L + 1] where that key exists."""
    length = _rows(aligned, aligned.shape[-1])
    return nn.functional.pad(aligned, (0, 0, 1, 0)).reshape(*aligned.shape[:-2], length, length + 1)[..., 1:]


@checked
def skew_bidirectional(compact: Float[Tensor, "*B L R"]) -> Float[Tensor, "*B L L"]:
    """From columns of offsets −(L−1)..L−1 to columns of keys: entry [i, j] is compact[i, j − i + L − 1], all of them defined."""
    length = _rows(compact, (compact.shape[-1] + 1) // 2)
    require(compact.shape[-1] == 2 * length - 1, "compact", compact, f"{2 * length - 1} offsets for {length} rows",
            "A bidirectional layer needs 2L−1 distance columns; L of them belong to a causal one.")
    flat = nn.functional.pad(nn.functional.pad(compact, (0, 1)).flatten(-2), (0, length - 1))
    return flat.reshape(*compact.shape[:-2], length + 1, 2 * length - 1)[..., :length, length - 1 :]


def _with_zero_row(table: Float[Tensor, "*H R D"]) -> Float[Tensor, "*H C D"]:
    return nn.functional.pad(table, (0, 0, 0, 1))


def _rows(x: Float[Tensor, "*B L R"], wanted: int) -> int:
    require(x.ndim >= 2 and x.shape[-2] == wanted > 0, "compact", x, f"{wanted} rows for these columns",
            "The skewing procedure is for self-attention of equal lengths, [.., L, L] causal and [.., L, 2L−1] in both directions.")
    return wanted
