"""What the kernel refuses, by name; and that nothing fused runs on a CPU unless Triton's interpreter was asked for."""

import subprocess
import sys

import pytest
import torch

from positionlib import kernels
from positionlib.errors import PositionContractError
from positionlib.kernels import admission
from positionlib.rules import Clip
from tests.kernels.environment import without_interpreter

pytest.importorskip("triton")


def reason(monkeypatch, q=None, k=None, v=None, interpreted=True, **rest):
    monkeypatch.setattr(admission, "interpreted", lambda: interpreted)
    q = torch.zeros(1, 2, 3, 16) if q is None else q
    refused = kernels.refusal(q, q if k is None else k, q if v is None else v, **rest)
    return refused and refused.why


@pytest.mark.parametrize("change, named", [
    ({"kind": "alibi_key_index"}, "alibi_key_index"),
    ({"allowed": torch.ones(3, 3, dtype=torch.bool)}, "visibility matrix"),
    ({"q": torch.zeros(1, 2, 3, 16, dtype=torch.int32)}, "torch.int32"),
    ({"k": torch.zeros(1, 2, 3, 16, dtype=torch.float16)}, "torch.float16"),
    ({"q": torch.zeros(1, 2, 3, 8)}, "head width 8"),
    ({"q": torch.zeros(1, 2, 3, 24)}, "head width 24"),
    ({"q": torch.zeros(1, 2, 3, 272)}, "head width 272"),
    ({"v": torch.zeros(1, 2, 3, 32)}, "values 32"),
    ({"q": torch.zeros(1, 2, 3, 16, device="meta")}, "device meta"),
    ({"interpreted": False}, "device cpu"),
])
def test_each_refusal_names_what_is_missing(monkeypatch, change, named):
    assert named in reason(monkeypatch, **change)


@pytest.mark.parametrize("width", [16, 48, 80, 256])
def test_admitted(monkeypatch, width):
    q = torch.zeros(1, 2, 3, width, requires_grad=True)
    for kind in kernels.KINDS:
        assert reason(monkeypatch, q, kind=kind) is None


def test_a_bias_table_of_the_wrong_shape_is_refused():
    with pytest.raises(PositionContractError, match="table"):
        kernels.BiasArgs("t5", torch.zeros(2, 8), span=4)
    with pytest.raises(PositionContractError, match="span"):
        kernels.BiasArgs("t5", torch.zeros(2, 1), span=0)
    with pytest.raises(PositionContractError, match="kind"):
        kernels.BiasArgs.from_slopes(torch.zeros(2), "key_index")
    with pytest.raises(PositionContractError, match="sign"):
        kernels.BiasArgs.from_classes(torch.zeros(7, 2), Clip(3), None)


def test_classes_are_laid_out_by_key_minus_query():
    """Index 0 is the key far before the query; the table's own sign is folded in."""
    table = torch.arange(7.0)[:, None]
    assert kernels.BiasArgs.from_classes(table, Clip(3), "key_minus_query").table.tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert kernels.BiasArgs.from_classes(table, Clip(3), "query_minus_key").table.tolist() == [[6, 5, 4, 3, 2, 1, 0]]


def test_a_cpu_without_the_interpreter_never_runs_it():
    program = """
import sys, torch
import positionlib as pl
from positionlib import kernels
q, geometry = torch.randn(1, 2, 3, 16), pl.AttentionGeometry.causal_self(3)
_, trace = pl.attend(q, q, q, None, geometry, return_trace=True)
assert trace.backend == "eager" and "cpu" in trace.reason, trace
assert "triton" not in sys.modules, "auto on a CPU must not even import Triton"
assert kernels.available() == torch.cuda.is_available()
try:
    pl.attend(q, q, q, None, geometry, backend="triton")
except pl.UnsupportedPositionContract as refused:
    print(refused)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=without_interpreter())
    assert done.returncode == 0, done.stderr
    assert "device cpu" in done.stdout and "TRITON_INTERPRET=1" in done.stdout


def test_a_kind_without_a_name_is_refused():
    q = torch.zeros(1, 1, 2, 16)
    with pytest.raises(PositionContractError) as refused:
        kernels.refusal(q, q, q, kind=None)
    assert refused.value.field == "kind"
