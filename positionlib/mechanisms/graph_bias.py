"""The bias terms of graph mechanisms (:mod:`positionlib.mechanisms.graph`): numbers that are given by pair of nodes, or by class of distance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require
from positionlib.forms import ByClass
from positionlib.rules import readable, require_ids
from positionlib.terms import ScoreBias


class NodeBias(ScoreBias):
    """One number for each (head, node pair), ``pairs`` [H, N, N]; positions are node ids, so a permuted geometry carries its pairs along."""

    @property
    def heads(self) -> int:
        return self.pairs.shape[0]

    @checked
    def materialize(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                    dtype: torch.dtype = torch.float32) -> Float[Tensor, "B H Q K"]:
        bias = _of_nodes(self.pairs.to(dtype).movedim(0, -1), query_positions, key_positions).movedim(-1, -3)
        return bias if bias.ndim == 4 else bias[None]


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class PairBias(NodeBias):
    """A bias whose number for every pair is given."""

    pairs: Float[Tensor, "H N N"]

    def by_class(self, query_positions, key_positions, scale):
        bias = self.materialize(query_positions, key_positions, self.pairs.dtype)
        return ByClass(pair_bias=bias * scale if self.inside_scale else bias)


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class DistanceBias(NodeBias):
    """A bias by class of distance, ``table`` [C, H] of ``classes`` [N, N], and where the graph has edges a number a pair for their ``path``."""

    table: Float[Tensor, "C H"]
    classes: Int[Tensor, "N N"]
    path: Float[Tensor, "H N N"] | None

    def __post_init__(self) -> None:
        require_ids("classes", self.classes, len(self.table))
        shape = (self.heads, *self.classes.shape)
        require(self.path is None or self.path.shape == shape, "path", self.path, f"{shape}, a number for each head and pair of nodes", "Match the classes.")

    @property
    def heads(self) -> int:
        return self.table.shape[1]

    @property
    def pairs(self) -> Float[Tensor, "H N N"]:
        """The finished numbers."""
        pairs = embedding(self.classes, self.table).movedim(-1, 0)
        return pairs if self.path is None else pairs + self.path

    def by_class(self, query_positions, key_positions, scale):
        path = ByClass() if self.path is None else PairBias(pairs=self.path, inside_scale=self.inside_scale).by_class(query_positions, key_positions, scale)
        narrow = torch.uint8 if len(self.table) < 255 else torch.int32  # with room for a class that has no row
        classes = _of_nodes(self.classes.to(narrow), query_positions, key_positions)
        return replace(path, classes=classes, bias=self.table * scale if self.inside_scale else self.table)


def _of_nodes(pairs: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """pairs[i, j, ...] of the nodes that stand in a call: [*B, Q, K, ...]."""
    for name, ids in (("query_positions", query_positions), ("key_positions", key_positions)):
        if readable(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(pairs):
            raise PositionRangeError(name, int(ids.max()), f"node ids in 0..{len(pairs) - 1}", "Positions name nodes, not slots.")
    return pairs[query_positions[..., :, None], key_positions[..., None, :]]
