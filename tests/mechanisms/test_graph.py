"""Graph structure against searches and sums by hand: distances, degrees, the three path forms, and node orders."""

from itertools import permutations, product

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.graph import DISCONNECTED
from positionlib.mechanisms.graph_bias import DistanceBias, PairBias
from tests.refusals import refused

# Two ways from 0 to 3, a tail to 4, one way back from 3, and a node alone.
EDGES = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 0)]
GRAPH = pl.Graph.from_edges(6, EDGES)
PERM = torch.tensor([4, 0, 5, 2, 1, 3])
NODES = torch.arange(6)


def floyd_warshall(nodes: int, edges: list[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Distances, and the inner node that the loop remembers last."""
    far = 10**6
    d = [[0 if i == j else 1 if (i, j) in edges else far for j in range(nodes)] for i in range(nodes)]
    via = [[-1] * nodes for _ in range(nodes)]
    for k, i, j in product(range(nodes), repeat=3):
        if d[i][k] + d[k][j] < d[i][j]:
            d[i][j], via[i][j] = d[i][k] + d[k][j], k
    return [[-1 if x >= far else x for x in row] for row in d], via


def unrolled(via: list[list[int]], i: int, j: int) -> list[tuple[int, int]]:
    k = via[i][j]
    return [(i, j)] if k < 0 else unrolled(via, i, k) + unrolled(via, k, j)


@pytest.mark.parametrize("seed", range(12))
def test_search_and_paths_are_those_of_floyd_and_warshall(seed):
    chance = torch.rand(9, 9, generator=torch.Generator().manual_seed(seed)) < 0.12 + 0.02 * seed
    edges = [(i, j) for i, j in product(range(9), repeat=2) if i != j and chance[i, j]]
    graph, (distance, via) = pl.Graph.from_edges(9, edges), floyd_warshall(9, edges)
    assert graph.distance.tolist() == distance
    for i, j in product(range(9), repeat=2):
        path = [edges[e] for e in graph.path_edges[i, j].tolist() if e >= 0]
        assert path == (unrolled(via, i, j) if distance[i][j] > 0 else [])


def test_the_structure_of_a_small_graph():
    assert GRAPH.distance[0].tolist() == [0, 1, 1, 2, 3, DISCONNECTED] and GRAPH.distance[4].tolist() == [-1, -1, -1, -1, 0, -1]
    assert GRAPH.in_degree.tolist() == [1, 1, 1, 2, 1, 0] and GRAPH.out_degree.tolist() == [2, 1, 1, 2, 0, 0]
    assert GRAPH.path_edges[0, 4].tolist() == [0, 2, 4] and GRAPH.path_edges[2, 1].tolist() == [3, 5, 0]
    assert GRAPH.within(2)[0].tolist() == [True, True, True, False, False, False]


def test_a_permutation_moves_every_object():
    order = PERM.tolist()
    place = {node: at for at, node in enumerate(order)}
    renamed = pl.Graph.from_edges(6, [(place[a], place[b]) for a, b in EDGES])
    moved = GRAPH.permute(PERM)
    assert torch.equal(moved.distance, renamed.distance)
    assert torch.equal(moved.in_degree, renamed.in_degree) and torch.equal(moved.out_degree, renamed.out_degree)
    for i, j in product(range(6), repeat=2):
        assert torch.equal(moved.path_edges[i, j], GRAPH.path_edges[order[i], order[j]])


def path_module(form: str, **settings) -> pl.GraphPath:
    torch.manual_seed(0)
    built = pl.GraphPath(2, 5, *([] if form == "direct" else [settings.pop("max_hops", 3)]), form=form).double()
    for weight in built.parameters():
        torch.nn.init.normal_(weight)
    return built


def edge_input(form: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn(6, 5, generator=g, dtype=torch.float64) if form == "paper" else torch.randint(0, 5, (6, 2), generator=g)


def by_hand(m: pl.GraphPath, edges: torch.Tensor, i: int, j: int, h: int) -> float:
    """c of one pair and head, hop by hop."""
    path = [e for e in GRAPH.path_edges[i, j].tolist() if e >= 0]
    if m.form == "direct":
        return float(m.edge_weight.detach()[edges[path[0]]].mean(0)[h]) if len(path) == 1 else 0.0
    used = path[: m.max_hops]
    vectors = [edges[e] if m.form == "paper" else m.edge_weight[edges[e]].mean(0) for e in used]
    return sum(float((v @ m.hop_weight[n, :, h]).detach()) for n, v in enumerate(vectors)) / max(1, len(used))


@pytest.mark.parametrize("form, hops", [("paper", 3), ("paper", 4), ("released", 3), ("released", 2), ("direct", 1)])
def test_the_path_term_is_a_mean_over_hops(form, hops):
    m, edges = path_module(form, max_hops=hops), edge_input(form)
    got = m(GRAPH, edges)
    want = torch.tensor([[[by_hand(m, edges, i, j, h) for j in range(6)] for i in range(6)] for h in range(2)], dtype=torch.float64)
    assert torch.allclose(got, want, atol=1e-13) and bool((got[:, 5, :5] == 0).all())


def bias_module(**settings) -> pl.GraphBias:
    torch.manual_seed(1)
    return pl.GraphBias(2, 3, **settings).double()


def test_distance_classes_and_the_disconnected_class():
    m = bias_module()
    bias = m(GRAPH).materialize(NODES, NODES, torch.float64)[0]
    for i, j in product(range(6), repeat=2):
        d = int(GRAPH.distance[i, j])
        assert torch.equal(bias[:, i, j], m.weight[4 if d < 0 else d])


def test_a_permuted_geometry_and_a_permuted_graph_give_the_same_bias():
    m, edges = bias_module(path=path_module("released")), edge_input("released")
    plain, moved = m(GRAPH, edges), m(GRAPH.permute(PERM), edges)
    assert torch.equal(moved.materialize(NODES, NODES), plain.materialize(PERM, PERM))
    assert not torch.equal(moved.materialize(NODES, NODES), plain.materialize(NODES, NODES))


def test_attention_is_equivariant_when_all_objects_move_and_only_then():
    m, degrees = bias_module(), pl.GraphDegrees(2, 3).double()
    x = torch.randn(1, 2, 6, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    nodes = pl.AttentionGeometry.encoder(6)

    def run(x, graph, pairs):
        state = degrees(graph).add_to(x)
        return pl.attend(state, state, state, m(pairs), nodes)

    out, moved = run(x, GRAPH, GRAPH), GRAPH.permute(PERM)
    assert torch.allclose(run(x[:, :, PERM], moved, moved), out[:, :, PERM], atol=1e-12)
    assert not torch.allclose(run(x[:, :, PERM], moved, GRAPH), out[:, :, PERM], atol=1e-3)


def test_the_graph_token_has_one_row_and_one_column():
    m = bias_module(graph_token=True)
    ids = torch.arange(7)
    bias = m(GRAPH).materialize(ids, ids, torch.float64)[0]
    inner = pl.GraphBias.forward(m, GRAPH).pairs[:, 1:, 1:]
    assert torch.equal(bias[:, 0], m.token_weight[:, None].expand(-1, 7)) and torch.equal(bias[:, 1:, 0], m.token_weight[:, None].expand(-1, 6))
    assert torch.equal(inner[:, 0, 5], m.weight[4]) and torch.equal(bias[:, 1:, 1:], inner)


def test_degree_rows_are_those_of_both_directions():
    m = pl.GraphDegrees(2, 3).double()
    rows = m(GRAPH).rows
    assert all(torch.equal(rows[n], m.in_weight[i] + m.out_weight[o]) for n, (i, o) in enumerate(zip([1, 1, 1, 2, 1, 0], [2, 1, 1, 2, 0, 0])))
    with pytest.raises(pl.PositionContractError, match="graph_degrees"):
        m(GRAPH).add_to(m(GRAPH).add_to(torch.zeros(6, 3, dtype=torch.float64)))


@pytest.mark.parametrize("form", ["paper", "released", "direct"])
def test_gradients_of_every_parameter(form):
    m, degrees, edges = bias_module(path=path_module(form), graph_token=True), pl.GraphDegrees(2, 3).double(), edge_input(form)
    names, rows = [n for n, _ in m.named_parameters()], [n for n, _ in degrees.named_parameters()]
    assert len(names) == {"paper": 3, "released": 4, "direct": 3}[form]

    def both(*weights):
        term = torch.func.functional_call(m, dict(zip(names, weights)), (GRAPH, edges))
        return term.pairs, torch.func.functional_call(degrees, dict(zip(rows, weights[len(names):])), (GRAPH,)).rows

    assert torch.autograd.gradcheck(both, tuple(p.detach().clone().requires_grad_() for p in (*m.parameters(), *degrees.parameters())))


def test_each_batch_row_names_its_own_nodes():
    term = PairBias(pairs=torch.arange(9.0).reshape(1, 3, 3))
    assert term.materialize(torch.tensor([[0], [2]]), torch.tensor([[1, 2], [0, 2]])).tolist() == [[[[1.0, 2.0]]], [[[6.0, 8.0]]]]


@pytest.mark.parametrize("attempt, field", [
    (lambda: pl.Graph.from_edges(0, []), "nodes"), (lambda: pl.Graph.from_edges(2, [(0, 2)]), "edges"), (lambda: pl.Graph.from_edges(2, [(0, -1)]), "edges"),
    (lambda: pl.Graph.from_edges(2, [(0, 1), (0, 1)]), "edges"), (lambda: GRAPH.permute(torch.tensor([0, 0, 1, 2, 3, 4])), "order"),
    (lambda: pl.Graph(GRAPH.distance, GRAPH.in_degree[:5], GRAPH.out_degree, GRAPH.path_edges), "in_degree"),
    (lambda: pl.GraphBias(2, 2)(GRAPH), "distance"), (lambda: pl.GraphDegrees(1, 3)(GRAPH), "in_degree"), (lambda: pl.GraphPath(2, 5, form="own"), "form"),
    (lambda: pl.GraphPath(2, 5, 2, form="direct"), "max_hops"), (lambda: pl.GraphBias(3, 3, path=path_module("paper")), "path"),
    (lambda: bias_module()(GRAPH, edge_input("paper")), "edges"), (lambda: bias_module(path=path_module("paper"))(GRAPH), "edges"),
    (lambda: path_module("paper")(GRAPH, edge_input("released")), "edges"), (lambda: path_module("released")(GRAPH, edge_input("paper")), "edges"),
    (lambda: path_module("released")(GRAPH, edge_input("released") + 1), "edges"), (lambda: path_module("released")(GRAPH, edge_input("released") - 9), "edges"),
    (lambda: path_module("released")(GRAPH, edge_input("released")[:5]), "edges"), (lambda: path_module("paper", max_hops=2)(GRAPH, edge_input("paper")), "distance"),
    (lambda: bias_module()(GRAPH).materialize(torch.tensor([6]), NODES), "query_positions"),
    (lambda: bias_module()(GRAPH).materialize(NODES, torch.tensor([-1])), "key_positions"),
    (lambda: DistanceBias(table=torch.zeros(3, 2), classes=torch.full((2, 2), 3), path=None), "classes"),
    (lambda: DistanceBias(table=torch.zeros(3, 2), classes=torch.zeros(2, 2, dtype=torch.long), path=torch.zeros(3, 2, 2)), "path")])
def test_what_does_not_fit_is_refused_by_name(attempt, field):
    refused(attempt, field)


def test_every_order_of_three_nodes_keeps_the_disconnected_pair():
    graph = pl.Graph.from_edges(3, [(0, 1), (1, 0)])
    for order in permutations(range(3)):
        moved = graph.permute(torch.tensor(order))
        assert sorted((order[i], order[j]) for i, j in (moved.distance == DISCONNECTED).nonzero().tolist()) == [(0, 2), (1, 2), (2, 0), (2, 1)]
