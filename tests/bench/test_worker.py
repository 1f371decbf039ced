"""How a pair is measured: turns, agreement, gradients, peaks. Two functions with known costs stand for the modules."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from positionlib.bench import cpu, worker
from positionlib.bench.pairs import Pair, sides
from positionlib.bench.verdict import BLOCK

ROOT = Path(__file__).resolve().parents[2]
X = torch.randn(1, 20, 512, generator=torch.Generator().manual_seed(0))


def scaled(weight: nn.Parameter, factor: float = 1.0, log: list | None = None, name: str = ""):
    def run(x):
        if log is not None:
            log.append((name, weight.grad is None, torch.is_grad_enabled()))
        return factor * weight * x

    return run


def test_a_pass_gives_the_output_and_the_gradient_of_its_input():
    weight = nn.Parameter(torch.tensor(3.0))
    out, grad = worker.call(scaled(weight), X, "forward + backward")
    assert torch.equal(out, 3 * X) and torch.equal(grad, 3 * X), "∂(y·g)/∂x with g = x"
    assert torch.allclose(weight.grad, X.square().sum()), "the parameters learn too"
    out, grad = worker.call(scaled(weight), X, "forward")
    assert torch.equal(out, 3 * X) and grad is None and not out.requires_grad


def test_both_sides_take_turns_and_forget_their_gradients():
    log, weights = [], {side: nn.Parameter(torch.ones(())) for side in ("peer", "ours")}
    both = sides(scaled(weights["peer"], 1.0, log, "peer"), scaled(weights["ours"], 1.0, log, "ours"), [weights["peer"]], [weights["ours"]])
    seconds = worker.in_turn(both, X, "forward + backward", bar=1e-9)
    assert log == [("peer", True, True), ("ours", True, True)] * (2 * BLOCK), "two blocks suffice for a bar that nobody misses"
    assert [len(seconds[side]) for side in ("ours", "peer")] == [2 * BLOCK] * 2 and min(*seconds["ours"], *seconds["peer"]) > 0
    log.clear()
    worker.in_turn(both, X, "forward", bar=1e9)
    assert not any(recorded for *_, recorded in log)


def test_the_slower_side_takes_longer():
    def slow(x):
        time.sleep(0.01)
        return x

    seconds = worker.in_turn(sides(slow, lambda x: x, [], []), X, "forward", bar=2.0)
    assert min(seconds["peer"]) >= 0.01 > min(seconds["ours"])


def test_agreement_reports_the_largest_error_of_outputs_and_gradients():
    weight = nn.Parameter(torch.tensor(2.0))
    found = worker.agreement(sides(scaled(weight), scaled(weight, 1.25), [weight], [weight]), X)
    largest = float(X.abs().max())
    for part in ("output", "input_gradient"):
        assert found[part]["largest"] == pytest.approx(2 * largest) and found[part]["error"] == pytest.approx(0.5 * largest)


def test_a_pair_that_disagrees_is_not_timed():
    weight = nn.Parameter(torch.tensor(2.0))
    apart = Pair("t5-eager", "T5", "peer", 5, 1.0, 1.0, 1.0, lambda length: sides(scaled(weight), scaled(weight, 1.01), [weight], [weight]))
    assert set(worker.times(apart, 20)) == {"agreement"}


def test_a_peak_counts_what_the_call_holds_at_once():
    script = """
import torch
from positionlib.bench import worker
from positionlib.bench.pairs import Pair, sides
held = lambda x: (torch.ones(25_000_000).sum() if x.shape[1] > 16 else 0) + x   # 100 MB, freed again
twice = lambda x: held(held(x))                                                # one after the other: no more at once
pair = Pair("t5-eager", "T5", "peer", 5, 1.0, 1.0, 1.0, lambda length: sides(held, twice, [], []))
print([round(worker.peak(pair, 20, "forward", side)["bytes"] / 1e7) for side in ("peer", "ours")])"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout.strip() == "[10, 10]", done.stderr[-1000:]


def test_a_missing_environment_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"\.venv-bench-4 is not there: run make bench"):
        cpu.interpreter(4)
