"""The counts of the kernels' table against what the interpreter sees a launch do: every product, every address once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from positionlib import kernels
from positionlib.kernels import KINDS, costs, launch
from positionlib.kernels.ops import attention_forward
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


def launched(kind: str) -> None:
    """One call of SHAPE, forward and backward, with a gradient of the table."""
    s, make = SHAPE, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 128, s.width, generator=make).half().requires_grad_() for heads in (s.heads, s.key_heads, s.key_heads))
    positions = torch.arange(128)
    bias = None
    if kind.startswith("alibi"):
        bias = kernels.BiasArgs.from_slopes(torch.rand(s.heads, generator=make).requires_grad_(), kind.removeprefix("alibi_"))
    elif kind == "t5":
        bias = kernels.BiasArgs.from_classes(torch.randn(2 * SPAN + 1, s.heads, generator=make).requires_grad_(), Clip(SPAN), "key_minus_query")
    out = kernels.forward(q, k, v, query_positions=positions, key_positions=positions.clone(), causal=False, scale=0.1, bias=bias)
    out.backward(torch.randn(out.shape, generator=make).half())


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


def test_every_argument_of_the_operator_is_counted():
    """A new argument of the operator is a new tensor or another loop: it needs its share in costs.cost before this list."""
    arguments = [argument.name for argument in attention_forward._opoverload._schema.arguments]
    assert arguments == ["q", "k", "v", "query_positions", "key_positions", "key_active", "query_segments", "key_segments", "table", "kind", "span", "causal", "scale"]
    assert set(costs.SCORE_OPERATIONS) == set(KINDS)


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
        shape = costs.Shape.self_attention(length, heads=16, width=128, itemsize=2, causal=True, span=128)
        return costs.cost("t5", "forward", shape).held + costs.backward("t5", shape).held

    assert held(8192) == 2 * held(4096) == 4 * held(2048)


def test_what_is_refused():
    refused(lambda: costs.cost("shaw", "forward", SHAPE), "kind")
    refused(lambda: costs.cost("t5", "backward", SHAPE), "part")
    refused(lambda: costs.cost("content", "d_table", SHAPE), "part")
    refused(lambda: costs.floor("d_key", SHAPE), "part")
    refused(lambda: costs.Shape.self_attention(0, heads=1, width=16, itemsize=2, causal=True), "length")
