"""Node pairs that move with their nodes, and the class of disconnected pairs."""

from __future__ import annotations

import torch

from positionlib import Graph, GraphBias
from tests.cases.expect import Call, Expectation
from tests.cases.values import array, ids


def distance_bias(call: Call, expect: Expectation) -> None:
    distance, order, table = ids(call["distance"]), ids(call["perm"]), call["bias_table"]
    degrees = (distance == 1).sum(0), (distance == 1).sum(1)
    graph = Graph(distance, *degrees, torch.full((*distance.shape, 1), -1))
    module = GraphBias(1, len(table) - 2).double()
    rows = [table[str(d)] for d in range(len(table) - 1)] + [table["unreachable"]]
    module.load_state_dict({"weight": array(rows)[:, None]})
    moved, nodes = graph.permute(order), torch.arange(len(order))
    expect.value(moved.distance, "distance_permuted")
    for term, positions in ((module(moved), nodes), (module(graph), order)):
        expect.value(term.materialize(positions, positions, torch.float64)[0, 0], "bias_permuted")


HANDLERS = {"graph_distance_bias": distance_bias}
