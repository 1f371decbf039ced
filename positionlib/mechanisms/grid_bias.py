"""A learned bias of pairs on several axes (Xu et al. 2021, section 2.1; Huang et al. 2022, section 2.1).

    b_hij = Σ_a W_a[h, bucket_a(t_a[j] − t_a[i])]          s_hij = (q_hi · k_hj + b_hij) / √d   (inside)  or  q_hi · k_hj / √d + b_hij

Contract
- coordinate source: on the axis named ``position`` the geometry's query and key positions; on every other axis explicit coordinates of
  the same rows, as the cells of a grid or the edges of a box (LayoutLMv3: x is x0, y is the lower edge y1).
- changed tensor: the scores. Nothing here hides a pair.
- shape: bias [1|B, H, Q, K].
- parameter or buffer state: one table [H, buckets] an axis, as LayoutLMv3 stores its linear weights, shared by all layers.
- training path: a bucket collects the gradient of all pairs in it (transformers 008f5c8 looks LayoutLMv3's up without gradient).
- runtime offset: a decode step gives the coordinates of its query rows and those of all keys.
- failure modes: the bias outside the scale, the upper edge for the lower one, one axis' buckets for the other, a sort that leaves the
  coordinates behind, a leading token's −1 taken for a coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import require, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.grid import axis_tables
from positionlib.rules import T5Buckets, integers, readable
from positionlib.terms import ScoreBias

POSITION = "position"  # the axis whose coordinates are the geometry's own


@dataclass(frozen=True, eq=False, kw_only=True)
class AxisBias(ScoreBias):
    """The sum of one bucketed table an axis. Coordinates are those of the call's rows, in their order."""

    tables: Mapping[str, Float[Tensor, "H R"]]
    rules: Mapping[str, T5Buckets]
    query_coordinates: Mapping[str, Int[Tensor, "*B Q"]]
    key_coordinates: Mapping[str, Int[Tensor, "*B K"]]

    def __post_init__(self) -> None:
        axes = self.tables.keys()
        require(len(axes) > 0 and axes == self.rules.keys(), "rules", sorted(self.rules), f"the axes of the tables {sorted(axes)}", "One rule reads one table.")
        for axis, table in self.tables.items():
            shape = (self.heads, self.rules[axis].num_classes)
            require(table.shape == shape, f"tables.{axis}", table, f"{list(shape)}, [heads, buckets]",
                    "One head's numbers would serve all, or a bucket have none.")

    @property
    def heads(self) -> int:
        return next(iter(self.tables.values())).shape[0]

    def classes(self, axis: str, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> Int[Tensor, "*B Q K"]:
        """Bucket of every pair on one axis, key minus query."""
        queries, keys = query_positions, key_positions
        if axis != POSITION:
            queries, keys = self.query_coordinates[axis], self.key_coordinates[axis]
            for name, mine, asked in (("query_coordinates", queries, query_positions), ("key_coordinates", keys, key_positions)):
                require(mine.shape[-1] == asked.shape[-1], f"{name}.{axis}", mine, f"{asked.shape[-1]} coordinates, one a row",
                        "Call the module with this geometry and its rows' coordinates.")
        return self.rules[axis].classes(keys[..., None, :] - queries[..., :, None])

    @checked
    def materialize(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"],
                    dtype: torch.dtype = torch.float32) -> Float[Tensor, "B H Q K"]:
        wide = torch.promote_types(dtype, torch.float32)
        bias = sum(table.T.to(wide)[self.classes(axis, query_positions, key_positions)].movedim(-1, -3) for axis, table in self.tables.items()).to(dtype)
        return bias if bias.ndim == 4 else bias[None]

    def slice_queries(self, start, stop):
        return replace(self, query_coordinates={axis: c[..., start:stop] for axis, c in self.query_coordinates.items()})


class GridBias(nn.Module):
    """module(geometry, query_coordinates, key_coordinates) returns :class:`AxisBias`.

    Parameters
    ----------
    rules : bidirectional buckets of each axis, as ``{"position": T5Buckets(32, 128), "x": T5Buckets(64, 256), "y": T5Buckets(64, 256)}``
        for LayoutLMv3, whose edge is ``transformers``.
    inside_scale : True where the checkpoint divides the bias by √d with the content (LayoutLMv3), False where it adds it to scaled scores.

    Raises
    ------
    PositionContractError
        no axis, causal buckets, coordinates for other axes, of another shape, or negative; a geometry without a shared frame.
    """

    @checked
    def __init__(self, heads: int, rules: Mapping[str, T5Buckets], *, inside_scale: bool) -> None:
        super().__init__()
        require_count("heads", heads)
        require(isinstance(rules, Mapping) and len(rules) > 0 and all(isinstance(r, T5Buckets) and r.bidirectional for r in rules.values()), "rules", rules,
                "bidirectional T5Buckets by the name of their axis", "A page or an image is read both ways.")
        require(isinstance(inside_scale, bool), "inside_scale", inside_scale, "True or False", "LayoutLMv3's is True.")
        self.rules, self.inside_scale = dict(rules), inside_scale
        self.weight = axis_tables("rules", {axis: (heads, rule.num_buckets) for axis, rule in rules.items()})

    @checked
    def forward(self, geometry: AttentionGeometry, query_coordinates: Mapping[str, Int[Tensor, "*B Q"]],
                key_coordinates: Mapping[str, Int[Tensor, "*B K"]]) -> AxisBias:
        """The bias of this call; the coordinates name every axis but ``position``. In self-attention both are the same."""
        geometry.require_shared_frame("an axis bias")
        sides = {"query_coordinates": self._checked("query_coordinates", query_coordinates, geometry.query_length, geometry),
                 "key_coordinates": self._checked("key_coordinates", key_coordinates, geometry.key_length, geometry)}
        batch = geometry.batch
        for name, axis, c in ((name, axis, c) for name, side in sides.items() for axis, c in side.items() if c.ndim == 2):
            batch = len(c) if batch is None else batch
            require(len(c) == batch, f"{name}.{axis}", c, f"a batch of {batch}", "Give the coordinates of this call's batch rows, or [N] for all of them.")
        return AxisBias(tables=dict(self.weight.items()), rules=self.rules, inside_scale=self.inside_scale, **sides)

    def _checked(self, name: str, given: Mapping[str, Tensor], length: int, geometry: AttentionGeometry) -> dict[str, Tensor]:
        wanted = set(self.rules) - {POSITION}
        require(isinstance(given, Mapping) and set(given) == wanted, name, given, f"one tensor for each of {sorted(wanted)}", "Name the axes.")
        whole = {axis: integers(f"{name}.{axis}", c) for axis, c in given.items()}
        for axis, c in whole.items():
            require(c.ndim in (1, 2) and c.shape[-1] == length, f"{name}.{axis}", c, f"[{length}] or [B, {length}], one a row", "Match the rows of the call.")
            require(c.device == geometry.device, f"{name}.{axis}", c.device, f"device {geometry.device}, as the geometry", "Move both to one device.")
            require(not readable(c) or int(c.min()) >= 0, f"{name}.{axis}", c, "coordinates of at least 0",
                    "A leading token stands in no cell: give it a place, as LayoutLMv3 gives its CLS a box.")
        return whole

    def extra_repr(self) -> str:
        return f"{self.rules}, inside_scale={self.inside_scale}"
