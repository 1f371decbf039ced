"""Admission against attention itself: every cell of mechanism × backend is admitted and agrees with eager, or is refused by name."""

from dataclasses import replace

import pytest
import torch

import positionlib as pl
from positionlib.admission import FALLBACKS, admit, needs_of
from positionlib.attention import BACKENDS
from positionlib.capabilities import (
    BIAS, CAUSAL, CONTENT_BIAS, FAR, FREE, KEY_BIAS, KEY_SCORE, NO_CONTENT, OPEN_CLASSES, PADDING, PAIR_BIAS, PAIR_RELATION, PAIR_SCORE,
    QUERY_SCORE, ROTATION, ROUNDED_BIAS, ROW_SCORE, SCATTERED, SEGMENTS, UNBOUNDED, VALUE_SUM, of_term,
)
from positionlib.forms import ByOffset
from positionlib.kernels import available
from positionlib.terms import ClassBias, Decomposition
from tests.refusals import refused
from tests.runtime import calls
from tests.runtime.calls import D, H, LONG, OTHERS, RUNS, SHORT, fitting, inputs, mechanism, outcome

SHOWN_BY_NUMBERS = {SCATTERED, FAR, UNBOUNDED}
NEEDS = {
    "content": set(), "rotary": {ROTATION}, "t5": {BIAS}, "t5 causal": {BIAS, CAUSAL}, "alibi": {BIAS, CAUSAL}, "alibi symmetric inside": {BIAS},
    "alibi by key": {KEY_BIAS, CAUSAL}, "alibi to the last key": {KEY_BIAS, CAUSAL}, "falcon": {KEY_BIAS, ROUNDED_BIAS, CAUSAL},
    "shaw": {QUERY_SCORE, VALUE_SUM}, "shaw by head": {QUERY_SCORE, VALUE_SUM}, "shaw values": {VALUE_SUM}, "bert keys": {QUERY_SCORE},
    "bert both": {QUERY_SCORE, KEY_SCORE}, "music": {QUERY_SCORE, VALUE_SUM, CAUSAL},
    "transformer-xl": {BIAS, QUERY_SCORE, CONTENT_BIAS, CAUSAL}, "deberta paper": {QUERY_SCORE, KEY_SCORE},
    "deberta released": {QUERY_SCORE, KEY_SCORE}, "deberta third alone": {KEY_SCORE, NO_CONTENT}, "tupe": {PAIR_SCORE}, "tupe in parts": {ROW_SCORE, BIAS},
    "edges": {PAIR_RELATION, QUERY_SCORE, VALUE_SUM}, "axes": {PAIR_BIAS},
}
TAKEN = {BIAS, CAUSAL, CONTENT_BIAS, QUERY_SCORE, KEY_SCORE, VALUE_SUM, NO_CONTENT, PAIR_RELATION, ROTATION, ROW_SCORE}  # by the fused kernel


def geometry_for(name: str) -> pl.AttentionGeometry:
    return next(g for g in RUNS.values() if name in fitting({name: (SHORT | LONG)[name]}, g))


@pytest.mark.parametrize("name", SHORT | LONG)
def test_what_a_term_needs_is_read_off_the_term(name):
    assert of_term(mechanism((SHORT | LONG)[name])(geometry_for(name))) == NEEDS[name]


def test_what_a_call_needs():
    assert of_term(pl.NoPE()(RUNS["causal"])) == {CAUSAL}
    q, k, v = inputs(RUNS["packed"], torch.float32, width=D + 1)
    assert needs_of(q, k, v, None, RUNS["packed"]) == {CAUSAL, SEGMENTS, "device cpu", "dtype float32", f"head width {D}", f"value width {D + 1}"}
    assert FREE in needs_of(*inputs(OTHERS["allowed"]), None, OTHERS["allowed"])
    assert PADDING in needs_of(*inputs(RUNS["right padded"]), None, RUNS["right padded"])


@pytest.mark.parametrize("backend", ["sdpa", "blocked"])
@pytest.mark.parametrize("name", RUNS | OTHERS)
def test_every_cell_runs_and_agrees_with_eager_or_is_refused_by_name(name, backend):
    geometry = (RUNS | OTHERS)[name]
    for mechanism_name in fitting(SHORT | LONG, geometry):
        module, tensors = mechanism((SHORT | LONG)[mechanism_name]), inputs(geometry)
        term = module(geometry)
        try:
            found = admit(*tensors, term, geometry, backend=backend)
        except pl.UnsupportedPositionContract as no:
            assert backend == "sdpa" and no.missing and no.missing <= needs_of(*tensors, term, geometry) | SHOWN_BY_NUMBERS, mechanism_name
            with pytest.raises(pl.UnsupportedPositionContract) as again:
                pl.attend(*tensors, term, geometry, backend=backend)
            assert str(again.value) == str(no) and again.value.missing == no.missing
            second = admit(*tensors, term, geometry, backend=backend, fallback="eager")
            assert (second.status, second.backend, second.missing) == ("fallback", "eager", no.missing)
            continue
        assert (found.status, found.backend, found.missing) == ("admitted", backend, frozenset())
        for seen, want in zip(outcome(backend, module, geometry, tensors), outcome("eager", module, geometry, tensors)):
            assert torch.allclose(seen, want, atol=2e-12, rtol=1e-12), mechanism_name


def test_nothing_is_called_missing_that_the_backend_has():
    """What it has is what the calls needed that it took."""
    has, lacks = set(), set()
    for name in SHORT | LONG:
        geometry = geometry_for(name)
        tensors, term = inputs(geometry), mechanism((SHORT | LONG)[name])(geometry)
        try:
            admit(*tensors, term, geometry, backend="sdpa")
            has |= of_term(term)
        except pl.UnsupportedPositionContract as no:
            lacks |= no.missing
    assert has == {BIAS, KEY_BIAS, CAUSAL, ROTATION}
    assert lacks == {ROUNDED_BIAS, QUERY_SCORE, KEY_SCORE, VALUE_SUM, CONTENT_BIAS, NO_CONTENT, PAIR_RELATION, PAIR_SCORE, ROW_SCORE, PAIR_BIAS}


@pytest.mark.skipif(not available(), reason="no fused kernel can run here")
@pytest.mark.parametrize("name", SHORT | LONG)
def test_every_cell_of_the_fused_kernel_runs_and_agrees_with_eager_or_is_refused_by_name(name, monkeypatch):
    monkeypatch.setattr(calls, "D", 16)  # the narrowest head that the kernel takes
    device, module = "cuda" if torch.cuda.is_available() else "cpu", mechanism((SHORT | LONG)[name], torch.float32)
    geometry = geometry_for(name).slice_queries(0, 20).to(device)
    q, k, v = (t.detach().to(device) for t in inputs(geometry, torch.float32, width=16))
    module = module.to(device) if isinstance(module, torch.nn.Module) else module
    term = module(geometry)
    if NEEDS[name] <= TAKEN:
        assert admit(q, k, v, term, geometry, backend="triton").status == "admitted"
        got, want = (pl.attend(q, k, v, term, geometry, backend=backend) for backend in ("triton", "eager"))
        assert torch.allclose(got, want, atol=2e-6 if device == "cpu" else 2e-2)  # a GPU multiplies float32 in tf32
        return
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        admit(q, k, v, term, geometry, backend="triton")
    assert no.value.missing == NEEDS[name] - TAKEN


@pytest.mark.skipif(not available(), reason="no fused kernel can run here")
@pytest.mark.parametrize("change, missing", [
    (dict(width=24), {"head width 24"}), (dict(width=16, values=32), {"value width 32"}),
    (dict(geometry=pl.AttentionGeometry.encoder(5, allowed=torch.ones(5, 5, dtype=torch.bool))), {FREE}), (dict(device="meta"), {"device meta"})])
def test_what_the_fused_kernel_lacks_is_among_the_needs_of_the_call(change, missing):
    width, device = change.get("width", 16), change.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    q, v = torch.zeros(1, 2, 5, width, device=device), torch.zeros(1, 2, 5, change.get("values", width), device=device)
    geometry = change.get("geometry", pl.AttentionGeometry.encoder(5)).to(device)
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        admit(q, q, v, None, geometry, backend="triton")
    assert no.value.missing == missing <= needs_of(q, q, v, None, geometry)


# --- nothing is dropped ---------------------------------------------------------------------------------------------

G = pl.AttentionGeometry.causal_self(40)
BOTH = pl.AttentionGeometry.encoder(40)


@pytest.mark.parametrize("part, build, geometry, cut, missing", [
    ("Shaw's value term", lambda: pl.ShawRelative(9, D, sign="key_minus_query"), BOTH, lambda t: replace(t, value_table=None), VALUE_SUM),
    ("one DeBERTa direction", LONG["deberta released"], BOTH, lambda t: replace(t, pos_query=None), KEY_SCORE),
    ("TUPE's CLS override", lambda: pl.TUPE(H, H * D, 120), BOTH, "no cls", PAIR_SCORE),
])
def test_no_term_is_dropped_to_reach_a_faster_backend(part, build, geometry, cut, missing):
    module, tensors = mechanism(build), inputs(geometry)
    term = module(geometry)
    if cut == "no cls":
        tied = mechanism(lambda: pl.TUPE(H, H * D, 120, cls_position=None))
        tied.load_state_dict(module.state_dict())
        trimmed = tied(geometry)
    else:
        trimmed = cut(term)
    whole, less = (pl.attend(*tensors, t, geometry, backend="eager") for t in (term, trimmed))
    assert whole.shape == less.shape and float((whole - less).detach().abs().max()) > 1e-3, f"{part} must matter, or this test cannot fail"
    for backend in ("sdpa", "triton") if missing not in TAKEN else ("sdpa",):
        with pytest.raises(pl.UnsupportedPositionContract) as no:
            admit(*tensors, term, geometry, backend=backend)
        assert missing in no.value.missing, part
    for backend in ("blocked", "auto"):
        assert torch.allclose(pl.attend(*tensors, term, geometry, backend=admit(*tensors, term, geometry, backend=backend).backend), whole, atol=1e-12), part


def test_the_mask_of_a_causal_model_without_positions_is_not_dropped():
    """Its term is refused under a geometry without the mask, by every backend; and no backend reads the future."""
    term, tensors = pl.NoPE()(G), inputs(G)
    for backend in BACKENDS:
        assert refused(lambda: admit(*tensors, term, BOTH, backend=backend), "geometry.causal").value is False
    whole, less = pl.attend(*tensors, term, G, backend="eager"), pl.attend(*tensors, None, BOTH, backend="eager")
    assert float((whole - less).detach().abs().max()) > 1e-3
    for backend in ("sdpa", "blocked", "auto"):
        assert torch.allclose(pl.attend(*tensors, term, G, backend=admit(*tensors, term, G, backend=backend).backend), whole, atol=1e-12)


# --- the choice -----------------------------------------------------------------------------------------------------

def test_auto_falls_back_by_itself_and_says_what_was_missing(monkeypatch):
    monkeypatch.setattr("positionlib.runtime.cpu.SMALL", 0)
    shaw, tensors = mechanism(lambda: pl.ShawRelative(9, D, sign="key_minus_query")), inputs(G)
    found = admit(*tensors, shaw(G), G, backend="auto")
    assert (found.status, found.backend, found.missing) == ("fallback", "blocked", {QUERY_SCORE, VALUE_SUM}) and "each offset" in found.reason
    found = admit(*tensors, pl.ALiBi(H)(G), G, backend="auto")
    assert (found.status, found.backend, found.missing) == ("admitted", "sdpa", frozenset())
    monkeypatch.setattr("positionlib.runtime.cpu.SMALL", 2**62)
    found = admit(*tensors, shaw(G), G, backend="auto")
    assert (found.status, found.backend, found.missing) == ("admitted", "eager", frozenset()) and "small" in found.reason


def test_a_fallback_is_asked_too():
    shaw, tensors = mechanism(lambda: pl.ShawRelative(9, D, sign="key_minus_query")), inputs(G)
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        admit(*tensors, shaw(G), G, backend="triton", fallback="sdpa")
    assert no.value.value == "sdpa"
    found = admit(*tensors, shaw(G), G, backend="sdpa", fallback="blocked")
    assert found.backend == "blocked" and found.line.value_rows is not None and "sdpa refused" in found.reason
    assert found.line.query_rows.shape[-2:] == (79, D)


def test_a_term_of_another_kind_names_its_own_needs():
    class Open:
        num_classes = 3

        def classes(self, offset):
            return offset.clamp(-1, 1) + 1

    assert of_term(ClassBias(table=torch.zeros(3, H), rule=Open(), sign="key_minus_query")) == {BIAS, OPEN_CLASSES}

    class Whole(Decomposition):
        def by_offset(self, offsets, scale, dtype):
            return ByOffset(content=False)

    assert of_term(Whole()) == {NO_CONTENT}
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        admit(*inputs(BOTH), Whole(), BOTH, backend="sdpa")
    assert no.value.missing == {NO_CONTENT}


def test_what_is_asked_wrongly_is_refused():
    tensors = inputs(G)
    refused(lambda: admit(*tensors, None, G, backend="flash"), "backend")
    refused(lambda: admit(*tensors, None, G, backend="sdpa", fallback="triton"), "fallback")
    refused(lambda: admit(*tensors, None, G, backend="sdpa", fallback="sdpa"), "fallback")
    refused(lambda: admit(*tensors, None, G, backend="auto", fallback="eager"), "fallback")
    rows = pl.Sinusoidal(D)(G)
    assert of_term(rows) == {"rows added to the state"}
    for backend in BACKENDS:
        refused(lambda: admit(*tensors, rows, G, backend=backend), "term")
    assert set(FALLBACKS) < set(BACKENDS)
