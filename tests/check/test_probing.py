"""The probe as a command: a factory that the user names, its exit status, and every way in which it can be wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from positionlib.check import FAMILIES, check_probe, probe
from positionlib.check.__main__ import main
from positionlib.check.probing import PROMPTS
from tests.check.models import Tiny
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
import sys
from tests.check.models import Tiny

print("loading the model")
made = Tiny("gpt2")
number, text = 3, "not a factory"
clean = lambda: made
faulty = lambda: Tiny("gpt2", "decode restarts")
late = lambda: Tiny("gpt2", "a step of one token fails")
wants = lambda path: made
def raises(): raise RuntimeError("no weights\\nin this folder")
def leaves(): sys.exit(0)
def nothing(): pass
def other(): return lambda input_ids, attention_mask: made
def positional(): return lambda ids, mask, positions, segments, cache: made(ids, mask, positions, segments, cache)
def chatty(): print("built"); return said
def said(**call): print("step"); return made(**call)
def model(message, error=RuntimeError):
    def step(**call): raise error(message)
    return lambda: step
fails, ends = model("mat1 and mat2 shapes cannot be multiplied"), model(0, SystemExit)
def bare(): return lambda **call: made(**call)[0][-1]
def short(): return lambda **call: ([layer[:, -1:] for layer in made(**call)[0]], None)
def text_out(): return lambda **call: (["words"], None)
class Space:
    clean = staticmethod(clean)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of the user, with a module of hers."""
    (tmp_path / "mymodel.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there")
    (tmp_path / "wrong.py").write_text("def step(:")
    (tmp_path / "quits.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("mymodel", "broken", "wrong", "quits"):
        sys.modules.pop(name, None)


def settings(here, **fields) -> str:
    (here / "settings.json").write_text(json.dumps(fields))
    return "settings.json"


@pytest.mark.parametrize("factory, fault, codes", [
    ("clean", None, []), ("Space.clean", None, []), ("faulty", "decode restarts", ["probe-chunks", "probe-decode", "probe-padded-decode"]),
    ("late", "a step of one token fails", ["probe-decode", "probe-padded-decode"])])
def test_exit_status_and_json(here, capsys, factory, fault, codes):
    status = 1 if fault else 0
    assert main(["check", "--family", "gpt2", "--probe", f"mymodel:{factory}"]) == status
    text = capsys.readouterr()
    assert main(["check", "--json", "--probe", f"mymodel:{factory}", "--family", "gpt2"]) == status
    told, want = json.loads(capsys.readouterr().out), probe(Tiny("gpt2", fault), "gpt2", PROMPTS, pad_token_id=0)
    assert told == want.to_dict() and text.out == f"{want}\n" and ("clean" in text.out) == (status == 0)
    assert [f["code"] for f in told["findings"]] == codes


@pytest.mark.parametrize("name", FAMILIES)
def test_the_prompts_that_are_fed_unasked_show_a_whole_model_clean(name):
    assert probe(Tiny(name), name, PROMPTS, pad_token_id=0, tolerance=1e-9).findings == ()


def test_the_command_finds_the_module_beside_the_user(here):
    """As it is installed: a script elsewhere, so that Python itself does not look into the current folder."""
    script = f"import sys; sys.path[0] = {str(ROOT)!r}\nfrom positionlib.check.__main__ import main\nsys.exit(main())"
    for factory, status in (("mymodel:faulty", 1), ("mymodel:nothing", 2)):
        command = [sys.executable, "-c", script, "check", "--family", "gpt2", "--probe", factory, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=here)
        assert done.returncode == status and json.loads(done.stdout)["status"] == status, done.stderr


def test_what_a_model_prints_stays_out_of_the_report(here, capsys):
    assert main(["check", "--family", "gpt2", "--probe", "mymodel:chatty", "--json"]) == 0
    text = capsys.readouterr()
    assert json.loads(text.out)["status"] == 0 and {"loading the model", "built", "step"} <= set(text.err.splitlines())


def test_settings_are_those_of_the_library(here):
    prompts = [[5, 9, 3, 7, 1], [2, 8, 4, 6]]
    told = check_probe("mymodel:faulty", "gpt2", settings(here, prompts=prompts, pad_token_id=31, regimes=["decode", "batch"], tolerance=0.01))
    assert told == probe(Tiny("gpt2", "decode restarts"), "gpt2", prompts, pad_token_id=31, regimes=["decode", "batch"], tolerance=0.01)
    assert [f.code for f in told.findings] == ["probe-decode"] and len(told.explanation) == 3
    assert check_probe("mymodel:faulty", "gpt2", settings(here, tolerance=0.999, regimes=["decode"])).status == 0, "almost anything agrees within so much"
    assert check_probe("mymodel:clean", "gpt2", settings(here)).status == 0


@pytest.mark.parametrize("factory, field, says", [
    ("", "probe", "MODULE:CALLABLE"), ("mymodel", "probe", "MODULE:CALLABLE"), (":clean", "probe", "MODULE:CALLABLE"), ("mymodel:", "probe", "MODULE:CALLABLE"),
    ("my model:clean", "probe", "ValueError"), ("mymodel:a:b", "probe", "ValueError"), ("../mymodel:clean", "probe", "ValueError"),
    ("nowhere:step", "probe", "No module named 'nowhere'"), ("broken:step", "probe", "No module named 'a_package_that_is_not_there'"),
    ("wrong:step", "probe", "SyntaxError"), ("quits:step", "probe", "SystemExit"), ("mymodel:absent", "probe", "no attribute 'absent'"),
    ("mymodel:number", "probe", "a callable"), ("mymodel:text", "probe", "a callable"), ("mymodel:wants", "probe", "called without arguments"),
    ("mymodel:raises", "probe", "RuntimeError: no weights in this folder"), ("mymodel:leaves", "probe", "SystemExit: 0"),
    ("mymodel:nothing", "step", "a callable"),
    ("mymodel:other", "step", "keywords input_ids, attention_mask, position_ids"), ("mymodel:positional", "step", "missing a required argument: 'ids'"),
    ("mymodel:made", "probe", "called without arguments"), ("mymodel:fails", "step", "mat1 and mat2 shapes"), ("mymodel:ends", "step", "SystemExit: 0"),
    ("mymodel:bare", "step", "(layers, cache)"), ("mymodel:short", "layers", "the state of every token"), ("mymodel:text_out", "layers", "a list of states"),
])
def test_a_factory_that_makes_no_step_is_refused_in_words(here, capsys, factory, field, says):
    assert main(["check", "--family", "gpt2", "--probe", factory]) == 2
    text = capsys.readouterr()
    assert says in text.err and f"bad input: {field} = " in text.err and text.out == "" and "Traceback" not in text.err
    assert main(["check", "--family", "gpt2", "--probe", factory, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 2 and told["error"]["field"] == field and told["error"]["remedy"]


@pytest.mark.parametrize("fields, field", [
    ({"prompts": [[1, 2, 3, 4]]}, "prompts"), ({"prompts": []}, "prompts"), ({"prompts": {}}, "prompts"), ({"prompts": ["abcd", "abcde"]}, "prompts"),
    ({"prompts": [[1, 2, 3, 4.0], [1, 2, 3, 4, 5]]}, "prompts"), ({"prompts": [[1, 2, 3, -4], [1, 2, 3, 4, 5]]}, "prompts"),
    ({"prompts": [[1, 2, 3, True], [1, 2, 3, 4, 5]]}, "prompts"), ({"prompts": [[1, 2, 3, 2**31], [1, 2, 3, 4, 5]]}, "prompts"),
    ({"prompts": [[1, 1, 3, 4], [1, 2, 3, 4, 5]]}, "prompts"), ({"prompts": [[1, 2, 3], [1, 2, 3, 4, 5]]}, "prompts"), ({"prompts": None}, "prompts"),
    ({"prompts": [[1, 2, 3, 40], [1, 2, 3, 4, 5]]}, "step"), ({"pad_token_id": -1}, "pad_token_id"), ({"pad_token_id": "0"}, "pad_token_id"),
    ({"pad_token_id": None}, "pad_token_id"), ({"regimes": "decode"}, "regimes"), ({"regimes": ["sideways"]}, "regimes"), ({"regimes": [[]]}, "regimes"),
    ({"regimes": []}, "regimes"),
    ({"tolerance": 1}, "tolerance"), ({"tolerance": 0.0}, "tolerance"), ({"tolerance": "x"}, "tolerance"), ({"tolerance": float("nan")}, "tolerance"),
    ({"step": "os:abort"}, "settings"), ({"family": "opt"}, "settings"), ([1], "settings"),
])
def test_settings_that_can_show_nothing_are_refused(here, capsys, fields, field):
    (here / "settings.json").write_text(json.dumps(fields))
    assert main(["check", "--family", "gpt2", "--probe", "mymodel:clean", "settings.json"]) == 2
    assert f"bad input: {field} = " in capsys.readouterr().err


@pytest.mark.parametrize("content, field", [
    (b"", "document"), (b"{", "document"), (b"\xff", "document"), (b'{"tolerance": 0.1, "tolerance": 0.2}', "tolerance"),
    (b"[" * 10**5, "document"), (b"PK\x03\x04", "document"), (b"\x80\x04", "document")])
def test_a_settings_file_of_another_kind_is_refused(here, content, field):
    (here / "settings.json").write_bytes(content)
    refused(lambda: check_probe("mymodel:clean", "gpt2", "settings.json"), field)


def test_the_rest_of_the_command_line(here, capsys):
    refused(lambda: check_probe("mymodel:clean", None), "family")
    refused(lambda: check_probe("mymodel:clean", "gpt9"), "family")
    refused(lambda: check_probe("mymodel:clean", "gpt2", "none.json"), "file")
    assert main(["check", "--probe", "mymodel:clean"]) == 2 and "Pass --family" in capsys.readouterr().err
    for arguments in (["check", "--family", "gpt2"], ["check", "--probe"], ["check", "--family", "gpt9", "--probe", "mymodel:clean"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "a file, or --probe, is needed" in capsys.readouterr().err


def test_settings_need_the_reader_of_documents(here):
    settings(here, tolerance=0.1)
    script = f"""
import sys
sys.path[0] = {str(ROOT)!r}
sys.modules["yaml"] = sys.modules["pydantic"] = None  # an import of it now raises
from positionlib.check.__main__ import main
print([main(["check", "--family", "gpt2", "--probe", "mymodel:clean", "--json", *file]) for file in ([], ["settings.json"])])"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "[0, 2]" and "the extra 'manifest'" in done.stdout
