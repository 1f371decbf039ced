"""What make gpu does as far as no GPU is needed: its rows, its checks in the interpreter, its processes, its receipt."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from positionlib import kernels
from positionlib.bench import gpu, gpu_correct, gpu_page, gpu_time
from positionlib.bench.gpu_cases import CALLS, DTYPES, MECHANISMS, Call, Mechanism
from positionlib.bench.gpu_correct import Row, check, ratio, same
from positionlib.mechanisms.graph_bias import PairBias
from positionlib.rules import T5Buckets
from positionlib.runtime import fused
from positionlib.sharding.layout import TERMS

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="not run: there is a GPU")
needs_triton = pytest.mark.skipif(not kernels.available(), reason="not run: Triton is not installed")
TINY = Call("tiny", 24, 40, 16, batch=1, heads=2, key_heads=1, padding=5)


@without_gpu
@pytest.mark.parametrize("part", ["correct", "time"])
def test_without_a_gpu_every_row_says_so_by_name_and_no_receipt_is_made(part, capsys):
    before = sorted(gpu_page.RECEIPTS.glob("gpu-*"))
    assert gpu.main([part]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.removesuffix("not run: no GPU").rstrip() for line in said] == gpu.names(part) and all(line.endswith(" not run: no GPU") for line in said)
    assert sorted(gpu_page.RECEIPTS.glob("gpu-*")) == before
    of_errors = {f"{m} {d} {c}" for m in MECHANISMS for d in ("bf16", "fp16", "fp32") for c in CALLS}
    wanted = of_errors if part == "correct" else {f"{m} N=8192 D=128" for m in MECHANISMS}
    assert wanted <= set(gpu.names(part))


def test_it_needs_nothing_but_what_a_bare_machine_has():
    script = """
import sys
for name in ("matplotlib", "anywidget", "ipywidgets", "IPython", "pydantic", "yaml", "transformers", "pytest", "flash_attn", "flashdeberta"):
    sys.modules[name] = None
import torch
torch.cuda.is_available = lambda: False
from positionlib.bench import gpu
gpu.main(["time"])"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and "alibi N=8192 D=128" in done.stdout, done.stderr[-1500:]


@needs_triton
def test_every_kind_of_kernel_and_every_term_has_a_row(monkeypatch):
    """A new kind, or a new term that attention knows, needs a mechanism in gpu_cases: here it fails until it has one."""
    kinds, types, plain = set(), set(), kernels.refusal

    def noted(*tensors, kind="content", **rest):
        kinds.add(kind)
        return plain(*tensors, kind=kind, **rest)

    monkeypatch.setattr(kernels, "refusal", noted)
    for mechanism in MECHANISMS.values():
        geometry, q = TINY.geometry(mechanism.causal, "cpu"), torch.zeros(1, 2, 24, 16)
        term = mechanism.build(2, 16, 40)(geometry)
        types.add(type(term))
        fused.refusal(q, torch.zeros(1, 1, 40, 16), torch.zeros(1, 1, 40, 16), term, geometry)
    assert kinds >= set(kernels.KINDS) and types >= set(TERMS) - {PairBias}, "a bias of given pairs is what others are made of"


@needs_triton
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", ["content", "alibi_symmetric", "t5"])
def test_a_right_kernel_passes(name, dtype):
    row = check(MECHANISMS[name], DTYPES[dtype], TINY, "row", DEVICE, runs=2, draws=1)
    assert set(row.ratios) == {"out", "d_q", "d_k", "d_v", *(f"d_{n}" for n, _ in MECHANISMS[name].build(2, 16, 40).named_parameters())}
    # Of 24 rows an error is a random number: the bar is for the sizes of CALLS, and a wrong kernel is off by hundreds.
    assert row.status in ("passed", "FAILED") and max(row.ratios.values()) < 5 and "2 runs bit-equal" in row.said


@needs_triton
def test_a_wrong_kernel_and_a_restless_one_fail(monkeypatch):
    right = gpu_correct.fused
    monkeypatch.setattr(gpu_correct, "fused", lambda *call: right(*call) * 1.01)
    wrong = check(MECHANISMS["content"], torch.float16, TINY, "row", DEVICE, runs=1, draws=1)
    assert wrong.status == "FAILED" and wrong.ratios["out"] > gpu_correct.RATIO
    turns = iter(range(9))
    monkeypatch.setattr(gpu_correct, "fused", lambda *call: right(*call) + 1e-3 * (next(turns) == 2))
    assert "1 of 3 repeats differ" in check(MECHANISMS["content"], torch.float16, TINY, "row", DEVICE, runs=4, draws=1).said


@needs_triton
def test_what_the_kernel_does_not_admit_is_told_with_its_reason():
    def build(heads, width, length):
        return MECHANISMS["alibi"].build(heads, width, length)

    odd = check(Mechanism("alibi", build, True), torch.float16, replace(TINY, width=24), "row", DEVICE)
    assert odd.status == "refused" and "head width 24" in odd.said


def test_eager_in_its_dtype_is_attention(monkeypatch):
    """In float64 it is the reference, for every term, grouped heads and padding included."""
    for name, mechanism in MECHANISMS.items():
        module, inputs, _ = gpu_correct.draw(mechanism, torch.float64, TINY, "cpu", 0)
        geometry = TINY.geometry(mechanism.causal, "cpu")
        term = module.double()(geometry)
        assert torch.allclose(gpu_correct.eager(*inputs, term, geometry), gpu_correct.reference(*inputs, term, geometry), atol=1e-13), name


def test_ratios_and_bits():
    assert ratio(4.0, 1.0) == 2.0 and ratio(0.0, 0.0) == 0.0 and ratio(1.0, 0.0) == ratio(float("nan"), 1.0) == float("inf")
    assert same(torch.tensor([float("nan")]), torch.tensor([float("nan")])) and not same(torch.tensor([0.0]), torch.tensor([-0.0]))


@needs_triton
def test_bucket_edges_are_read_and_a_shifted_edge_is_named(monkeypatch):
    rules = (T5Buckets(8, 12, bidirectional=False), T5Buckets(8, 12))
    assert gpu_correct.bucket_edges(DEVICE, rules) == Row("t5 bucket edges", "passed")
    plain = T5Buckets.classes
    monkeypatch.setattr(T5Buckets, "classes", lambda self, o: plain(self, o.masked_fill(o == -5, -6) if o.ndim == 1 and len(o) == 25 else o))
    shifted = gpu_correct.bucket_edges(DEVICE, rules[:1])
    assert shifted.status == "FAILED" and shifted.said.startswith("offset -5 of T5Buckets")


@pytest.mark.parametrize("script, status, said", [
    (None, "not run", "not installed"), ("exit 0", "passed", "memcheck"), ("echo invalid read; exit 9", "FAILED", "invalid read"),
    ("echo no device >&2; exit 1", "not run", "no device"), ("exec sleep 5", "not run", "no end within"),
])
def test_the_sanitizer_is_used_where_it_is(tmp_path, monkeypatch, script, status, said):
    monkeypatch.setattr(gpu_correct, "SANITIZER_SECONDS", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if script is not None:
        (tmp_path / "compute-sanitizer").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "compute-sanitizer").chmod(0o755)
    row = gpu_correct.sanitized()
    assert row.status == status and said in row.said


def test_a_process_that_ends_badly_or_too_late_keeps_the_rows_it_wrote(tmp_path, monkeypatch):
    line = json.dumps({"name": "alibi bf16 padded", "status": "passed"})
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{line}'\ncase $4 in alibi) exec sleep 30;; t5) echo broken >&2; exit 3;; esac\n")
    python.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(python))
    monkeypatch.setattr(gpu, "MECHANISMS", dict.fromkeys(("alibi", "t5", "nope")))
    found = {name: (lines, trouble) for name, lines, trouble in gpu.each_in_a_process("check", time.monotonic() + 2)}
    assert found == {"alibi": ([line], "out of time"), "t5": ([line], "broken"), "nope": ([line], "")}


def test_both_parts_of_a_day_stand_in_one_receipt(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "book").mkdir()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200 (SXM)")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("Properties", (), {"total_memory": 7}))
    first = gpu.write("correct", {"rows": []})
    second = gpu.write("time", {"attention": []})
    written = json.loads(second.read_text("utf-8"))
    assert first == second and second.name == f"gpu-{written['date']}-nvidia-h200-sxm.json"
    assert written["device"] == {"name": "NVIDIA H200 (SXM)", "capability": "9.0", "bytes": 7} and {"correct", "time"} <= written.keys()


def test_the_printed_rows():
    cell = {"median": 1e-3, "ratios": {"flash": 1.1}, "share of floor": 0.7, "bar": "pass", "flex bar": "FAIL"}
    assert gpu.line("a", None).endswith("not run: out of time") and gpu.line("a", {"refused": "no"}).endswith("refused: no")
    assert gpu.line("a", {"cells": {"forward": cell}, "extra_bytes": 2**20, "not run": {"flex": "gone"}}).endswith(
        "forward 1.000 ms, 70% of the floor, 1.10× flash (pass flex FAIL); 1 MiB more; flex not run: gone")
    assert gpu.line("machine", {"operations": 7.9e14, "bytes": 4.3e12}).endswith("790 TFLOP/s of bf16 products, 4.30 TB/s of a copy")
    assert gpu.line("rows grid", {"share of a copy": 0.81}).endswith("81% of a copy's bandwidth")
    assert str(Row("x", "FAILED", "why")).split() == ["x", "FAILED:", "why"]


@pytest.mark.gpu
def test_a_mechanism_is_measured_on_a_gpu():
    clock = gpu_time.Clock()
    row = gpu_time.measure(gpu_time.Case("alibi", 1024, 64), gpu_time.machine(clock), clock, {})
    assert {"ours forward", "ours backward", "flash forward"} <= row["seconds"].keys() and row["extra_bytes"] > 0
