"""The registered operator and its host side: opcheck, torch.compile, memory, and agreement with the eager reference."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from positionlib import kernels
from positionlib.attention import attend
from positionlib.errors import PositionContractError, UnsupportedPositionContract
from positionlib.geometry import AttentionGeometry
from positionlib.kernels.launch import attention_forward, launch
from positionlib.rules import Clip, T5Buckets, alibi_slopes
from positionlib.terms import ClassBias, SlopeBias
from tests.kernels.cases import DEVICE

pytest.importorskip("triton")


def qkv(queries=20, keys=36, heads=4, key_heads=2, width=16):
    make = torch.Generator().manual_seed(1)
    return [torch.randn(2, h, n, width, generator=make).to(DEVICE) for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys))]


def arguments(kind="alibi_relative", **sizes):
    q, k, v = qkv(**sizes)
    table = {"content": None, "t5": torch.randn(4, 9, device=DEVICE)}.get(kind, alibi_slopes(4).to(DEVICE))
    positions = torch.arange(16, 16 + q.shape[2], device=DEVICE), torch.arange(k.shape[2], device=DEVICE)
    active = torch.arange(k.shape[2], device=DEVICE) != 5
    segments = [torch.arange(n, device=DEVICE) // 18 for n in (q.shape[2], k.shape[2])]
    return q, k, v, *positions, active, *segments, table, kind, 4, True, 0.25


@pytest.mark.parametrize("kind", ["content", "t5", "alibi_symmetric"])
def test_opcheck(kind):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes."""
    assert set(torch.library.opcheck(attention_forward, arguments(kind)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic):
    def model(*args):
        out, lse = attention_forward(*args)
        return out * 2, lse + 1

    args = arguments()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for seen, want in zip(compiled(*args), model(*args)):
        assert torch.equal(seen, want)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")  # T5's thresholds, pure
def test_the_host_side_compiles_without_a_graph_break():
    """Admission, the table laid out by offset, and the operator, in one graph."""
    q, k, v = qkv()
    table, rule = torch.randn(8, 4, device=DEVICE), T5Buckets(8, 20, bidirectional=True)

    def model(q, k, v):
        bias = kernels.BiasArgs.from_classes(table, rule, "key_minus_query")
        return kernels.forward(q, k, v, query_positions=torch.arange(16, 36, device=DEVICE), key_positions=torch.arange(36, device=DEVICE),
                               causal=True, scale=0.25, bias=bias)

    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(q, k, v), model(q, k, v))


@pytest.mark.parametrize("term", [
    None,
    SlopeBias(slopes=alibi_slopes(4)),
    SlopeBias(slopes=alibi_slopes(4), form="symmetric", inside_scale=True),
    ClassBias(table=torch.randn(32, 4), rule=T5Buckets(32, 20, bidirectional=False), sign="key_minus_query", score_scale=1.0),
    ClassBias(table=torch.randn(8, 4), rule=T5Buckets(8, 20, bidirectional=True, edge="t5x"), sign="query_minus_key"),
    ClassBias(table=torch.randn(7, 4), rule=Clip(3), sign="query_minus_key"),
], ids=["content", "alibi", "symmetric_inside_scale", "t5_causal", "t5_both_ways_reversed_sign", "clip"])
def test_agrees_with_the_eager_reference(term):
    """The two paths share the description of a term and nothing else."""
    q, k, v = qkv()
    geometry = AttentionGeometry(torch.arange(16, 36), torch.arange(36), causal=True, key_active=torch.arange(36) != 5).to(DEVICE)
    for name in ("slopes", "table"):
        if hasattr(term, name):
            object.__setattr__(term, name, getattr(term, name).to(DEVICE))
    out, trace = attend(q, k, v, term, geometry, backend="triton", return_trace=True)
    assert trace.backend == "triton"
    torch.testing.assert_close(out, attend(q, k, v, term, geometry, backend="eager"), rtol=1e-5, atol=2e-6)


def test_gradients_and_missing_heads_are_refused():
    q, k, v = qkv()
    rules = {"query_positions": torch.arange(20, device=DEVICE), "key_positions": torch.arange(36, device=DEVICE), "causal": True, "scale": 1.0}
    with pytest.raises(UnsupportedPositionContract, match="no backward") as refused:
        kernels.forward(q.requires_grad_(), k, v, **rules)
    assert refused.value.missing
    with torch.no_grad():
        assert kernels.forward(q, k, v, **rules).shape == q.shape
    with pytest.raises(PositionContractError, match="4 heads"):
        kernels.forward(q.detach(), k, v, bias=kernels.BiasArgs.from_slopes(alibi_slopes(3).to(DEVICE), "relative"), **rules)


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
    n = 700
    q, positions = torch.randn(1, 1, n, 16, dtype=torch.float16, device=DEVICE), torch.arange(n, device=DEVICE)
    out, lse = torch.empty_like(q), torch.empty(1, 1, n, device=DEVICE)
    with Largest() as seen:
        launch(out, lse, q, q, q, positions, positions, positions >= 0, positions, positions, torch.ones(1, 9, device=DEVICE), "t5", 4,
               True, 0.25)
    torch.testing.assert_close(out, q)  # one segment a row: everyone reads itself
    assert 0 < seen.nbytes <= out.untyped_storage().nbytes() < n * n


def test_empty_calls():
    """No queries: nothing to do. No keys: every row is empty, so zero."""
    rules = {"causal": False, "scale": 1.0}
    for queries, keys in ((0, 5), (3, 0)):
        q, k, v = qkv(queries, keys)
        positions = {"query_positions": torch.arange(queries, device=DEVICE), "key_positions": torch.arange(keys, device=DEVICE)}
        assert torch.equal(kernels.forward(q, k, v, **positions, **rules), torch.zeros_like(q))
