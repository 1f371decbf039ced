"""backend="sdpa" and what auto chooses on a CPU, against the eager reference."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import positionlib as pl
from positionlib.capabilities import FREE, SCATTERED
from positionlib.runtime import blocks
from tests.runtime.calls import D, H, N, OTHERS, RUNS, SHORT, fitting, inputs, mechanism, outcome


@pytest.fixture(params=["as shipped", "cut small"])
def block_sizes(request, monkeypatch):
    """Once as shipped, and once so small that every call crosses block edges."""
    if request.param == "cut small":
        monkeypatch.setattr(blocks, "CAUSAL_ROWS", 24)
        monkeypatch.setattr(blocks, "ROWS", 24)
        monkeypatch.setattr(blocks, "BUDGET", 5000)


@pytest.mark.parametrize("name", RUNS)
def test_agrees_with_eager_forward_and_backward(name, block_sizes):
    geometry = RUNS[name]
    chosen = fitting(SHORT, geometry)
    assert {"content", "rotary"} < set(chosen)
    for mechanism_name in chosen:
        module = mechanism(SHORT[mechanism_name])
        for seen, want in zip(outcome("sdpa", module, geometry, inputs(geometry)), outcome("eager", module, geometry, inputs(geometry))):
            assert torch.allclose(seen, want, atol=1e-12, rtol=1e-12), mechanism_name


def test_rows_that_see_nothing_are_zero_with_finite_gradients():
    geometry = RUNS["rows before every key"]
    out, *grads = outcome("sdpa", pl.ALiBi(H), geometry, inputs(geometry, torch.float32))
    assert bool((out[:, :, :13] == 0).all()) and bool((out[:, :, 13:] != 0).all())
    assert all(bool(g.isfinite().all()) for g in grads) and bool((grads[0][:, :, :13] == 0).all())


@pytest.mark.parametrize("key_heads", [2, 1])
def test_grouped_key_heads(key_heads):
    geometry, module = RUNS["chunk"], mechanism(SHORT["t5 causal"])
    for seen, want in zip(*(outcome(b, module, geometry, inputs(geometry, key_heads=key_heads)) for b in ("sdpa", "eager"))):
        assert seen.shape == want.shape and torch.allclose(seen, want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype, unit", [(torch.float32, 0.0), (torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
def test_every_dtype_is_computed_wide_and_rounded_once(dtype, unit):
    geometry, module = RUNS["causal"], mechanism(SHORT["alibi"])
    want = pl.attend(*(t.double() for t in inputs(geometry, dtype)), module(geometry), geometry, backend="eager")
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got = pl.attend(*inputs(geometry, dtype), module(geometry), geometry, backend="sdpa")
        assert got.dtype == dtype and bool(((got.double() - want).abs() <= unit * want.abs() + 2e-6).all())


def test_strides_do_not_matter():
    geometry, module = RUNS["encoder"], mechanism(SHORT["t5"])
    plain = inputs(geometry)
    strided = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in plain]
    assert not strided[0].is_contiguous()
    for seen, want in zip(outcome("sdpa", module, geometry, strided), outcome("sdpa", module, geometry, plain)):
        assert torch.allclose(seen, want, atol=1e-13, rtol=0)


class Largest(TorchDispatchMode):
    """Remembers the largest storage, in numbers, that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_torch_takes_the_mask_as_a_view_and_nothing_of_size_q_times_k_is_made(causal):
    """With a mask that wants a gradient torch would quietly expand everything."""
    n, geometry = 1200, pl.AttentionGeometry.causal_self(1200) if causal else pl.AttentionGeometry.encoder(1200)
    q, k, v = (torch.randn(1, H, n, D, requires_grad=True) for _ in range(3))
    module = pl.T5Bias(H, bidirectional=not causal)
    with Largest() as seen:
        out = pl.attend(q, k, v, module(geometry), geometry, backend="sdpa")
    assert seen.numbers <= q.numel() < n * n / 10
    with Largest() as seen:
        out.sum().backward()
    assert seen.numbers <= 1.5 * blocks.BUDGET < H * n * n / 3


@pytest.mark.parametrize("name, reason, missing", [
    ("left padded", "no run", SCATTERED), ("shuffled", "consecutive", SCATTERED), ("scattered padding", "consecutive", SCATTERED),
    ("allowed", "visibility matrix", FREE), ("no keys", "runs", SCATTERED)])
def test_other_geometries_are_refused_by_name(name, reason, missing):
    geometry = OTHERS[name]
    with pytest.raises(pl.UnsupportedPositionContract, match=reason) as refused:
        pl.attend(*inputs(geometry), None, geometry, backend="sdpa")
    assert refused.value.field == "backend" and refused.value.missing == {missing}


def test_what_it_cannot_compute_is_refused_by_name():
    geometry = RUNS["encoder"]
    q, k, v = inputs(geometry)
    shaw, wide = mechanism(lambda: pl.ShawRelative(9, D, sign="key_minus_query")), inputs(geometry, width=D + 1)
    flat = q.detach().masked_fill(torch.arange(D) == 0, torch.nan)
    far = pl.AttentionGeometry(torch.cat((torch.arange(35), torch.arange(2**40, 2**40 + 35))), torch.arange(N), query_segments=torch.arange(N) // 35,
                               key_segments=torch.arange(N) // 35)
    for reason, tensors, term, g in (("each offset", (q, k, v), shaw(geometry), geometry), ("width 7", wide, None, geometry),
                                     ("finite", (flat, k, v), None, geometry), ("finite", (q * 1e20, k * 1e20, v), None, geometry),
                                     ("far apart", (q, k, v), mechanism(SHORT["t5"])(far), far),
                                     ("device meta", [t.to("meta") for t in (q, k, v)], None, geometry.to("meta"))):
        with pytest.raises(pl.UnsupportedPositionContract, match=reason):
            pl.attend(*tensors, term, g, backend="sdpa")


def test_a_second_derivative_is_refused():
    geometry = RUNS["encoder"]
    q, k, v = inputs(geometry)
    out = pl.attend(q, k, v, None, geometry, backend="sdpa")
    with pytest.raises(pl.UnsupportedPositionContract, match="eager"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("backend", ["sdpa", "blocked"])
def test_a_batch_of_gradients_is_refused_and_a_callers_autocast_does_not_round_one(backend):
    geometry, weights = RUNS["encoder"], torch.ones(2, H, N, D, dtype=torch.float32)
    q, k, v = inputs(geometry, torch.float32)
    out = pl.attend(q, k, v, None, geometry, backend=backend)
    for batched in (lambda: torch.autograd.grad(out, q, weights[None], is_grads_batched=True, retain_graph=True),
                    lambda: torch.func.vmap(lambda w: torch.autograd.grad(out, q, w, retain_graph=True)[0])(weights[None])):
        with pytest.raises(pl.UnsupportedPositionContract, match="batch of gradients"):
            batched()
    want = torch.autograd.grad(out, (q, k, v), weights, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, torch.autograd.grad(out, (q, k, v), weights), want))


@pytest.mark.parametrize("backend", ["sdpa", "blocked", "eager"])
def test_no_heads_are_no_rows(backend):
    q, k = torch.zeros(1, 0, 5, D), torch.zeros(1, 1, 5, D)
    assert pl.attend(q, k, k, pl.ALiBi(2, head_ids=[])(pl.AttentionGeometry.causal_self(5)), pl.AttentionGeometry.causal_self(5), backend=backend).shape == q.shape


def large() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 200, 64) for _ in range(3)]


@pytest.mark.parametrize("geometry, module, backend", [
    (pl.AttentionGeometry.causal_self(200), pl.ALiBi(2), "sdpa"),
    (pl.AttentionGeometry.causal_self(200), pl.ShawRelative(4, 64, sign="key_minus_query"), "blocked"),
    (pl.AttentionGeometry.encoder(200, allowed=torch.ones(200, 200, dtype=torch.bool)), pl.T5Bias(2, bidirectional=True), "blocked")])
def test_auto_takes_the_best_path_and_a_trace_names_it(geometry, module, backend, monkeypatch):
    monkeypatch.setattr(blocks, "BUDGET", 10_000)
    q, k, v = large()
    made, numbers = {}, {}
    for name in ("auto", backend, "eager"):
        with Largest() as seen:
            made[name] = pl.attend(q, k, v, module(geometry), geometry, backend=name)
        numbers[name] = seen.numbers
    auto, eager = made["auto"], made["eager"]
    assert torch.equal(auto, made[backend]) and torch.allclose(auto, eager, atol=2e-6)
    assert numbers["auto"] < 2 * 200 * 200 <= numbers["eager"]
    out, trace = pl.attend(q, k, v, module(geometry), geometry, return_trace=True)
    assert trace.backend == "eager" and f"without one {backend}" in trace.reason and torch.equal(out, eager)


def test_auto_leaves_small_calls_and_traced_calls_to_the_reference():
    geometry = pl.AttentionGeometry.encoder(200)
    q, k, v = large()
    want = pl.attend(q, k, v, None, geometry, backend="eager")
    small = [t[:, :, :9] for t in (q, k, v)]
    assert "small" in pl.attend(*small, None, pl.AttentionGeometry.encoder(9), return_trace=True)[1].reason

    def run(q):
        return pl.attend(q, k, v, None, geometry)

    def reason(q):
        return q + 1, pl.attend(q, k, v, None, geometry, return_trace=True)[1].reason

    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(q), want)
    assert "traced" in torch.compile(reason, backend="aot_eager", fullgraph=True)(q)[1]
    assert torch.equal(torch.func.vmap(run)(q[None])[0], want)
    assert torch.equal(torch.func.jvp(run, (q,), (q,))[0], want)
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(run(torch.autograd.forward_ad.make_dual(q, q))).primal, want)
