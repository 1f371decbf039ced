"""A bias on several axes against loops over pairs: sign, axes, where the scale stands, chunks and decode steps."""

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.grid_bias import AxisBias
from tests.refusals import refused

LINE, PAGE = pl.T5Buckets(8, 12), pl.T5Buckets(16, 40)
RULES = {"position": LINE, "x": PAGE, "y": PAGE}
X, Y = torch.tensor([[68, 83, 3, 20], [27, 47, 90, 4]]), torch.tensor([[19, 45, 33, 26], [53, 113, 98, 27]])
EDGES = {"x": X, "y": Y}


def module(rules=RULES, inside_scale: bool = True) -> pl.GridBias:
    return pl.GridBias(2, rules, inside_scale=inside_scale).double()


def by_hand(m: pl.GridBias, positions: torch.Tensor) -> torch.Tensor:
    """[B, H, N, N], pair by pair; key minus query on each axis."""
    bias = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    for b in range(2):
        for i in range(4):
            for j in range(4):
                for axis, rule, c in (("position", LINE, positions[b]), ("x", PAGE, X[b]), ("y", PAGE, Y[b])):
                    bias[b, :, i, j] += m.weight[axis][:, int(rule.classes(c[j] - c[i]))]
    return bias


@pytest.mark.parametrize("positions", [torch.arange(4).expand(2, -1), torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1]])], ids=["in order", "packed"])
def test_the_bias_is_the_sum_over_axes_of_each_pair(positions):
    m = module()
    term = m(pl.AttentionGeometry(positions, positions), EDGES, EDGES)
    assert term.heads == 2 and torch.allclose(term.materialize(positions, positions, torch.float64), by_hand(m, positions), atol=1e-12)
    shared = torch.arange(4)  # positions for the whole batch beside boxes for each row
    if torch.equal(positions[1], shared):
        assert torch.allclose(m(pl.AttentionGeometry.encoder(4), EDGES, EDGES).materialize(shared, shared, torch.float64), by_hand(m, positions), atol=1e-12)


@pytest.mark.parametrize("inside_scale", [True, False])
def test_the_scale_takes_the_bias_along_where_it_is_inside(inside_scale):
    m, geometry = module(inside_scale=inside_scale), pl.AttentionGeometry.encoder(4)
    q, k = torch.randn(2, 2, 2, 4, 9, dtype=torch.float64)
    scores = pl.attend(q, k, k, m(geometry, EDGES, EDGES), geometry, return_trace=True)[1].scores
    bias = by_hand(m, torch.arange(4).expand(2, -1))
    assert torch.allclose(scores, (q @ k.mT + (bias if inside_scale else 3 * bias)) / 3, atol=1e-12)


def test_rows_of_a_chunk_and_a_decode_step_are_those_of_the_whole():
    m, whole = module(), pl.AttentionGeometry.causal_self(4)
    q, k, v = torch.randn(3, 2, 2, 4, 6, dtype=torch.float64)
    full = pl.attend(q, k, v, m(whole, EDGES, EDGES), whole)
    some = {axis: c[:, 1:3] for axis, c in EDGES.items()}
    chunk = whole.slice_queries(1, 3)
    assert torch.allclose(pl.attend(q[:, :, 1:3], k, v, m(chunk, some, EDGES), chunk), full[:, :, 1:3], atol=1e-12)
    last, step = {axis: c[:, 3:] for axis, c in EDGES.items()}, pl.AttentionGeometry.decode(3)
    assert torch.allclose(pl.attend(q[:, :, 3:], k, v, m(step, last, EDGES), step), full[:, :, 3:], atol=1e-12)


def test_cells_of_a_grid_are_coordinates():
    grid, m = pl.Grid({"row": 2, "col": 3}, "column_major"), pl.GridBias(2, {"row": LINE, "col": LINE}, inside_scale=False).double()
    geometry = pl.AttentionGeometry.encoder(6)
    cells = grid.coordinates(geometry.query_positions)
    bias = m(geometry, cells, cells).materialize(geometry.query_positions, geometry.key_positions, torch.float64)
    assert bias.shape == (1, 2, 6, 6)
    for i in range(6):
        for j in range(6):
            want = m.weight["row"][:, int(LINE.classes(torch.tensor(j % 2 - i % 2)))] + m.weight["col"][:, int(LINE.classes(torch.tensor(j // 2 - i // 2)))]
            assert torch.allclose(bias[0, :, i, j], want, atol=1e-12)


def test_a_token_order_moves_boxes_and_bias_together():
    m, geometry, order = module({"x": PAGE, "y": PAGE}), pl.AttentionGeometry.encoder(4), torch.tensor([2, 0, 3, 1])
    moved = {axis: c[:, order] for axis, c in EDGES.items()}
    first, second = (m(geometry, c, c).materialize(geometry.query_positions, geometry.key_positions, torch.float64) for c in (EDGES, moved))
    assert torch.equal(second, first[:, :, order][..., order]) and not torch.equal(first, second)


def test_gradients_of_every_table():
    m, geometry = module(), pl.AttentionGeometry.encoder(4)
    names = [n for n, _ in m.named_parameters()]

    def scores(*weights):
        term = torch.func.functional_call(m, dict(zip(names, weights)), (geometry, EDGES, EDGES))
        return term.materialize(geometry.query_positions, geometry.key_positions, torch.float64)

    leaves = tuple(p.detach().clone().requires_grad_() for p in m.parameters())
    assert len(names) == 3 and torch.autograd.gradcheck(scores, leaves)


def test_a_compiled_graph_gives_the_same_scores():
    m, geometry = module().float(), pl.AttentionGeometry.encoder(4)
    q = torch.randn(2, 2, 4, 6)
    compiled = torch.compile(lambda q: pl.attend(q, q, q, m(geometry, EDGES, EDGES), geometry), backend="eager", fullgraph=True)
    assert torch.allclose(compiled(q), pl.attend(q, q, q, m(geometry, EDGES, EDGES), geometry), atol=1e-6)


def test_a_half_precision_table_gives_a_bias_in_the_asked_dtype():
    m, geometry = module().bfloat16(), pl.AttentionGeometry.encoder(4)
    bias = m(geometry, EDGES, EDGES).materialize(geometry.query_positions, geometry.key_positions)
    assert bias.dtype == torch.float32 and torch.allclose(bias.double(), by_hand(m.double(), torch.arange(4).expand(2, -1)), atol=1e-7)


def test_tables_are_added_wide_and_rounded_once():
    m, zero = pl.GridBias(1, {axis: LINE for axis in "abc"}, inside_scale=True), torch.zeros(1, dtype=torch.long)
    for axis, value in {"a": 256.0, "b": 1.0, "c": 1.0}.items():  # 256 + 1 is 256 in bfloat16
        m.weight[axis].data.fill_(value)
    at = {axis: zero for axis in "abc"}
    assert m(pl.AttentionGeometry(zero, zero), at, at).materialize(zero, zero, torch.bfloat16).tolist() == [[[[258.0]]]]


ENCODER, THREE = pl.AttentionGeometry.encoder(4), {axis: c[:1].expand(3, -1) for axis, c in EDGES.items()}
ROWS = {"x": X[0]}


@pytest.mark.parametrize("build, field", [
    (lambda: pl.GridBias(0, RULES, inside_scale=True), "heads"), (lambda: pl.GridBias(2, {}, inside_scale=True), "rules"),
    (lambda: pl.GridBias(2, {"x": pl.T5Buckets(8, 20, False)}, inside_scale=True), "rules"), (lambda: pl.GridBias(2, {"x": 32}, inside_scale=True), "rules"),
    (lambda: pl.GridBias(2, RULES, inside_scale=None), "inside_scale"), (lambda: module()(ENCODER, {"x": X}, EDGES), "query_coordinates"),
    (lambda: module()(ENCODER, EDGES, {"x": X, "y": Y, "z": Y}), "key_coordinates"),
    (lambda: module()(ENCODER, EDGES, {"x": X.float(), "y": Y}), "key_coordinates.x"),
    (lambda: module()(ENCODER, EDGES, {"x": X - 4, "y": Y}), "key_coordinates.x"),
    (lambda: module()(ENCODER, {"x": X[:, :1], "y": Y}, EDGES), "query_coordinates.x"),
    (lambda: module()(pl.AttentionGeometry.cross(4, 4), EDGES, EDGES), "coordinate_frame"),
    (lambda: module()(ENCODER, EDGES, EDGES).materialize(torch.arange(1), torch.arange(4)), "query_coordinates.x"),
    (lambda: module()(pl.AttentionGeometry(*[torch.arange(4).expand(2, -1)] * 2), EDGES, THREE), "key_coordinates.x"),
    (lambda: module()(ENCODER, EDGES, THREE), "key_coordinates.x"), (lambda: module()(ENCODER, {"x": X, "y": THREE["y"]}, EDGES), "query_coordinates.y"),
    (lambda: module({"type": LINE}), "rules"), (lambda: module({"a.b": LINE}), "rules"), (lambda: module().to("meta")(ENCODER, EDGES, EDGES), "geometry"),
    (lambda: AxisBias(tables={}, rules={}, query_coordinates={}, key_coordinates={}), "rules"),
    (lambda: AxisBias(tables={"x": torch.ones(2, 8)}, rules={"y": LINE}, query_coordinates=ROWS, key_coordinates=ROWS), "rules"),
    (lambda: AxisBias(tables={"position": torch.ones(2, 8), "x": torch.ones(1, 8)}, rules={"position": LINE, "x": LINE}, query_coordinates=ROWS,
                      key_coordinates=ROWS), "tables.x"),
    (lambda: AxisBias(tables={"x": torch.ones(8, 2)}, rules={"x": LINE}, query_coordinates=ROWS, key_coordinates=ROWS), "tables.x")])
def test_bad_rules_coordinates_and_frames_are_refused(build, field):
    refused(build, field)
