"""T5's relative bias (Raffel et al. 2020, section 2.1).

    s_hij = q_hi · k_hj + W[bucket(j − i), h]          no 1/√d: T5 folds the scale into its initialisation

Contract: the coordinates are the geometry's query and key positions, key minus query; the scores [1|B, H, Q, K] change; one
learned table of num_buckets · H numbers for a stack, whose first layer owns it; gradients of a bucket sum over every pair in it
and over every layer that reuses the bias; a decode step needs the query's true position. It fails by a local arange in decode, by
bidirectional buckets in a causal decoder, by a transposed table, and by a bias made for another head order.

Table layouts: ``buckets_heads`` in transformers 5.24, ``heads_buckets`` in T5X cc342d4 and LayoutLMv3.
"""

from __future__ import annotations

from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.rules import T5Buckets
from positionlib.terms import ClassBias

TABLE_LAYOUTS = ("buckets_heads", "heads_buckets")


class T5Bias(nn.Module):
    """module(geometry) returns a :class:`ClassBias`.

    Parameters
    ----------
    bidirectional : True for an encoder, False for a causal decoder; part of the checkpoint, so it has no default.
    edge : rounding of the bucket edges, see :class:`positionlib.rules.T5Buckets`.
    score_scale : factor of q·k. 1.0 is T5's; a model that divides (MPNet) passes None for 1/√d_head.

    Raises
    ------
    PositionContractError
        bucket settings that the rule refuses; a geometry without a shared frame; bidirectional buckets under a causal
        geometry, or causal buckets under one that shows the future.
    """

    def __init__(self, heads: int, num_buckets: int = 32, max_distance: int = 128, *, bidirectional: bool, edge: str = "exact",
                 table_layout: str = "buckets_heads", score_scale: float | None = 1.0) -> None:
        super().__init__()
        self.heads = heads = require_count("heads", heads)
        require(score_scale is None or isinstance(score_scale, float) and isfinite(score_scale), "score_scale", score_scale,
                "a finite float, or None for 1/√d_head", "T5's is 1.0.")
        self.rule = T5Buckets(num_buckets, max_distance, bidirectional, edge)
        self.table_layout, self.score_scale = require_choice("table_layout", table_layout, TABLE_LAYOUTS), score_scale
        shape = (num_buckets, heads) if table_layout == "buckets_heads" else (heads, num_buckets)
        self.weight = nn.Parameter(torch.empty(shape))
        nn.init.normal_(self.weight, std=0.02)

    @property
    def table(self) -> Float[Tensor, "R H"]:
        """The table as [buckets, heads], whatever the stored layout."""
        return self.weight if self.table_layout == "buckets_heads" else self.weight.T

    @checked
    def forward(self, geometry: AttentionGeometry) -> ClassBias:
        """The bias of this call, [1|B, H, Q, K] once expanded."""
        geometry.require_shared_frame("T5 buckets")
        require(geometry.causal != self.rule.bidirectional, "bidirectional", self.rule.bidirectional,
                f"{not geometry.causal}, since the geometry's causal is {geometry.causal}",
                "An encoder's table is bidirectional, a causal decoder's is not: use the stack's own table.")
        return ClassBias(table=self.table, rule=self.rule, sign="key_minus_query", score_scale=self.score_scale,
                         requires="bidirectional" if self.rule.bidirectional else "causal")

    def extra_repr(self) -> str:
        r = self.rule
        return (f"{self.heads}, num_buckets={r.num_buckets}, max_distance={r.max_distance}, bidirectional={r.bidirectional}, "
                f"edge={r.edge!r}, table_layout={self.table_layout!r}")
