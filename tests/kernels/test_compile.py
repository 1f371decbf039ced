"""Ahead-of-time compilation for sm_80 and sm_90, with no GPU, in a process of its own."""

import re
import subprocess
import sys

import pytest

from positionlib.kernels.compile import PARTS, SHARED_LIMIT, Report, matrix, verdicts
from tests.kernels.environment import without_interpreter

pytest.importorskip("triton")
ROW = re.compile(r"^(\w+)\s+sm_(\d+)\s+(fp16|bf16|fp32)\s+(\d+)\s+(" + "|".join(PARTS) + r")\s+(\d+)\s+(\d+)\s+(\d+) of \d+\s+(\d+)\s+(.+)$", re.M)


def compile_table(*arguments, env=None):
    return subprocess.run([sys.executable, "-m", "positionlib.kernels.compile", *arguments], capture_output=True, text=True,
                          env=without_interpreter() | (env or {}))


def check(done, lines):
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ROW.findall(done.stdout)
    assert len(rows) == lines
    assert not re.search("failed", done.stdout)
    assert len(re.findall(r"^t5 +(?:forward|backward) +passed +passed +not run: no GPU$", done.stdout, re.M)) == 2
    for kind, arch, dtype, _, part, registers, spill, shared, tensor_cores, verdict in rows:
        assert verdict == "ok" and 0 < int(registers) <= 255 and 0 < int(shared) <= SHARED_LIMIT[int(arch)], kind
        assert dtype == "fp32" or (int(tensor_cores) > 0 and int(spill) <= (8 if part != "prefill" else 0)), kind


def test_one_kernel_for_each_architecture():
    check(compile_table("--kernel", "t5", "--dtype", "fp16", "--width", "64", "--part", "prefill", "d_query", "d_key", "d_table"), 8)


def test_a_kernel_of_a_call_that_hides_nothing():
    """Its lines are other lines: the interpreter steps over what the compiler has to leave out."""
    check(compile_table("--nothing-hidden", "--kernel", "t5", "--dtype", "fp16", "--width", "64", "--part", "prefill", "d_key"), 4)


@pytest.mark.slow
def test_the_whole_table_with_nothing_hidden():
    check(compile_table("--nothing-hidden", "--dtype", "fp16"), 188)


@pytest.mark.slow
def test_the_whole_table():
    check(compile_table(), 376)


@pytest.mark.slow
def test_the_whole_table_at_float32():
    check(compile_table("--dtype", "fp32"), 188)


@pytest.mark.parametrize("change, fault", [
    ({"spill": 16}, "spills 16 bytes"),
    ({"shared": 170_000}, "3088 bytes of shared memory too many"),
    ({"tensor_cores": 0}, "no tensor-core instruction"),
    ({"atomics": 2}, "2 atomic instructions: the order of a sum, and so its last bits, would vary"),
])
def test_a_bad_kernel_is_named(change, fault):
    good = {"kind": "t5", "arch": 80, "dtype": "fp16", "width": 64, "part": "prefill", "registers": 255, "spill": 0, "shared": 67072,
            "tensor_cores": 64, "atomics": 0}
    assert Report(**good).faults == []
    assert Report(**good | change).faults == [fault]
    assert fault in str(Report(**good | change))
    together = matrix(verdicts([Report(**good | change), Report(**good), Report(**good | {"part": "d_key"})]))
    assert re.search(r"^t5 +forward +1 of 2 failed +not run +not run: no GPU\nt5 +backward +passed +not run +not run: no GPU$", together, re.M)


def test_an_interpreting_process_says_that_it_cannot_compile():
    done = compile_table(env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 2 and "Unset it" in done.stderr
