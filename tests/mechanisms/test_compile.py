"""Every mechanism in one compiled graph and in one exported program, equal to the eager call; and what such a graph does not do."""

import pytest
import torch
from torch import nn

import positionlib as pl
from positionlib import mechanisms
from positionlib.terms import StateRows
from positionlib.transport import Field, Move, transport

HEADS, WIDTH, MODEL, LENGTH = 2, 8, 16, 12
CHAIN = pl.Graph.from_edges(LENGTH, [(i, i + 1) for i in range(LENGTH - 1)] + [(i + 1, i) for i in range(LENGTH - 2)])
GRID = pl.Grid({"row": 3, "col": 4}, "row_major")
AXIS = pl.TimeAxis(origin=0, unit_seconds=1, clock="utc", zone="utc")
INPUTS = {"Graph", "Grid", "GridResize", "TimeAxis", "Timestamps", "normalise_boxes"}  # what a mechanism is given, made on the host


def plain(mechanism, geometry):
    return mechanism(geometry)


def typed_edges(mechanism, geometry):
    return mechanism(geometry, geometry.offsets("key_minus_query") % 4)


def of_graph(mechanism, geometry):
    """The structure enters as tensors; node ids are the positions."""
    return mechanism(pl.Graph(CHAIN.distance, CHAIN.in_degree, CHAIN.out_degree, CHAIN.path_edges))


def of_paths(mechanism, geometry):
    return mechanism(CHAIN, torch.arange(2 * LENGTH - 3)[:, None] % 5)


def on_a_grid(mechanism, geometry):
    return mechanism(geometry, GRID)


def on_a_page(mechanism, geometry):
    at = {"x": geometry.query_positions % 3}
    return mechanism(geometry, at, at)


def in_boxes(mechanism, geometry):
    p = geometry.query_positions
    return mechanism(torch.stack((p, p, p + 1, p + 2), -1))


def at_times(mechanism, geometry):
    return mechanism(pl.Timestamps(values=geometry.query_positions, unit="s", clock="utc", zone="utc"))


# name -> (mechanism, causal, how its term is made)
CASES = {
    "IntegerCode": (lambda: pl.IntegerCode(MODEL), True, plain),
    "NormalisedCode": (lambda: pl.NormalisedCode(MODEL, length=LENGTH), True, plain),
    "BinaryCode": (lambda: pl.BinaryCode(MODEL), True, plain),
    "Time2Vec": (lambda: pl.Time2Vec(MODEL, AXIS, function="sin", linear="last", missing="error"), True, at_times),
    "LearnedGrid": (lambda: pl.LearnedGrid(GRID, MODEL), False, on_a_grid),
    "SeparableGrid": (lambda: pl.SeparableGrid({"row": (4, MODEL), "col": (6, MODEL)}, compose="sum"), False, on_a_grid),
    "SineGrid": (lambda: pl.SineGrid(MODEL, order=("row", "col"), layout="interleaved"), False, on_a_grid),
    "BoxEmbedding": (lambda: pl.BoxEmbedding(LENGTH + 2, MODEL), False, in_boxes),
    "GridBias": (lambda: pl.GridBias(HEADS, {"position": pl.T5Buckets(8, 20, True), "x": pl.T5Buckets(8, 20, True)}, inside_scale=True), False, on_a_page),
    "Sinusoidal": (lambda: pl.Sinusoidal(MODEL), True, plain),
    "LearnedAbsolute": (lambda: pl.LearnedAbsolute(LENGTH, MODEL), False, plain),
    "NoPE": (pl.NoPE, True, plain),
    "Rotary": (lambda: pl.Rotary(WIDTH, pairing="half_split"), True, plain),
    "Rotary, interleaved and partial": (lambda: pl.Rotary(WIDTH, pairing="interleaved", rotary_dim=4), False, plain),
    "T5Bias": (lambda: pl.T5Bias(HEADS, 8, 20, bidirectional=False), True, plain),
    "ALiBi": (lambda: pl.ALiBi(HEADS), True, plain),
    "ShawRelative": (lambda: pl.ShawRelative(3, WIDTH, sign="key_minus_query", heads=HEADS), False, plain),
    "EdgeRelative": (lambda: pl.EdgeRelative(4, WIDTH), False, typed_edges),
    "BertRelative": (lambda: pl.BertRelative(LENGTH, WIDTH, variant="relative_key"), False, plain),
    "BertRelative, query and key": (lambda: pl.BertRelative(LENGTH, WIDTH, variant="relative_key_query"), False, plain),
    "MusicRelative": (lambda: pl.MusicRelative(4, WIDTH, causal=True, sides="both"), True, plain),
    "TransformerXL": (lambda: pl.TransformerXL(MODEL, HEADS, WIDTH, clamp_len=5), True, plain),
    "DeBERTa": (lambda: pl.DeBERTa(HEADS, MODEL, 30, buckets=8, edge="exact", terms=("c2c", "c2p", "p2c"), third_index="paper", projections="own"),
                False, plain),
    "TUPE": (lambda: pl.TUPE(HEADS, MODEL, LENGTH, relative=pl.T5Buckets(8, 20, True, "transformers")), False, plain),
    "GraphDegrees": (lambda: pl.GraphDegrees(4, MODEL), False, of_graph),
    "GraphBias": (lambda: pl.GraphBias(HEADS, LENGTH), False, of_graph),
    "GraphPath": (lambda: pl.GraphBias(HEADS, LENGTH, path=pl.GraphPath(HEADS, 5, 3, form="released")), False, of_paths),
}


class Layer(nn.Module):
    """q, k, v and positions in, attention out: geometry and term are made inside the graph. The key at position 2 is padding."""

    def __init__(self, case: str) -> None:
        super().__init__()
        build, self.causal, self.term = CASES[case]
        self.mechanism = build()

    def forward(self, q, k, v, positions):
        geometry = pl.AttentionGeometry(positions, positions, causal=self.causal, key_active=positions != 2)
        term = self.term(self.mechanism, geometry)
        if isinstance(term, StateRows):
            q, term = term.add_to(q.transpose(1, 2).flatten(2)).unflatten(-1, (HEADS, -1)).transpose(1, 2), None
        return pl.attend(q, k, v, term, geometry)


def inputs(length: int = LENGTH):
    return (*(t.requires_grad_() for t in torch.randn(3, 2, HEADS, length, WIDTH)), torch.arange(length))


def test_no_mechanism_is_left_out():
    described = {name.split(",")[0] for name in CASES}
    assert described == set(mechanisms.__all__) - INPUTS - {"SegmentMemory"}, "SegmentMemory has a test below"


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_layer_is_the_layer(case):
    torch._dynamo.reset()
    layer, arguments = Layer(case), inputs()
    leaves = [*arguments[:3], *layer.parameters()]
    want, got = layer(*arguments), torch.compile(layer, fullgraph=True, backend="aot_eager")(*arguments)
    assert torch.allclose(got, want, atol=1e-6)
    gradients = [torch.autograd.grad(out.square().sum(), leaves, materialize_grads=True) for out in (want, got)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients)) and all(bool(g.ne(0).any()) for g in gradients[1][:3])


@pytest.mark.parametrize("case", CASES)
def test_an_exported_layer_is_the_layer_at_every_length(case):
    layer, arguments = Layer(case), inputs()
    # The rows of GraphDegrees are those of the whole graph: its length is the graph's.
    lengths = (LENGTH,) if case == "GraphDegrees" else (LENGTH, 5)
    n = torch.export.Dim("n", min=2, max=LENGTH)
    shapes = {"q": {2: n}, "k": {2: n}, "v": {2: n}, "positions": {0: n}} if len(lengths) > 1 else None
    with torch.no_grad():
        exported = torch.export.export(layer, arguments, dynamic_shapes=shapes).module()
        for length in lengths:
            arguments = inputs(length)
            assert torch.allclose(exported(*arguments), layer(*arguments), atol=1e-6)


class OwnGeometry(nn.Module):
    """Attention whose geometry and code take their length from the state's own shape, inside the graph."""

    def __init__(self, build) -> None:
        super().__init__()
        self.build, self.code = build, pl.NormalisedCode(MODEL, length="current")
        self.bias = pl.T5Bias(1, 8, 20, bidirectional=build == pl.AttentionGeometry.encoder)

    def forward(self, x):
        geometry = self.build(x.shape[1])
        x = self.code(geometry).add_to(x)[:, None]
        return pl.attend(x, x, x, self.bias(geometry), geometry)


@pytest.mark.parametrize("build", [pl.AttentionGeometry.causal_self, pl.AttentionGeometry.encoder], ids=["causal", "encoder"])
def test_a_length_that_is_read_from_a_shape_stays_free(build):
    layer, n = OwnGeometry(build), torch.export.Dim("n", min=2, max=LENGTH)
    states = [torch.randn(2, length, MODEL) for length in (LENGTH, 5, 7)]
    with torch.no_grad():
        exported = torch.export.export(layer, (states[0],), dynamic_shapes={"x": {1: n}}).module()
        torch._dynamo.reset()
        for run in (exported, torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)):
            assert all(torch.allclose(run(x), layer(x), atol=1e-6) for x in states)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")


def test_a_segment_memory_is_carried_through_a_compiled_step():
    def step(hidden, *states):
        memory = pl.SegmentMemory(1, 3, "time_first", states=states)
        return memory.extend(0, hidden), memory.geometry(len(hidden), same_length=True).visible, memory.update([hidden]).states[0]

    hidden, state = torch.randn(2, 1, 4), torch.randn(3, 1, 4)
    for eager, traced in zip(step(hidden, state), compiled(step)(hidden, state)):
        assert torch.equal(eager, traced)


# What the contracts say of a compiled graph: it looks at no values, so no refusal of this library comes from them.
TABLE, UNTIED = pl.LearnedAbsolute(4, 4), pl.TUPE(2, 4, 4)
FAR = torch.tensor([4])


@pytest.mark.parametrize("call", [
    lambda p: TABLE(pl.AttentionGeometry(p, p)).rows, lambda p: UNTIED(pl.AttentionGeometry(p, p)).bias], ids=["LearnedAbsolute", "TUPE"])
def test_a_position_without_a_row_is_refused_by_torch_only(call):
    with pytest.raises(pl.PositionRangeError):
        call(FAR)
    with pytest.raises(IndexError) as caught:
        compiled(call)(FAR)
    assert not isinstance(caught.value, pl.PositionRangeError)


BERT, EDGES = pl.BertRelative(4, 4, variant="relative_key"), pl.EdgeRelative(4, 4)


@pytest.mark.parametrize("mechanism, extra", [(BERT, ()), (EDGES, (torch.tensor([[0, 4], [0, 0]]),)), (EDGES, (torch.tensor([[0, -1], [0, 0]]),))])
def test_a_relation_without_a_row_is_refused_by_torch_only(mechanism, extra):
    def call(positions, *extra):
        geometry, x = pl.AttentionGeometry(positions, positions), torch.zeros(1, 1, 2, 4)
        return pl.attend(x, x, x, mechanism(geometry, *extra), geometry)

    with pytest.raises(pl.PositionRangeError):
        call(torch.tensor([0, 4]), *extra)
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(call)(torch.tensor([0, 4]), *extra)


@pytest.mark.parametrize("distance", [2, 9, -2])
def test_a_distance_without_a_row_is_refused_by_torch_only(distance):
    module, degrees = pl.GraphBias(1, 1), torch.ones(2, dtype=torch.long)

    def call(distance):
        return module(pl.Graph(distance, degrees, degrees, torch.zeros(2, 2, 1, dtype=torch.long))).pairs

    pairs = torch.tensor([[0, distance], [1, 0]])
    with pytest.raises(pl.PositionRangeError):
        call(pairs)
    with pytest.raises(IndexError) as caught:
        compiled(call)(pairs)
    assert not isinstance(caught.value, pl.PositionRangeError)


def test_a_term_made_for_other_positions_is_noticed_by_their_number_only():
    def call(made, asked):
        return pl.attend(x, x, x, UNTIED(pl.AttentionGeometry(made, made)), pl.AttentionGeometry(asked, asked))

    x, positions = torch.randn(1, 2, 2, 2), torch.tensor([0, 1])
    with pytest.raises(pl.PositionContractError):
        call(positions, positions + 1)
    assert torch.allclose(compiled(call)(positions, positions + 1), call(positions, positions), atol=1e-6)
    with pytest.raises(Exception, match="the positions that the term was made for"):
        compiled(call)(positions[:1], positions)


def test_a_graph_is_searched_before_compilation():
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(lambda x: x + pl.Graph.from_edges(2, [(0, 1)]).distance)(torch.zeros(2, 2))


def test_a_rotation_past_the_exact_positions_is_not_refused():
    term = pl.Rotary(4, pairing="half_split")(pl.AttentionGeometry.encoder(1))
    x, p = torch.ones(1, 1, 1, 4), torch.tensor([2**53 + 1])
    with pytest.raises(pl.PositionContractError):
        term.rotate(x, p)
    assert torch.equal(compiled(term.rotate)(x, p), term.rotate(x, p - 1)), "float64 has merged the two"


def test_rows_added_twice_are_not_noticed():
    def call(x, p):
        term = pl.Sinusoidal(4)(pl.AttentionGeometry(p, p))
        return term.add_to(term.add_to(x))

    x, p = torch.zeros(1, 1, 4), torch.tensor([0])
    with pytest.raises(pl.PositionContractError):
        call(x, p)
    assert compiled(call)(x, p).tolist() == [[[0.0, 2.0, 0.0, 2.0]]]


def test_transport_stays_outside():
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled(lambda x: transport({"x": Field(x, "N")}, move=Move.sort(x))["x"].values)(torch.tensor([2.0, 1.0]))
