"""The matrix of ``make kernels``: a cell for every mechanism, pass and column, and a wrong kernel that fails its own cells alone."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from positionlib.kernels import alibi, compile, compile_rows, grid
from tests.kernels import matrix
from tests.kernels.cases import DEVICE
from tests.kernels.test_faults import noticed
from tests.kernels.test_row_faults import altered, install

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="not run: a GPU does not interpret")


def test_every_mechanism_that_is_compiled_is_interpreted():
    assert set(matrix.ATTENTION) == set(compile.MECHANISMS)
    assert set(matrix.ROWS) == set(compile_rows.ROW_MECHANISMS)
    assert {kernel for passes in compile_rows.ROW_MECHANISMS.values() for kernels in passes for kernel in kernels} == set(compile_rows.ROW_KINDS)


@pytest.mark.parametrize("correct, faulty, failing", [
    ("return s - m_h * tl.abs", "return s + m_h * tl.abs", (True, True)),
    ("tl.sum(-ds * tl.abs", "tl.sum(ds * tl.abs", (False, True)),
])
def test_a_wrong_kernel_fails_its_cells(correct, faulty, failing, monkeypatch, tmp_path):
    """A bias of the other sign, and a slope's gradient of the other sign, which the forward pass does not see."""
    monkeypatch.setattr(matrix, "GEOMETRIES", {"decode": matrix.GEOMETRIES["decode"]})
    assert max(matrix.interpreted("alibi_symmetric", torch.float32)) <= 1
    found = []
    noticed((alibi, correct, faulty, ""), monkeypatch, tmp_path, lambda: found.append(matrix.interpreted("alibi_symmetric", torch.float32)) or 2)
    assert tuple(error > 1 for error in found[0]) == failing


def test_the_matrix_says_which_cells_failed(monkeypatch, tmp_path, capsys):
    """The compiler's part comes from its own process; here it says that one of three kernels of a grid's gradient spills, and that all else passed."""
    def compiled(command, env):
        assert command[:3] == [sys.executable, "-m", "positionlib.kernels.compile"] and command[5:] == ["--arch", "90"] and "TRITON_INTERPRET" not in env
        with open(command[command.index("--json") + 1], "w") as file:
            json.dump({"grid": {"forward": {"sm_90": "passed"}, "backward": {"sm_90": "1 of 3 failed"}},
                       "sinusoidal": {"forward": {"sm_90": "passed"}, "backward": {"sm_90": "no kernel"}}}, file)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(matrix.subprocess, "run", compiled)
    install(monkeypatch, grid, altered(grid, "place += axis_rows(COLUMN_TABLE", "place -= axis_rows(COLUMN_TABLE", tmp_path))
    assert matrix.main(["--arch", "90"]) == 1
    lines = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()[-5:]]
    assert lines == [["mechanism", "pass", "sm_90", "float64", "float32", "float16", "on a GPU"],
                     ["grid", "forward", "passed", "failed", "failed", "failed", "not run: no GPU"],
                     ["grid", "backward", "1 of 3 failed", "passed", "passed", "passed", "not run: no GPU"],
                     ["sinusoidal", "forward", "passed", "passed", "passed", "passed", "not run: no GPU"],
                     ["sinusoidal", "backward", *["no kernel"] * 4, "not run: no GPU"]]


def test_without_a_compilation_there_is_no_matrix(capfd):
    assert matrix.main(["--arch", "91"]) == 2
    assert "invalid choice: 91" in capfd.readouterr().err
