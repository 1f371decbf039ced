"""Failures of 0x09F: a mask, a traversal, a unit or one side of a relation is lost, and every shape stays.

Convention of the section: a mask is True where a key may be read; relations are [query, key]; order[n] is the old row that comes to n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.attention import attend
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.graph import Graph, GraphBias
from positionlib.mechanisms.grid import Grid, LearnedGrid
from positionlib.mechanisms.grid_resize import GridResize
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.mechanisms.time2vec import Time2Vec, TimeAxis, Timestamps

SECTION = "0x09F"
ORDER = torch.tensor([2, 0, 3, 1])


def waves(*shape: int) -> Float[Tensor, "..."]:
    """Different numbers of any shape, the same on every machine."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) + 1).reshape(shape)


def averaged(values: list[float], layers: int, *, causal: bool = True) -> Float[Tensor, "N"]:
    """Rows of width 1 after layers that average all keys a row may read: attention with every score 0."""
    geometry = AttentionGeometry.causal_self(len(values)) if causal else AttentionGeometry.encoder(len(values))
    rows = torch.tensor(values, dtype=torch.float64).view(1, 1, -1, 1)
    for _ in range(layers):
        rows = attend(torch.zeros_like(rows), torch.zeros_like(rows), rows, NoPE()(geometry) if causal else None, geometry)
    return rows.flatten()


# --- guards ---------------------------------------------------------------------------------------------------------

def check_family(found: tuple[str, str]) -> None:
    """Refuse a runtime whose position family is not the checkpoint's: (declared, built)."""
    declared, built = found
    require(declared == built, "position_family", built, f"{declared!r}, as trained", "Positions are part of the trained function: nothing is added or deleted at load time.")


def check_coordinates(coordinates: dict[str, Int[Tensor, "N"]]) -> None:
    """Refuse coordinates that do not name the cells of the 2 x 5 content rows, which are stored row by row."""
    wanted = Grid({"row": 2, "col": 5}, "row_major").coordinates(torch.arange(10))
    for axis in ("row", "col"):
        for token in (coordinates[axis] != wanted[axis]).nonzero().flatten().tolist()[:1]:
            require(False, f"{axis} of token {token}", int(coordinates[axis][token]), str(int(wanted[axis][token])), "Compile coordinates in the traversal of the content rows.")


class Nodes(NamedTuple):
    """Node ids in storage order, and the graph whose pairs are used with them."""

    ids: Int[Tensor, "N"]
    graph: Graph


def check_pairs(found: Nodes) -> None:
    """Refuse pair state that is not that of the stored nodes: distance [a, b] must be the distance of nodes ids[a] and ids[b]."""
    wanted = PATH.distance[found.ids][:, found.ids]
    for a, b in (found.graph.distance != wanted).nonzero().tolist()[:1]:
        require(False, f"distance of rows {a} and {b}", int(found.graph.distance[a, b]), f"{int(wanted[a, b])}, that of nodes {int(found.ids[a])} and {int(found.ids[b])}",
                "Move pair state on both axes: R[order][:, order], or graph.permute(order).")


def check_claim(claim: Claim) -> None:
    """Refuse a statement that fails on its counterexample."""
    require(claim.holds, "claim", claim.statement, "a statement that holds", f"Counterexample: {claim.counterexample}.")


# --- cases: NoPE ----------------------------------------------------------------------------------------------------

register(Failure(
    id="0x09F.lost-mask", section=SECTION, kind="wrong_answer", title="A backend drops the causal mask of a model without positions",
    broken=lambda: averaged([8.0, 0.0, 4.0, 4.0], 2, causal=False), right=lambda: averaged([8.0, 0.0, 4.0, 4.0], 2),
    guard=lambda geometry: NoPE()(geometry), guard_name="causal-nope-admission", broken_subject=lambda: AttentionGeometry.encoder(4),
    right_subject=lambda: AttentionGeometry.causal_self(4), source="article 0x0C; a training kernel without a causal mask: paiml/entrenar#310"))


def _read(positions: bool) -> Float[Tensor, "1 1 4 4"]:
    """One head over four rows, with or without the sinusoidal rows that it was made for."""
    geometry = AttentionGeometry.causal_self(4)
    x = waves(1, 4, 4)
    heads = (Sinusoidal(4, output_dtype=torch.float64).add(x, geometry) if positions else x)[:, None]
    return attend(heads, heads, heads, None, geometry)


register(Failure(
    id="0x09F.deleted-positions", section=SECTION, kind="wrong_answer", title="Positions are deleted from a trained model, since NoPE can work",
    broken=lambda: _read(False), right=lambda: _read(True), guard=check_family, guard_name="checkpoint-family",
    broken_subject=lambda: ("sinusoidal", "causal_nope"), right_subject=lambda: ("sinusoidal", "sinusoidal"),
    source="article 0x0C; the reverse, rotations on layers trained without: timtoole02/Camelid#535, onnxruntime/mobius#233"))


def _blind(statement: str, layers: int) -> Claim:
    last = [float(averaged(order, layers)[-1]) for order in ([8.0, 0.0], [0.0, 8.0])]
    return Claim(statement, last[0] == last[1], {"layers": layers, "last rows": last})


register(Failure(
    id="0x09F.no-geometry", section=SECTION, kind="false_claim", title="A causal stack without positions cannot see order",
    broken=lambda: _blind("Two layers of causal averaging give one last row for [8, 0] and [0, 8].", 2),
    right=lambda: _blind("One layer of causal averaging gives one last row for [8, 0] and [0, 8].", 1),
    guard=check_claim, guard_name="alternative-coordinates", source="article 0x0C, 'Treating NoPE as an architecture with no geometry'"))

# --- cases: grids ---------------------------------------------------------------------------------------------------


def _coordinates(traversal: str) -> dict[str, Int[Tensor, "10"]]:
    return Grid({"row": 2, "col": 5}, traversal).coordinates(torch.arange(10))


register(Failure(
    id="0x09F.traversal", section=SECTION, kind="wrong_answer", title="Coordinates run down the columns, patches along the rows",
    broken=lambda: _coordinates("column_major"), right=lambda: _coordinates("row_major"), guard=check_coordinates, guard_name="grid-geometry",
    source="article 0x0C; huggingface/diffusers#11309; vllm-project/vllm#52932"))

LINE, SQUARE = Grid({"row": 1, "col": 9}, "row_major"), Grid({"row": 3, "col": 3}, "row_major")


def _table(resize: GridResize | None) -> LearnedGrid:
    module = LearnedGrid(LINE, 1, resize=resize).double()
    module.load_state_dict({"weight": torch.arange(9.0).square()[:, None].double()})
    return module


def _on_square(unchanged: bool) -> Float[Tensor, "9 1"]:
    """A table trained on a line of nine patches, used on a 3 x 3 grid."""
    module = _table(None if unchanged else GridResize("bilinear", align_corners=False, antialias=False))
    return module.weight.detach() if unchanged else module(AttentionGeometry.encoder(9), SQUARE).rows.detach()


register(Failure(
    id="0x09F.same-count", section=SECTION, kind="wrong_answer", title="Nine patches in a line are taken for three by three",
    broken=lambda: _on_square(True), right=lambda: _on_square(False), guard=lambda module: module(AttentionGeometry.encoder(9), SQUARE), guard_name="grid-geometry",
    broken_subject=lambda: _table(None), right_subject=lambda: _table(GridResize("bilinear", align_corners=False, antialias=False)),
    source="huggingface/pytorch-image-models#2737"))

# --- cases: time ----------------------------------------------------------------------------------------------------

AXIS = TimeAxis(origin=100.0, unit_seconds=1.0, clock="session", zone=None, declared_range=(0.0, 60.0))


def times(scale: float) -> Timestamps:
    """Three events of one session, 0, 1.5 and 4 seconds after its origin, multiplied by ``scale`` and declared as seconds."""
    return Timestamps(values=torch.tensor([100.0, 101.5, 104.0], dtype=torch.float64) * scale, unit="s", clock="session", zone=None)


def _rows(scale: float) -> Float[Tensor, "3 3"]:
    axis = TimeAxis(origin=100.0, unit_seconds=1.0, clock="session", zone=None)  # no declared range: nothing notices
    module = Time2Vec(3, axis, function="sin", linear="first", missing="error", output_dtype=torch.float64)
    with torch.no_grad():
        module.omega.copy_(torch.tensor([1.0, 0.5, 2.0]))
        module.phi.zero_()
    return module(times(scale)).rows.detach()


register(Failure(
    id="0x09F.milliseconds", section=SECTION, kind="wrong_answer", title="Milliseconds are read as seconds",
    broken=lambda: _rows(1000.0), right=lambda: _rows(1.0), guard=AXIS.tau, guard_name="time-units",
    broken_subject=lambda: times(1000.0), right_subject=lambda: times(1.0), source="article 0x0C; nttcslab/msm-mae#2 (seconds for milliseconds)"))

# --- cases: graphs --------------------------------------------------------------------------------------------------

PATH = Graph.from_edges(4, [(a, b) for a in range(4) for b in range(4) if abs(a - b) == 1])  # 0 - 1 - 2 - 3


def _moved(both: bool) -> Graph:
    return PATH.permute(ORDER) if both else PATH


def _graph_attention(both: bool) -> Float[Tensor, "1 1 4 3"]:
    """Nodes stored in another order, with pair distances that did or did not come along; brought back to node order."""
    module = GraphBias(1, 3).double()
    with torch.no_grad():
        module.weight.copy_(-torch.arange(5.0)[:, None])
    rows, geometry = waves(1, 1, 4, 3)[:, :, ORDER], AttentionGeometry.encoder(4)
    out = attend(rows, rows, rows, module(_moved(both)), geometry)
    return out[:, :, ORDER.argsort()].detach()


register(Failure(
    id="0x09F.one-sided", section=SECTION, kind="wrong_answer", title="Nodes are reordered and their distances stay",
    broken=lambda: _graph_attention(False), right=lambda: _graph_attention(True), guard=check_pairs, guard_name="graph-transport",
    broken_subject=lambda: Nodes(ORDER, _moved(False)), right_subject=lambda: Nodes(ORDER, _moved(True)),
    source="article 0x0C; rampasek/GraphGPS#40 (outputs that change with node order)"))


def _disconnected(own_row: bool) -> Float[Tensor, "3 3"]:
    """Bias of three nodes, 0 - 1 and 2 alone; −1 either reads the last of the distance rows or has a row of its own."""
    graph = Graph.from_edges(3, [(0, 1), (1, 0)])
    if not own_row:
        return torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64)[graph.distance]  # an index of −1 is the last row
    module = GraphBias(1, 2).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.0], [-1.0], [-2.0], [-9.0]]))
    return module(graph).pairs[0].detach()


def check_disconnected(bias: Float[Tensor, "3 3"]) -> None:
    """Refuse a bias in which a disconnected pair has the number of a distance."""
    require(float(bias[0, 2]) not in (0.0, -1.0, -2.0), "bias of disconnected nodes 0 and 2", float(bias[0, 2]), "a row of its own, −9",
            "Give disconnected pairs a class: GraphBias does.")


register(Failure(
    id="0x09F.minus-one", section=SECTION, kind="wrong_answer", title="−1 for a disconnected pair is used as an index",
    broken=lambda: _disconnected(False), right=lambda: _disconnected(True), guard=check_disconnected, guard_name="graph-transport",
    source="dmlc/dgl#5915 (shortest_dist returns −1 for unreachable pairs)"))
