"""The counts of the kernels' table against what the interpreter sees a launch do: every product, every address once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from positionlib import kernels
from positionlib.forms import ByClass, ByLine, ByRow, ByTurn
from positionlib.kernels import KINDS, compile, costs, launch, sizes
from positionlib.kernels.arguments import Parts
from positionlib.rules import Clip
from tests.kernels.cases import DEVICE
from tests.refusals import refused

pytest.importorskip("triton")
counted = pytest.mark.skipif(DEVICE == "cuda", reason="not run: the interpreter counts, and a GPU does not interpret")
SPAN, SHAPE = 5, costs.Shape(batch=1, heads=2, key_heads=1, queries=128, keys=128, width=64, itemsize=2, pairs=128 * 128, span=5)
KERNELS = {"forward_tile": "forward", "query_gradients": "d_query", "key_gradients": "d_key", "band_gradients": "d_table"}


@pytest.fixture
def seen(monkeypatch):
    """{part: (operations of products, bytes read, bytes written)} of every launch from now on."""
    from triton.runtime.interpreter import InterpreterBuilder

    found, here = {}, {}
    plain_dot, plain_run = InterpreterBuilder.create_dot, launch._run

    def dot(self, a, b, *rest):
        here["products"] += 2 * a.data.shape[0] * a.data.shape[1] * b.data.shape[1]
        return plain_dot(self, a, b, *rest)

    def watched(name):
        plain = getattr(InterpreterBuilder, f"create_masked_{name}")

        def watch(self, ptrs, *rest):
            inside = np.broadcast_to(rest[0 if name == "load" else 1].data, ptrs.data.shape).astype(bool)
            here[name].update(dict.fromkeys(ptrs.data[inside].tolist(), ptrs.get_element_ty().primitive_bitwidth // 8))
            return plain(self, ptrs, *rest)

        return watch

    def run(where, calls):
        for call in calls:
            here.update(products=0, load={}, store={})
            plain_run(where, [call])
            found[KERNELS[call[0].fn.__name__]] = here["products"], sum(here["load"].values()), sum(here["store"].values())

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    for name in ("load", "store"):
        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", watched(name))
    monkeypatch.setattr(launch, "_run", run)
    return found


def form_of(name: str, q: torch.Tensor) -> ByClass | ByRow | ByTurn:
    """A form for SHAPE: Shaw's both tables, DeBERTa's both terms, distances with a bias by pair, angles of half the channels, rows of positions."""
    make = torch.Generator().manual_seed(1)
    rows = [torch.randn(2 * SPAN + 1, q.shape[3], generator=make).half().requires_grad_() for _ in range(2)]
    offsets = dict(rule=Clip(SPAN), sign="key_minus_query", key_sign="key_minus_query")
    position_rows = [torch.randn(1, 2, 128, 64, generator=make).half().requires_grad_() for _ in range(2)]
    given = (torch.arange(128)[:, None] * 3 + torch.arange(128)) % 7
    return {"shaw": ByClass(**offsets, query_rows=rows[0], value_rows=rows[1]), "deberta": ByClass(**offsets, query_rows=rows[0], key_rows=rows[1]),
            "turned": ByTurn(query_turns=torch.randn(128, 2, 16, generator=make), key_turns=torch.randn(128, 2, 16, generator=make), interleaved=True),
            "rows": ByRow(query_rows=position_rows[0], key_rows=position_rows[1]),
            "graph": ByClass(classes=given.to(torch.uint8), bias=torch.randn(7, 2, generator=make).requires_grad_(),
                             pair_bias=torch.randn(1, 2, 128, 128, generator=make).requires_grad_())}[name]


SIZES = {"shaw": dict(query_classes=11, mass_classes=11), "deberta": dict(query_classes=11, key_classes=11),
         "graph": dict(bias_classes=7, class_bytes=1, pair_bytes=4), "turned": dict(turned=16), "rows": dict(row_width=64)}


def launched(kind: str, form=None) -> None:
    """One call of SHAPE, forward and backward, with a gradient of the table."""
    s, make = SHAPE, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 128, s.width, generator=make).half().requires_grad_() for heads in (s.heads, s.key_heads, s.key_heads))
    positions = torch.arange(128)
    bias = None
    if kind.startswith("alibi"):
        bias = kernels.BiasArgs.from_slopes(torch.rand(s.heads, generator=make).requires_grad_(), kind.removeprefix("alibi_"))
    elif kind == "t5":
        bias = kernels.BiasArgs.from_classes(torch.randn(2 * SPAN + 1, s.heads, generator=make).requires_grad_(), Clip(SPAN), "key_minus_query")
    out = kernels.forward(q, k, v, query_positions=positions, key_positions=positions.clone(), causal=False, scale=0.1, bias=bias,
                          form=form and form(q))
    out.backward(torch.randn(out.shape, generator=make).half())


@counted
@pytest.mark.parametrize("name", SIZES)
def test_what_a_form_adds_is_counted(seen, name):
    """Rows at either end of the line meet fewer classes than there are, and the count from the shapes is for all: at most 3 % more."""
    launched("content", lambda q: form_of(name, q))
    assert seen.keys() == {"forward", "d_query", "d_key"}
    for part, (products, read, written) in seen.items():
        told = costs.cost("content", part, replace(SHAPE, **SIZES[name]))
        assert products == told.products, part
        assert read <= told.read <= 1.03 * read and written <= told.written <= 1.03 * written, (part, read, told.read, written, told.written)


@counted
def test_a_line_of_offsets_is_counted_as_its_tiles_and_their_windows_are_at_most_three_times_as_wide(seen):
    rows, (content, position) = torch.randn(2, 255, 64).half().requires_grad_(), torch.randn(2, 2, 64)
    launched("content", lambda q: ByLine(rows=rows, first=-127, content_bias=content, position_bias=position))
    shape = costs.Shape.self_attention(128, heads=2, width=64, itemsize=2, causal=False, on_a_line=True)
    assert seen.keys() == set(costs.PARTS) and shape.line == 255
    for part, (products, *_) in seen.items():
        assert costs.cost("content", part, shape).products <= products <= 3 * costs.cost("content", part, shape).products, part


def test_the_slabs_of_a_line_are_counted(monkeypatch):
    """What every launch is given to write its windows into, beside one number a row and the sums by offset."""
    found, rows = {}, torch.randn(2, 255, 64).half().requires_grad_()

    def scratch(arguments):
        return next(argument for argument in arguments if isinstance(argument, Parts)).scratch.nbytes

    monkeypatch.setattr(launch, "_run", lambda _, calls: found.update({KERNELS[kernel.fn.__name__]: scratch(arguments) for kernel, _, arguments, _ in calls}))
    monkeypatch.setattr(sizes, "_warp_groups", lambda: True)
    launched("content", lambda q: ByLine(rows=rows, first=-127, content_bias=torch.zeros(2, 64), position_bias=torch.zeros(2, 64)))
    shape, a_row = replace(SHAPE, line=255), 4 * 2 * 128
    besides = {"forward": a_row, "d_query": 3 * a_row, "d_key": 0, "d_table": 4 * 2 * 253 * 64}
    assert found == {part: costs.cost("content", part, shape).held - besides[part] for part in costs.PARTS} and min(found.values()) > 0


@counted
@pytest.mark.parametrize("kind", KINDS)
def test_the_counts_are_those_of_a_launch(seen, kind):
    launched(kind)
    assert seen.keys() == {"forward", "d_query", "d_key"} | ({"d_table"} if kind == "t5" else set())
    for part in ("forward", "d_query", "d_key"):
        told = costs.cost(kind, part, SHAPE)
        assert seen[part] == (told.products, told.read, told.written), part
    if kind == "t5":
        near = costs.Shape.self_attention(128, heads=2, width=64, itemsize=2, causal=False, span=SPAN).near
        told = costs.cost(kind, "d_table", replace(SHAPE, near=near))
        assert seen["d_table"][1:] == (told.read, told.written)
        assert told.products <= seen["d_table"][0] <= 2 * 4 * 2 * 128 * 128 * 64, "whole tiles around the band, and no more than twice all pairs"


def test_every_mechanism_that_is_compiled_is_counted():
    """A new mechanism hands other arguments to the operator, or runs another loop: it needs its share in costs.cost and its line in costs.MECHANISMS."""
    assert set(costs.MECHANISMS) == set(compile.MECHANISMS) and set(costs.SCORE_OPERATIONS) == set(KINDS)
    for name, (kind, sizes) in costs.MECHANISMS.items():
        shape = costs.Shape.self_attention(64, heads=2, width=16, itemsize=2, causal=False, **sizes)
        assert costs.cost(kind, "forward", shape).products >= costs.floor("forward", shape).products, name


@pytest.mark.parametrize("length", [1, 2, 5, 9, 40])
@pytest.mark.parametrize("span", [0, 1, 3, 8, 60])
@pytest.mark.parametrize("causal", [True, False])
def test_pairs_are_counted_as_a_list_of_them_is(length, span, causal):
    shape = costs.Shape.self_attention(length, heads=3, width=16, itemsize=4, causal=causal, span=span)
    pairs = [(i, j) for i in range(length) for j in range(length) if not causal or j <= i]
    assert shape.pairs == len(pairs) and shape.near == sum(abs(i - j) < span for i, j in pairs)


def test_the_floor_is_what_the_design_notes_say():
    """H = 16, N = 8192, D = 128, bf16: 4SD and 10SD operations with S = H·N², 0.70 and 1.74 ms at 790 TFLOP/s."""
    shape = costs.Shape.self_attention(8192, heads=16, width=128, itemsize=2, causal=False, span=128)
    scores = 16 * 8192**2
    assert costs.floor("forward", shape).products == 4 * scores * 128 and costs.floor("backward", shape).products == 10 * scores * 128
    assert [round(1e3 * costs.floor(part, shape).seconds(790e12, 4.3e12), 2) for part in ("forward", "backward")] == [0.70, 1.74]
    assert costs.floor("forward", shape).read == 3 * 16 * 8192 * 128 * 2 and costs.floor("backward", shape).written == 3 * 16 * 8192 * 128 * 2
    both = costs.backward("t5", shape)
    assert both.products == (14 * scores + 4 * 16 * shape.near) * 128 and both.score == 5 * (2 * scores + 16 * shape.near)
    assert costs.backward("content", shape).products == 14 * scores * 128


def test_memory_beside_inputs_and_outputs_grows_as_the_length():
    def held(length):
        shapes = {kind: costs.Shape.self_attention(length, heads=16, width=128, itemsize=2, causal=True, **sizes) for kind, sizes in costs.MECHANISMS.values()}
        return [costs.cost(kind, "forward", shape).held + costs.backward(kind, shape).held for kind, shape in shapes.items()]

    once, twice, four_times = held(2048), held(4096), held(8192)
    assert twice == pytest.approx([2 * n for n in once], rel=1e-3) and four_times == pytest.approx([4 * n for n in once], rel=1e-3)


def test_what_is_refused():
    refused(lambda: costs.cost("shaw", "forward", SHAPE), "kind")
    refused(lambda: costs.cost("t5", "backward", SHAPE), "part")
    refused(lambda: costs.cost("content", "d_table", SHAPE), "part")
    refused(lambda: costs.floor("d_key", SHAPE), "part")
    refused(lambda: costs.Shape.self_attention(0, heads=1, width=16, itemsize=2, causal=True), "length")
