"""Steps with habits: they write into their arguments, keep their outputs, print, end the process, or answer in another form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from positionlib.check import check_probe, probe
from positionlib.check.probing import PROMPTS
from tests.check.models import Tiny
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
NOISE = """
import atexit, os, sys
from tests.check.models import Tiny

made, kept = Tiny("gpt2"), sys.stdout
atexit.register(print, "after the end")

def step():
    def run(**call):
        print("print")
        kept.write("a kept stream\\n")
        sys.__stdout__.write("the first stream\\n")
        os.write(1, b"the descriptor\\n")
        return made(**call)
    os.system("echo a child")
    return run
"""


class Ends(BaseException):
    """No Exception, as a cancelled task is none."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def told(step, **settings):
    return probe(step, "gpt2", PROMPTS, pad_token_id=0, **settings)


def writing(fault=None):
    """A step that leaves zeros in everything it was given."""
    model = Tiny("gpt2", fault)

    def step(**call):
        answer = model(**call)
        for given in call.values():
            if isinstance(given, torch.Tensor):
                given.zero_()
        return answer

    return step


def keeping(fault=None):
    """A step whose layers are views of its buffers, filled anew by every call."""
    model, buffers = Tiny("gpt2", fault), {}

    def step(**call):
        layers, cache = model(**call)
        views = [buffers.setdefault(n, layer.new_zeros(3, 64, layer.shape[2]))[: len(layer), : layer.shape[1]] for n, layer in enumerate(layers)]
        return [view.copy_(layer) for view, layer in zip(views, layers)], cache

    return step


@pytest.mark.parametrize("habit", [writing, keeping])
@pytest.mark.parametrize("fault", [None, "decode restarts"])
def test_what_a_step_does_to_its_tensors_changes_no_finding(habit, fault):
    assert told(habit(fault)).to_dict() == told(Tiny("gpt2", fault)).to_dict()


@pytest.mark.parametrize("error, says", [(SystemExit(3), "raises SystemExit: 3"), (Ends("over"), "raises Ends: over"), (Mute(), "raises Mute: ")])
def test_whatever_a_batch_raises_is_a_finding(error, says):
    model = Tiny("gpt2")

    def step(**call):
        if len(call["input_ids"]) > 1:
            raise error
        return model(**call)

    report = told(step)
    assert [f.code for f in report.findings] == ["probe-left-padding", "probe-right-padding", "probe-padded-decode", "probe-batch"]
    assert all(says in f.message for f in report.findings)


def test_an_interrupt_is_the_users_own():
    model = Tiny("gpt2")

    def step(**call):
        if len(call["input_ids"]) > 1:
            raise KeyboardInterrupt
        return model(**call)

    with pytest.raises(KeyboardInterrupt):
        told(step)


@pytest.mark.parametrize("answer, field", [
    (lambda layers, cache: {"layers": layers, "cache": cache}, "step"), (lambda layers, cache: layers[-1], "step"), (lambda layers, cache: None, "step"),
    (lambda layers, cache: (layers, cache, None), "step"), (lambda layers, cache: (layers[-1], cache), "layers"), (lambda layers, cache: ([], cache), "layers"),
    (lambda layers, cache: ({"0": layers[0]}, cache), "layers"), (lambda layers, cache: ([layers[0].numpy()], cache), "layers"),
    (lambda layers, cache: ([layers[0].to(torch.complex64)], cache), "layers"), (lambda layers, cache: ([layers[0][0]], cache), "layers")])
def test_an_answer_of_another_form_is_named(answer, field):
    model = Tiny("gpt2")
    refused(lambda: told(lambda **call: answer(*model(**call))), field)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fault", [None, "decode restarts"])
def test_half_precision_rounds_and_is_no_fault(dtype, fault):
    """As a batch does in released models: some states one rounding away."""
    model, unit = Tiny("gpt2", fault), torch.finfo(dtype).eps

    def step(**call):
        layers, cache = model(**call)
        away = 1 + unit * (call["attention_mask"].numel() % 2)
        return [(layer * away).to(dtype) for layer in layers], cache

    assert [f.code for f in told(step).findings] == [f.code for f in told(model).findings]


def test_the_output_alone_will_do():
    def last(model):
        return lambda **call: ((answer := model(**call))[0][-1:], answer[1])

    assert told(last(Tiny("gpt2"))).status == 0
    assert [f.code for f in told(last(Tiny("gpt2", "decode restarts"))).findings] == ["probe-chunks", "probe-decode", "probe-padded-decode"]


def test_no_regime_is_no_clean_report():
    refused(lambda: told(Tiny("gpt2"), regimes=[]), "regimes")


def test_only_the_report_is_printed_whatever_else_is(tmp_path):
    (tmp_path / "loud.py").write_text(NOISE)
    script = f"import sys; sys.path[0] = {str(ROOT)!r}\nfrom positionlib.check.__main__ import command\nsys.exit(command())"
    command = [sys.executable, "-c", script, "check", "--family", "gpt2", "--probe", "loud:step", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == 0
    assert {"print", "a kept stream", "the first stream", "the descriptor", "a child", "after the end"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("body", ["raise End", "def step(): raise End", "def step():\n    def run(**call): raise End\n    return run"])
def test_no_exception_of_a_factory_passes_for_a_finding(tmp_path, monkeypatch, body):
    (tmp_path / "ending.py").write_text(f"class End(BaseException): pass\n{body}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    error = refused(lambda: check_probe("ending:step", "gpt2"), "step" if "run" in body else "probe")
    assert "End: " in str(error)
    sys.modules.pop("ending", None)
