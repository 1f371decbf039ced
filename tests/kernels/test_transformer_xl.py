"""Transformer-XL through attend(): the fused kernel against the eager reference, with the gradients of u, v and the projection."""

import pytest
import torch

import positionlib as pl
from positionlib import kernels
from positionlib.capabilities import FAR
from positionlib.forms import ByLine, OnALine
from positionlib.kernels import launch
from positionlib.mechanisms.transformer_xl import SegmentMemory
from positionlib.runtime import fused
from tests.kernels.cases import DEVICE
from tests.kernels.test_operator import Largest

pytest.importorskip("triton")
H, D = 2, 16
PADDED = (torch.arange(20) - torch.tensor([[4], [0]])).clamp_min(0)
MEMORY = SegmentMemory(1, 30, "batch_first").update([torch.zeros(1, 30, 1)])
CAUSAL = {
    "self": pl.AttentionGeometry.causal_self(40),
    "memory": MEMORY.geometry(20),
    "left padded": pl.AttentionGeometry(PADDED, PADDED, causal=True, key_active=torch.arange(20) >= torch.tensor([[4], [0]])),
    "decode near 2^31, unwritten slots": pl.AttentionGeometry(
        torch.tensor([2**31 + 1]), torch.cat((torch.arange(2**31 - 30, 2**31 + 2), torch.zeros(3, dtype=torch.int64))), causal=True,
        key_active=torch.arange(35) < 32),
}
SHUFFLED = pl.AttentionGeometry(torch.arange(9).flip(0), torch.randperm(14, generator=torch.Generator().manual_seed(0)))


def qkv(geometry, heads=H, key_heads=1, dtype=torch.float32):
    make = torch.Generator().manual_seed(1)
    shapes = (heads, geometry.query_length), (key_heads, geometry.key_length), (key_heads, geometry.key_length)
    return [torch.randn(2, *shape, D, generator=make).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def module_of(**settings):
    torch.manual_seed(2)
    module = pl.TransformerXL(24, H, D, **settings).to(DEVICE)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return module


def agree(module, geometry):
    leaves = [*qkv(geometry), *module.parameters()]
    out, trace = pl.attend(*leaves[:3], module(geometry), geometry, backend="triton", return_trace=True)
    assert trace.backend == "triton"
    want = pl.attend(*leaves[:3], module(geometry), geometry, backend="eager")
    torch.testing.assert_close(out, want, rtol=1e-5, atol=4e-6)
    for seen, right in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (out, want))):
        torch.testing.assert_close(seen, right, rtol=1e-4, atol=2e-5 * float(right.abs().max()))


@pytest.mark.parametrize("clamp_len", [None, 7])
@pytest.mark.parametrize("name", CAUSAL)
def test_agrees_with_the_eager_reference(name, clamp_len):
    agree(module_of(clamp_len=clamp_len), CAUSAL[name].to(DEVICE))


@pytest.mark.parametrize("clamp_len", [None, 7])
def test_agrees_both_ways(clamp_len):
    agree(module_of(clamp_len=clamp_len, bidirectional=True), SHUFFLED.to(DEVICE))


def test_offsets_too_far_apart_need_a_clamp():
    """One row an offset would be 2^40 rows; with clamp_len all far ones are one."""
    far = pl.AttentionGeometry(torch.tensor([2**40, 2**40 + 1]), torch.tensor([0, 2**40 - 3]), causal=True).to(DEVICE)
    tensors = qkv(far)
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        pl.attend(*tensors, module_of()(far), far, backend="triton")
    assert no.value.missing == {FAR}
    agree(module_of(clamp_len=7), far)


def test_a_line_ends_where_its_distances_do():
    """Offsets are key minus query: the past is negative, and the future has none unless the module reads both ways."""
    term, both = module_of(clamp_len=7)(CAUSAL["self"]), module_of(bidirectional=True)(SHUFFLED)
    assert isinstance(term, OnALine) and [term.line(*ends) for ends in ((-39, 39), (-5, 0), (0, 0), (3, 9))] == [(-7, 0), (-5, 0), (-1, 0), (-1, 0)]
    assert [both.line(*ends) for ends in ((-39, 39), (3, 9), (4, 4))] == [(-39, 39), (3, 9), (3, 4)]
    form = term.by_line(-7, 0)
    assert form.first == -7 and torch.equal(form.rows, term.relative_keys(torch.arange(7, -1, -1, device=DEVICE)))


def test_float16_rounds_each_sum_once():
    geometry, module = CAUSAL["self"].to(DEVICE), module_of()
    tensors = [x.detach() for x in qkv(geometry, dtype=torch.float16)]
    exact = pl.attend(*(x.double() for x in tensors), module.double()(geometry), geometry, backend="eager")
    seen = pl.attend(*tensors, module.float()(geometry), geometry, backend="triton")
    assert seen.dtype == torch.float16 and float((seen.double() - exact).detach().abs().max()) < 8e-3


def test_no_queries_and_no_keys():
    for queries, keys in ((0, 5), (3, 0)):
        geometry = pl.AttentionGeometry(torch.arange(queries), torch.arange(keys), causal=True).to(DEVICE)
        tensors, module = qkv(geometry), module_of()
        out = pl.attend(*tensors, module(geometry), geometry, backend="triton")
        assert torch.equal(out, torch.zeros_like(tensors[0]))
        for gradient in torch.autograd.grad(out.sum(), [*tensors, *module.parameters()]):
            assert not gradient.any()


def test_a_traced_graph_is_refused_by_name(monkeypatch):
    """It has no positions whose values would say how long the line is."""
    geometry, module = CAUSAL["self"].to(DEVICE), module_of()
    tensors, term = qkv(geometry), module(geometry)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fused.refusal(*tensors, term, geometry).missing == {"a traced graph"}


@pytest.mark.parametrize("field, shape", [("rows", (3, 5, D)), ("rows", (H, 1, D)), ("content_bias", (H, D + 1)), ("position_bias", (3, D))])
def test_a_line_for_other_heads_is_refused(field, shape):
    q, k, v = (x.detach() for x in qkv(CAUSAL["self"]))
    fields = {"rows": torch.zeros(H, 5, D), "content_bias": torch.zeros(H, D), "position_bias": torch.zeros(H, D)} | {field: torch.zeros(shape)}
    positions = torch.arange(40, device=DEVICE)
    with pytest.raises(pl.PositionContractError, match=field):
        kernels.forward(q, k, v, query_positions=positions, key_positions=positions, causal=True, scale=1.0,
                        form=ByLine(first=-4, **{name: x.to(DEVICE) for name, x in fields.items()}))


def test_nothing_of_size_q_times_k(monkeypatch):
    """What the host makes for both passes, without running them: at most N times a tile's windows of offsets."""
    monkeypatch.setattr(launch, "_run", lambda *_: None)
    n = 3000
    q = torch.randn(1, 1, n, D, dtype=torch.float16, device=DEVICE, requires_grad=True)
    geometry, module = pl.AttentionGeometry.causal_self(n).to(DEVICE), pl.TransformerXL(D, 1, D).to(DEVICE)
    with Largest() as seen:
        pl.attend(q, q, q, module(geometry), geometry, backend="triton").sum().backward()
    assert q.untyped_storage().nbytes() < seen.nbytes < n * n and module.weight.grad is not None
