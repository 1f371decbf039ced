"""The counters of a call against loops over its pairs, and against the tensors that are really made."""

import subprocess
import sys

import pytest
import torch

import positionlib as pl
from positionlib import attention
from positionlib.capabilities import QUERY_SCORE, VALUE_SUM
from positionlib.counters import TermCache, counted
from positionlib.identity import identity
from positionlib.kernels import available
from positionlib.mechanisms import deberta, shaw, transformer_xl
from positionlib.runtime import blocks
from tests.refusals import refused
from tests.runtime.calls import B, D, H, LONG, N, OTHERS, RUNS, SHORT, fitting, inputs, left_padded, mechanism

EVERY = SHORT | LONG


def size(*tensors):
    return sum(t.nelement() * t.element_size() for t in tensors)


@pytest.fixture
def made(monkeypatch):
    """Every relation score and probability mass that the reference makes."""
    found = []

    def spy(function):
        def run(*args, **kwargs):
            found.append(function(*args, **kwargs))
            return found[-1]
        return run

    pick, mass = spy(attention.pick), spy(attention.class_mass)
    for module in (attention, deberta, shaw, transformer_xl):
        monkeypatch.setattr(module, "pick", pick)
    monkeypatch.setattr(attention, "class_mass", mass)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", EVERY)
def test_bytes_of_the_reference_are_those_of_the_tensors_it_makes(name, dtype, made):
    geometry = next(g for g in (RUNS["batch positions"], RUNS["encoder"], RUNS["decode"]) if fitting({name: EVERY[name]}, g))
    term, tensors = mechanism(EVERY[name], torch.float32)(geometry), inputs(geometry, dtype)
    made.clear()
    _, trace = pl.attend(*tensors, term, geometry, backend="eager", return_trace=True)
    relation = size(*made)
    _, counters = counted(*tensors, term, geometry, backend="eager")
    untied = {"tupe": lambda: term, "tupe in parts": lambda: term.finished()}
    bias = size(trace.bias) if trace.bias is not None else size(untied[name]().bias) if name in untied else 0
    assert (counters.bias_materialized_bytes, counters.relation_materialized_bytes) == (bias, relation)
    assert (bias > 0) == (name in ("t5", "t5 causal", "tupe", "tupe in parts", "axes", "falcon") or "alibi" in name)
    assert (relation > 0) == (name not in ("content", "rotary") and bias == 0)


def test_bytes_of_lines_by_hand():
    """2N − 1 offsets in float64: one number a head for a bias, rows of the head's width for a relation."""
    geometry, width = RUNS["encoder"], 8
    _, counters = counted(*inputs(geometry), mechanism(SHORT["t5"])(geometry), geometry, backend="sdpa")
    assert (counters.bias_materialized_bytes, counters.relation_materialized_bytes) == (H * (2 * N - 1) * width, 0)
    for name, rows in (("shaw", 2 * D), ("shaw by head", 2 * H * D), ("shaw values", D), ("bert both", 2 * D), ("deberta third alone", H * D)):
        _, counters = counted(*inputs(geometry), mechanism(LONG[name])(geometry), geometry, backend="blocked")
        assert (counters.bias_materialized_bytes, counters.relation_materialized_bytes) == (0, (2 * N - 1) * rows * width), name


@pytest.mark.parametrize("name, whole", [("t5", "bias"), ("shaw", "relation"), ("axes", "bias"), ("edges", "relation")])
def test_bytes_of_blocks_are_those_of_one_block(name, whole, monkeypatch):
    monkeypatch.setattr(blocks, "BUDGET", B * H * N * 7 + 5)  # seven query rows at once
    geometry = OTHERS["scattered padding"]
    term = mechanism(EVERY[name])(geometry)
    _, blocked = counted(*inputs(geometry), term, geometry, backend="blocked")
    _, eager = counted(*inputs(geometry), term, geometry, backend="eager")
    field = f"{whole}_materialized_bytes"
    assert getattr(blocked, field) * N == getattr(eager, field) * 7 > 0


@pytest.mark.skipif(not available(), reason="no fused kernel can run here")
def test_bytes_of_the_fused_kernel_are_its_table_or_its_scores_by_class():
    geometry, device = pl.AttentionGeometry.encoder(20), "cuda" if torch.cuda.is_available() else "cpu"
    q = torch.randn(1, 2, 20, 16, device=device)
    for module, held, rows in (
        (pl.T5Bias(2, 8, 20, bidirectional=True), 2 * 41 * 4, 0), (pl.ALiBi(2, form="symmetric"), 2 * 8, 0),  # slopes: float64
        (pl.TransformerXL(8, 2, 16, bidirectional=True), 0, 2 * 39 * 16 * 4), (None, 0, 0),
    ):
        term = None if module is None else module.to(device)(geometry.to(device))
        _, counters = counted(q, q, q, term, geometry.to(device), backend="triton")
        assert (counters.position_backend, counters.bias_materialized_bytes, counters.relation_materialized_bytes) == ("triton", held, rows)
    shaw, third = pl.ShawRelative(3, 16, sign="key_minus_query"), pl.DeBERTa(2, 32, 4, terms=("c2p", "p2c"), third_index="paper", projections="own")
    for module, classes in ((shaw, 2 * 7), (third, 2 * 8)):  # scores of a side, and the other side's or the mass: a number a row and class
        _, counters = counted(q, q, q, module.to(device)(geometry.to(device)), geometry.to(device), backend="triton")
        assert (counters.bias_materialized_bytes, counters.relation_materialized_bytes) == (0, 2 * 20 * classes * 4)


def pairs(geometry):
    """(query position, key position) of every pair that may be read, by a loop."""
    visible = geometry.visible.expand(B, *geometry.visible.shape[-2:])
    queries, keys = (p.expand(B, -1) for p in (geometry.query_positions, geometry.key_positions))
    return [(b, int(queries[b, i]), int(keys[b, j])) for b in range(B) for i in range(queries.shape[1]) for j in range(keys.shape[1]) if visible[b, i, j]]


@pytest.mark.parametrize("name", ["causal", "decode", "chunk", "packed", "right padded", "batch positions", "rows before every key"])
def test_ranges_and_memory_by_a_loop_over_the_pairs(name):
    geometry = RUNS[name]
    read = pairs(geometry)
    first = {b: int(p.min()) for b, p in enumerate(geometry.query_positions.expand(B, -1))}
    memory = max(len({j for c, _, j in read if c == b and j < first[b]}) for b in range(B))
    modules = {"content": None, "shaw": lambda o: max(-9, min(9, o)) + 9, "bert keys": lambda o: -o + 119, "bert both": lambda o: -o + 119,
               "deberta third alone": lambda o: max(0, min(39, 20 - o))}
    for mechanism_name, rule in modules.items():
        term = mechanism(EVERY[mechanism_name])(geometry)
        _, c = counted(*inputs(geometry), term, geometry, backend="blocked")
        offsets = [j - i for _, i, j in read]
        assert (c.offset_min, c.offset_max, c.memory_length) == (min(offsets), max(offsets), memory)
        want = (None, None) if rule is None else (min(map(rule, offsets)), max(map(rule, offsets)))
        assert (c.bucket_min, c.bucket_max) == want, mechanism_name


def test_buckets_of_t5_are_those_that_the_call_reads():
    """A decode step at 40 reads offsets −40..0; a local arange would have read bucket 0 alone."""
    geometry = pl.AttentionGeometry.decode(40)
    _, c = counted(*inputs(geometry), mechanism(SHORT["t5 causal"])(geometry), geometry)
    assert (c.bucket_min, c.bucket_max, c.offset_min, c.offset_max, c.memory_length) == (0, 7, -40, 0, 40)
    local = pl.AttentionGeometry(torch.tensor([0]), torch.arange(41), causal=True)
    _, c = counted(*inputs(local), mechanism(SHORT["t5 causal"])(local), local)
    assert (c.bucket_max, c.offset_min, c.memory_length) == (0, 0, 0)


def test_padding_is_no_memory():
    geometry = pl.AttentionGeometry.decode(9, key_active=torch.arange(10) > 2)
    assert counted(*inputs(geometry), None, geometry)[1].memory_length == 6


def test_what_has_no_range_has_none():
    geometry = pl.AttentionGeometry.cross(3, 5)
    c = counted(*inputs(geometry), None, geometry)[1]
    assert (c.offset_min, c.offset_max, c.memory_length, c.bucket_min) == (None, None, None, None)
    for geometry, memory in ((OTHERS["no keys"], 0), (OTHERS["no queries"], None)):
        c = counted(*inputs(geometry), mechanism(LONG["shaw"])(geometry), geometry)[1]
        assert (c.offset_min, c.bucket_max, c.memory_length) == (None, None, memory)
    assert counted(*inputs(left_padded()), None, left_padded())[1].memory_length == 0


def test_a_fallback_is_counted_with_its_reason_and_the_output_is_attends_own(monkeypatch):
    geometry, tensors = RUNS["encoder"], inputs(RUNS["encoder"])
    term = mechanism(LONG["shaw"])(geometry)
    out, c = counted(*tensors, term, geometry, backend="sdpa", fallback="blocked")
    assert c.position_backend == "blocked" and "each offset" in c.position_fallback_reason
    assert torch.equal(out, pl.attend(*tensors, term, geometry, backend="blocked"))
    monkeypatch.setattr("positionlib.runtime.cpu.SMALL", 0)
    assert "sdpa refused" in counted(*tensors, term, geometry)[1].position_fallback_reason
    c = counted(*tensors, None, geometry)[1]
    assert (c.position_backend, c.position_fallback_reason) == ("sdpa", None)
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        counted(*tensors, term, geometry, backend="sdpa")
    assert no.value.missing == {QUERY_SCORE, VALUE_SUM}


def test_a_cache_hit_is_the_same_identity_and_nothing_else():
    built, cache = [], TermCache()

    def ask(start, release="r1"):
        call = pl.PositionCall.decode(start)
        document = call.to_dict()
        document["request"]["release_id"] = document["cache"]["release_id"] = release
        geometry = pl.AttentionGeometry.decode(start)
        name = identity(pl.PositionCall(**document), device="cpu").bias_reuse_key
        term = cache.fetch(name, lambda: built.append(start) or pl.ALiBi(H)(geometry))
        return counted(*inputs(geometry), term, geometry, cache=cache)[1].position_cache_hit

    assert [ask(5), ask(5), ask(6), ask(5, "r2"), ask(5)] == [False, True, False, False, True] and built == [5, 6, 5]
    assert counted(*inputs(RUNS["decode"]), None, RUNS["decode"])[1].position_cache_hit is None
    refused(lambda: cache.fetch((), lambda: None), "identity")


def test_a_call_that_is_not_counted_does_not_even_load_the_counters():
    program = """
import sys, torch
import positionlib as pl
g = pl.AttentionGeometry.causal_self(3)
q = torch.randn(1, 2, 3, 4)
ran = set()
sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code.co_filename.rpartition("positionlib")[2]))
pl.attend(q, q, q, pl.ALiBi(2)(g), g)
sys.setprofile(None)
assert any("attention" in name for name in ran)
print(sorted(name for name in ran if "counters" in name or "admission" in name), "positionlib.counters" in sys.modules, "positionlib.admission" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[] False False", done.stderr


def test_names_are_the_articles():
    """Each with its value in a decode step at 40, whose row of T5's bias has 41 keys for each head, in float64."""
    held = {"position_backend": "eager", "position_fallback_reason": None, "bias_materialized_bytes": H * 41 * 8, "relation_materialized_bytes": 0,
            "bucket_min": 0, "bucket_max": 7, "offset_min": -40, "offset_max": 0, "memory_length": 40, "position_cache_hit": False}
    geometry, cache = pl.AttentionGeometry.decode(40), TermCache()
    term = cache.fetch(("decode", 40), lambda: mechanism(SHORT["t5 causal"])(geometry))
    counters = counted(*inputs(geometry), term, geometry, backend="eager", cache=cache)[1]
    assert list(counters.to_dict().items()) == list(held.items())
