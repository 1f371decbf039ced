"""Graph permutation: store the nodes in another order and move all of their state, one side of it, or none."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from positionlib.attention import attend
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.graph import Graph
from positionlib.mechanisms.graph_bias import PairBias
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

NAMES = ("A", "B", "C", "D")
GRAPHS = {"path": ("path A–B–C–D", [(0, 1), (1, 2), (2, 3)]), "star": ("star around A", [(0, 1), (0, 2), (0, 3)]), "ring": ("ring A–B–C–D–A", [(0, 1), (1, 2), (2, 3), (3, 0)])}
ORDERS = ((0, 1, 2, 3), (3, 0, 1, 2), (2, 0, 3, 1), (3, 2, 1, 0), (0, 2, 1, 3))
MOVES = {"both": "rows and columns", "rows": "rows only", "none": "not at all"}
CONTENT = torch.tensor([[3.0], [0.0], [1.0], [5.0]], dtype=torch.float64)


@cache
def graph(kind: str) -> Graph:
    """One of the four-node graphs, its edges in both directions."""
    edges = GRAPHS[kind][1]
    return Graph.from_edges(4, [*edges, *((b, a) for a, b in edges)])


def relation(kind: str, order: tuple[int, ...], move: str) -> Tensor:
    """The distance matrix that is used with the stored nodes."""
    index, distance = torch.tensor(order), graph(kind).distance
    return {"both": lambda: distance[index][:, index], "rows": lambda: distance[index], "none": lambda: distance}[move]()


@cache
def outputs(kind: str, order: tuple[int, ...], move: str) -> Tensor:
    """One value a node, in the order A, B, C, D: attention by distance alone, each step further halving a weight."""
    index = torch.tensor(order)
    rows = CONTENT[index][None, None]
    bias = PairBias(pairs=-torch.log(torch.tensor(2.0, dtype=torch.float64)) * relation(kind, order, move)[None])
    out = attend(torch.zeros_like(rows), torch.zeros_like(rows), rows, bias, AttentionGeometry.encoder(4))
    return out[0, 0, index.argsort(), 0]


def _compute(kind: str, order: tuple[int, ...], move: str) -> list:
    index, used = torch.tensor(order), relation(kind, order, move)
    wrong = (used != graph(kind).distance[index][:, index]).nonzero().tolist()
    gap = float((outputs(kind, order, move) - outputs(kind, (0, 1, 2, 3), "both")).abs().max())
    stored = [NAMES[n] for n in order]
    return [
        Badges([Badge("pairs with another pair's distance", len(wrong), "bad" if wrong else "ok"), Badge("largest change of a node's output", f"{gap:.3f}", "warn" if gap > 1e-9 else "ok")]),
        Matrices([Matrix("content", CONTENT[index].tolist(), 0, row_labels=stored, note="rows as stored"),
                  Matrix("distances used", used.double(), 0, "sequential", [tuple(cell) for cell in wrong], row_labels=stored, column_labels=stored, note="marked: not this pair's")]),
        Matrices([Matrix("output", [[float(a), float(b)] for a, b in zip(outputs(kind, (0, 1, 2, 3), "both"), outputs(kind, order, move))], 3, row_labels=NAMES,
                         column_labels=("before", "now"), note="by node")]),
    ]


def _caption(kind: str, order: tuple[int, ...], move: str) -> str:
    index = torch.tensor(order)
    wrong = int((relation(kind, order, move) != graph(kind).distance[index][:, index]).sum())
    gap = float((outputs(kind, order, move) - outputs(kind, (0, 1, 2, 3), "both")).abs().max())
    stored = "".join(NAMES[n] for n in order)
    if order == (0, 1, 2, 3):
        return "The nodes are stored as they came, so nothing can be out of step. Choose another order."
    if move == "both":
        return f"Stored as {stored}, distances moved on both axes: each pair keeps its distance, and each node its output."
    how = "moved on one axis" if move == "rows" else "left behind"
    if not wrong:
        return f"Stored as {stored}, distances {how}: this order is a symmetry of the graph, so no entry is wrong. Choose another order."
    if gap <= 1e-9:
        return f"Stored as {stored}, distances {how}: {wrong} pairs read another pair's distance, and the outputs happen to agree."
    return f"Stored as {stored}, distances {how}: {wrong} of 16 pairs read another pair's distance, and an output moves by {gap:.3f}. Every shape is right."


def graph_move(kinds=tuple(GRAPHS), orders=ORDERS) -> Explorer:
    """Which pairs read the wrong distance when nodes are stored in another order? At rest: the path, moved on one axis only."""
    return Explorer(
        name="graph-move", title="Nodes in another order", question="Which pairs read the wrong distance?",
        controls=[Control("move", "Distances moved", list(MOVES), labels=list(MOVES.values())),
                  Control("order", "Stored order", list(orders), labels=[" ".join(NAMES[n] for n in order) for order in orders], kind="choice"),
                  Control("kind", "Graph", list(kinds), labels=[GRAPHS[k][0] for k in kinds])],
        compute=lambda move, order, kind: _compute(kind, order, move), caption=lambda move, order, kind: _caption(kind, order, move),
        start={"move": "rows", "order": (2, 0, 3, 1) if (2, 0, 3, 1) in orders else orders[-1], "kind": kinds[0]})
