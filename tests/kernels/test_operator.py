"""The registered operator and its host side: opcheck, torch.compile, memory, and agreement with the eager reference."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from positionlib import kernels
from positionlib.attention import attend
from positionlib.errors import PositionContractError, UnsupportedPositionContract
from positionlib.forms import ByRow
from positionlib.geometry import AttentionGeometry
from positionlib.kernels.arguments import LEARNED, Call
from positionlib.kernels.launch import launch
from positionlib.kernels.ops import attention_backward, attention_forward
from positionlib.mechanisms import TransformerXL
from positionlib.rules import Clip, T5Buckets, alibi_slopes
from positionlib.terms import ClassBias, SlopeBias
from tests.kernels.cases import DEVICE

pytest.importorskip("triton")


def qkv(queries=20, keys=36, heads=4, key_heads=2, width=16, batch=2):
    make = torch.Generator().manual_seed(1)
    return [torch.randn(batch, h, n, width, generator=make).to(DEVICE) for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys))]


def arguments(kind="alibi_relative"):
    """Of the operator: 6 queries at the end of 36 keys, one of them padding, in two segments; two heads over one key head."""
    q, k, v = qkv(queries=6, heads=2, key_heads=1, batch=1)
    table = {"content": None, "t5": torch.randn(2, 9, device=DEVICE)}.get(kind, alibi_slopes(2).float().to(DEVICE))
    positions = torch.arange(16, 22, device=DEVICE), torch.arange(36, device=DEVICE)
    active = torch.arange(36, device=DEVICE) != 5
    segments = [torch.arange(n, device=DEVICE) // 4 for n in (6, 36)]
    return Call(q, k, v, *positions, active, segments[0] + 4, segments[1], table, kind, 4, True, 0.25)


def leaves(args):
    """The same arguments, with gradients wanted of every floating-point tensor; and those tensors."""
    args = [x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    return args, [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]


@pytest.mark.parametrize("kind", ["content", "t5", "alibi_symmetric"])
def test_opcheck(kind):
    """Schema, fake tensors, autograd registration and tracing of both passes with dynamic shapes."""
    args, _ = leaves(arguments(kind))
    assert set(torch.library.opcheck(attention_forward, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", ["content", "t5"])
def test_opcheck_of_the_backward_operator(kind):
    args = arguments(kind)
    out, lse, mass = attention_forward(*args)
    wanted = [name in ("q", "k", "v") or name == "table" and kind == "t5" for name in LEARNED]
    args = torch.randn_like(out), torch.randn_like(lse), None, out, lse, mass, wanted, *args
    assert set(torch.library.opcheck(attention_backward, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", ["content", "t5", "alibi_relative"])
def test_gradcheck(kind):
    """The gradients of both results are those that finite differences find in float64."""
    call = arguments(kind)
    floats = [x.double().requires_grad_() for x in (*call[:3], call.table) if x is not None]

    def run(q, k, v, table=None):
        return attention_forward(*call._replace(q=q, k=k, v=v, table=table))[:2]

    assert torch.autograd.gradcheck(run, floats, fast_mode=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic):
    def model(*args):
        out, lse, _ = attention_forward(*args)
        return (out * 2).sum() + (lse + 1).square().sum()

    args, wanted = leaves(arguments("t5"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for seen, want in zip(torch.autograd.grad(compiled(*args), wanted), torch.autograd.grad(model(*args), wanted)):
        assert torch.equal(seen, want)


def test_one_of_the_two_results_may_go_unused():
    """Nothing is made up for it: the gradients of the sum are the sum of the gradients."""
    args, wanted = leaves(arguments("t5"))
    out, lse, _ = attention_forward(*args)
    parts = [torch.autograd.grad(x.sum(), wanted, retain_graph=True, allow_unused=True) for x in (out, lse)]
    together = torch.autograd.grad(out.sum() + lse.sum(), wanted)
    for a, b, both in zip(*parts, together):
        torch.testing.assert_close(a + b, both, rtol=1e-5, atol=1e-5)
    assert not parts[1][2].any(), "the log-sum-exp does not depend on v"


def test_a_second_derivative_is_refused_by_name():
    args, wanted = leaves(arguments())
    (first,) = torch.autograd.grad(attention_forward(*args)[0].square().sum(), wanted[:1], create_graph=True)
    with pytest.raises(UnsupportedPositionContract, match="eager") as refused:
        torch.autograd.grad(first.sum(), wanted)
    assert "second derivative" in str(refused.value.missing)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")  # T5's thresholds, pure
def test_the_host_side_compiles_without_a_graph_break():
    """Admission, the table laid out by offset, the operator and their gradients, in one graph each way."""
    q, k, v = qkv()
    table, rule = torch.randn(8, 4, device=DEVICE, requires_grad=True), T5Buckets(8, 20, bidirectional=True)

    def model(q, k, v):
        bias = kernels.BiasArgs.from_classes(table, rule, "key_minus_query")
        return kernels.forward(q, k, v, query_positions=torch.arange(16, 36, device=DEVICE), key_positions=torch.arange(36, device=DEVICE),
                               causal=True, scale=0.25, bias=bias)

    seen, want = torch.compile(model, backend="aot_eager", fullgraph=True)(q, k, v), model(q, k, v)
    assert torch.equal(seen, want)
    assert torch.equal(*(torch.autograd.grad(x.square().sum(), table)[0] for x in (seen, want)))


@pytest.mark.parametrize("term", [
    None,
    SlopeBias(slopes=alibi_slopes(4)),
    SlopeBias(slopes=alibi_slopes(4), form="symmetric", inside_scale=True),
    ClassBias(table=torch.randn(32, 4), rule=T5Buckets(32, 20, bidirectional=False), sign="key_minus_query", score_scale=1.0),
    ClassBias(table=torch.randn(8, 4), rule=T5Buckets(8, 20, bidirectional=True, edge="t5x"), sign="query_minus_key"),
    ClassBias(table=torch.randn(7, 4), rule=Clip(3), sign="query_minus_key"),
], ids=["content", "alibi", "symmetric_inside_scale", "t5_causal", "t5_both_ways_reversed_sign", "clip"])
def test_agrees_with_the_eager_reference(term):
    """The two paths share the description of a term and nothing else; both train what it holds."""
    geometry = AttentionGeometry(torch.arange(16, 36), torch.arange(36), causal=True, key_active=torch.arange(36) != 5).to(DEVICE)
    leaf = {name: getattr(term, name).to(DEVICE, torch.float32).requires_grad_() for name in ("slopes", "table") if hasattr(term, name)}
    q, k, v = (x.requires_grad_() for x in qkv())
    term = None if term is None else replace(term, **leaf)
    out, trace = attend(q, k, v, term, geometry, backend="triton", return_trace=True)
    assert trace.backend == "triton"
    want = attend(q, k, v, term, geometry, backend="eager")
    torch.testing.assert_close(out, want, rtol=1e-5, atol=2e-6)
    gradients = [torch.autograd.grad(x.square().sum(), (q, k, v, *leaf.values())) for x in (out, want)]
    for seen, right in zip(*gradients):
        torch.testing.assert_close(seen, right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


def test_missing_heads_are_refused():
    q, k, v = qkv()
    rules = {"query_positions": torch.arange(20, device=DEVICE), "key_positions": torch.arange(36, device=DEVICE), "causal": True, "scale": 1.0}
    with pytest.raises(PositionContractError, match="4 heads"):
        kernels.forward(q, k, v, bias=kernels.BiasArgs.from_slopes(alibi_slopes(3).to(DEVICE), "relative"), **rules)


class Largest(TorchDispatchMode):
    """Remembers the largest storage, in bytes, behind any tensor that an operation returned."""

    nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.nbytes = max(self.nbytes, x.untyped_storage().nbytes())
        return result


def test_nothing_of_size_q_times_k():
    """The host makes nothing larger than an input, not even one boolean a pair; a program holds one tile."""
    n = 300
    q, positions = torch.randn(1, 1, n, 16, dtype=torch.float16, device=DEVICE), torch.arange(n, device=DEVICE)
    out, lse = torch.empty_like(q), torch.empty(1, 1, n, device=DEVICE)
    with Largest() as seen:
        call = Call(q, q, q, positions, positions, positions >= 0, positions, positions, torch.ones(1, 9, device=DEVICE), "t5", 4, True, 0.25)
        launch(out, lse, None, call)
        back = attention_backward(q, None, None, out, lse, lse.new_empty(1, 1, n, 0), [name in LEARNED[:4] for name in LEARNED], *call)
    torch.testing.assert_close(out, q)  # one segment a row: everyone reads itself
    assert 0 < seen.nbytes <= out.untyped_storage().nbytes() < n * n
    torch.testing.assert_close(back[2], q)  # v's gradient is that of out


def test_empty_calls():
    """No queries, no heads, no batch: nothing to do. No keys: every row is empty, so zero. Nothing has a gradient."""
    rules = {"causal": False, "scale": 1.0}
    for queries, keys, heads, batch in ((0, 5, 4, 2), (3, 0, 4, 2), (3, 5, 0, 2), (3, 5, 4, 0)):
        q, k, v = qkv(queries, keys, heads, batch=batch)
        positions = {"query_positions": torch.arange(queries, device=DEVICE), "key_positions": torch.arange(keys, device=DEVICE)}
        args, bias = leaves((q, k, v)), kernels.BiasArgs.from_slopes(torch.ones(heads, device=DEVICE, requires_grad=True), "relative")
        out = kernels.forward(*args[0], **positions, **rules, bias=bias)
        assert torch.equal(out, torch.zeros_like(q))
        for x, gradient in zip((*args[1], bias.table), torch.autograd.grad(out.sum(), (*args[1], bias.table))):
            assert torch.equal(gradient, torch.zeros_like(x))


def test_a_batch_of_none():
    """Rows of positions that it shares have a gradient of zeros all the same, and its padding is no distance."""
    q, k, v = qkv(3, 5, batch=0)
    rows = [torch.ones(1, 4, n, 16, device=DEVICE, requires_grad=True) for n in (3, 5)]
    positions = torch.arange(3, device=DEVICE), torch.arange(5, device=DEVICE)
    torch.use_deterministic_algorithms(True)  # fills what empty() returns with NaN
    try:
        out = kernels.forward(q, k, v, query_positions=positions[0], key_positions=positions[1], causal=False, scale=1.0,
                              form=ByRow(query_rows=rows[0], key_rows=rows[1]))
        gradients = torch.autograd.grad(out.sum(), rows)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(gradient, torch.zeros_like(x)) for x, gradient in zip(rows, gradients))
    geometry = AttentionGeometry(*positions, causal=True, key_active=torch.ones(0, 5, dtype=torch.bool, device=DEVICE))
    assert attend(q, k, v, TransformerXL(8, 4, 16).to(DEVICE)(geometry), geometry, backend="triton").shape == q.shape
