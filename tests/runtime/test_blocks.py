"""backend="blocked" against the eager reference: every term, every geometry, values and gradients."""

import math

import pytest
import torch

import positionlib as pl
from positionlib.runtime import blocks
from positionlib.terms import Relation
from tests.runtime.calls import D, H, LONG, N, OTHERS, RUNS, SHORT, fitting, inputs, mechanism, outcome
from tests.runtime.test_sdpa import Largest


@pytest.fixture(params=["as shipped", "cut small"])
def block_sizes(request, monkeypatch):
    """Once as shipped, and once so small that every call crosses edges of blocks, tiles and groups of heads."""
    if request.param == "cut small":
        for name, size in (("ROWS", 24), ("TILE", 10), ("BUDGET", 2500)):
            monkeypatch.setattr(blocks, name, size)


@pytest.mark.parametrize("name", RUNS | OTHERS)
def test_agrees_with_eager_forward_and_backward(name, block_sizes):
    geometry = (RUNS | OTHERS)[name]
    chosen = fitting(SHORT | LONG, geometry)
    assert len(chosen) > 10
    for mechanism_name in chosen:
        module = mechanism((SHORT | LONG)[mechanism_name])
        for seen, want in zip(outcome("blocked", module, geometry, inputs(geometry)), outcome("eager", module, geometry, inputs(geometry))):
            assert torch.allclose(seen, want, atol=2e-12, rtol=1e-12), mechanism_name


@pytest.mark.parametrize("name", ["shaw", "bert both", "transformer-xl", "deberta released"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_computed_wide_and_rounded_once(name, dtype):
    geometry, module = RUNS["causal"], mechanism(LONG[name], torch.float32)
    seen, want = (outcome(b, module, geometry, inputs(geometry, dtype)) for b in ("blocked", "eager"))
    unit = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps
    for x, y in zip(seen, want):
        assert x.dtype == y.dtype and bool(((x.double() - y.double()).abs() <= unit * y.double().abs() + 1e-5 * max(1.0, float(y.abs().max()))).all())


@pytest.mark.parametrize("name", ["bert both", "t5 causal"])
def test_grouped_key_heads_wide_values_and_strides(name):
    geometry, module = RUNS["causal"], mechanism((SHORT | LONG)[name])

    def tensors():
        q, k, v = inputs(geometry, key_heads=2, width=D + 3)
        return [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v)]

    for seen, want in zip(*(outcome(b, module, geometry, tensors()) for b in ("blocked", "eager"))):
        assert torch.allclose(seen, want, atol=1e-12, rtol=1e-12)


def test_values_of_a_relation_may_be_wider():
    geometry = RUNS["encoder"]
    module = mechanism(lambda: pl.ShawRelative(9, D, sign="key_minus_query", heads=H, d_value=D + 3))
    for seen, want in zip(*(outcome(b, module, geometry, inputs(geometry, width=D + 3)) for b in ("blocked", "eager"))):
        assert torch.allclose(seen, want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("name", ["t5 causal", "shaw"])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other(name, which, bad):
    geometry, module = RUNS["packed"], mechanism((SHORT | LONG)[name])
    tensors = inputs(geometry)
    with torch.no_grad():
        tensors[which][0, 1, 37, 2] = bad
    seen, want = (outcome(b, module, geometry, tensors) for b in ("blocked", "eager"))
    assert bool(want[0].isnan().any()) and bool(want[0][1].isfinite().all())
    for x, y in zip(seen, want):
        assert torch.allclose(x, y, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["right padded", "left padded"])
def test_what_lies_in_padding_costs_neither_the_result_nor_the_fast_path(name):
    geometry, module = (RUNS | OTHERS)[name], mechanism(SHORT["alibi symmetric inside"])
    q, k, v = (t.detach() for t in inputs(geometry))
    want = pl.attend(q, k, v, module(geometry), geometry, backend="blocked")
    hidden = ~geometry.key_active[:, None, :, None]
    spoiled = [t.masked_fill(hidden, math.nan) for t in (k, v)]
    assert torch.equal(pl.attend(q, *spoiled, module(geometry), geometry, backend="blocked"), want)
    assert (name == "left padded") == ("no run" in str(refused_by_sdpa(q, *spoiled, module(geometry), geometry)))


@pytest.mark.parametrize("name", ["t5 causal", "rotary", "shaw", "transformer-xl", "deberta released"])
def test_a_default_device_of_the_caller_changes_nothing(name):
    module = mechanism((SHORT | LONG)[name])
    for geometry in (RUNS["causal"], RUNS["packed"], OTHERS["left padded"]):
        want = outcome("blocked", module, geometry, inputs(geometry))[0]
        q, k, v = inputs(geometry)
        with torch.device("meta"):
            seen = pl.attend(q, k, v, module(geometry), geometry, backend="blocked")
        assert seen.device.type == "cpu" and torch.equal(seen.detach(), want)


def refused_by_sdpa(*call) -> str | None:
    try:
        pl.attend(*call, backend="sdpa")
    except pl.UnsupportedPositionContract as refusal:
        return str(refusal)
    return None


@pytest.mark.parametrize("fault", ["query", "key_table"])
def test_a_hidden_infinite_score_has_no_influence(fault):
    """Scores that overflow go to the reference, which replaces them; a fast path that adds −∞ to them would give NaN."""
    geometry = RUNS["causal"]
    q, k, v = (t.detach().float() for t in inputs(geometry))
    table = torch.randn(2 * N - 1, D)
    if fault == "query":
        q[:, :, :5] *= 1e25
        k[:, :, -1:] *= 1e25
    else:
        table[N - 1 + 3] = math.inf  # an offset that only hidden pairs have

    class Rows(pl.BertRelative):
        def forward(self, geometry):
            return Relation(key_table=table, value_table=None, rule=self.rule, sign="key_minus_query")

    seen, want = (pl.attend(q, k, v, Rows(N, D, variant="relative_key")(geometry), geometry, backend=b) for b in ("blocked", "eager"))
    assert bool(want[:, :, :5].isfinite().all()) and torch.allclose(seen, want, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["bert both", "deberta paper", "shaw", "tupe"])
def test_nothing_of_size_q_times_k_stays_alive(name):
    """The largest tensor is a fraction of the scores; TUPE's bias is its own, already made."""
    n = 600
    geometry = pl.AttentionGeometry.encoder(n)
    q, k, v = (torch.randn(2, H, n, D, requires_grad=True) for _ in range(3))
    builders = LONG | {"bert both": lambda: pl.BertRelative(n, D, variant="relative_key_query"), "tupe": lambda: pl.TUPE(H, H * D, n)}
    term = mechanism(builders[name], torch.float32)(geometry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BUDGET", 100_000)
        with Largest() as seen:
            pl.attend(q, k, v, term, geometry, backend="blocked").sum().backward(inputs=[q, k, v])
    scores = 2 * H * n * n
    assert seen.numbers < scores / (1.9 if name == "tupe" else 10)


def test_terms_of_other_heads_are_refused_in_their_own_words():
    geometry = RUNS["causal"]
    for build in (lambda: pl.TransformerXL(3 * D, 3, D), lambda: pl.DeBERTa(1, D, 20, terms=("c2p",), third_index="paper", projections="own")):
        for backend in ("blocked", "eager"):
            with pytest.raises(pl.PositionContractError, match=f"{H}"):
                pl.attend(*inputs(geometry), mechanism(build)(geometry), geometry, backend=backend)


def test_gradcheck():
    """The written-out backward pass against differences of its own forward pass, rows on both sides."""
    geometry = pl.AttentionGeometry.causal_self(9)
    make = torch.Generator().manual_seed(2)
    q, k, v, keys, values = (torch.randn(*shape, generator=make, dtype=torch.float64, requires_grad=True)
                             for shape in ((1, 2, 9, 3),) * 3 + ((7, 3),) * 2)
    rule = pl.ShawRelative(3, 3, sign="key_minus_query").rule

    def run(q, k, v, keys, values):
        return pl.attend(q, k, v, Relation(key_table=keys, value_table=values, rule=rule, sign="key_minus_query"), geometry, backend="blocked")

    assert torch.autograd.gradcheck(run, (q, k, v, keys, values))
