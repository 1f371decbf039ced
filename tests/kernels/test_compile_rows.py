"""The row kernels ahead of time, and the bytes that they touch, counted in the interpreter."""

import re

import numpy as np
import pytest
import torch

from positionlib.kernels import row_ops
from positionlib.kernels.compile_rows import ROW_KINDS, ROW_MECHANISMS, RowReport, calls, traffic
from tests.kernels.cases import DEVICE
from tests.kernels.test_compile import compile_table

pytest.importorskip("triton")
LINE = re.compile(r"^(\w+)\s+sm_(\d+)\s+(fp16|bf16|fp32)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)  (.+)$", re.M)


def test_every_row_kernel_compiles_without_a_spill():
    done = compile_table("--kernel", *ROW_KINDS, "--dtype", "bf16", "--arch", "90")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = LINE.findall(done.stdout)
    assert tuple(kind for kind, *_ in lines) == ROW_KINDS
    cells = re.findall(r"^(\w+) +(\w+) +(not run|no kernel) +(passed|no kernel) +not run: no GPU$", done.stdout, re.M)
    assert cells == [(mechanism, name, *(("not run", "passed") if kernels else ("no kernel", "no kernel")))
                     for mechanism, passes in ROW_MECHANISMS.items() for name, kernels in zip(("forward", "backward"), passes)]
    for kind, _, _, registers, spill, _, _, _, of_a_copy, verdict in lines:
        assert verdict == "ok" and int(spill) == 0 and 0 < int(registers) <= 128, kind
        if kind != "learned":
            assert float(of_a_copy) < 1.01, f"{kind} moves more than a copy of the state does"


@pytest.mark.slow
def test_every_row_kernel_compiles_in_every_dtype():
    done = compile_table("--kernel", *ROW_KINDS, "--dtype", "fp16", "bf16", "fp32")
    assert done.returncode == 0 and len(LINE.findall(done.stdout)) == 6 * len(ROW_KINDS), done.stdout + done.stderr


@pytest.mark.parametrize("change, fault", [({"spill": 4}, "spills 4 bytes"), ({"shared": 170_000}, "too much shared memory")])
def test_a_bad_row_kernel_is_named(change, fault):
    good = {"kind": "grid", "arch": 80, "dtype": "fp16", "registers": 40, "spill": 0, "shared": 2048}
    assert RowReport(**good).faults == []
    assert RowReport(**good | change).faults == [fault] and fault in str(RowReport(**good | change))


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter counts")
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_the_bytes_of_the_table_are_those_touched(kind, monkeypatch):
    """Every distinct address that a kernel reads or writes, against the count from the shapes."""
    from triton.runtime.interpreter import InterpreterBuilder

    touched = {"load": {}, "store": {}}

    def watched(name):
        plain = getattr(InterpreterBuilder, f"create_masked_{name}")

        def watch(self, ptrs, *rest):
            here = np.broadcast_to(rest[0 if name == "load" else 1].data, ptrs.data.shape).astype(bool)
            touched[name].update(dict.fromkeys(ptrs.data[here].tolist(), ptrs.get_element_ty().primitive_bitwidth // 8))
            return plain(self, ptrs, *rest)

        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", watch)

    watched("load")
    watched("store")
    shape = {"batch": 2, "rows": 70, "width": 20}
    with np.errstate(all="ignore"):  # the values are whatever the memory holds
        row_ops.launch(*calls(torch.float16, device="cpu", **shape)[kind])
    read, written, _ = traffic(kind, torch.float16, **shape)
    assert (sum(touched["load"].values()), sum(touched["store"].values())) == (read, written)
