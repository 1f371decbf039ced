"""The command and its files: exit status, JSON, and hostile input, which is refused in words and never executed."""

from __future__ import annotations

import io
import json
import pickle
import pkgutil
import re
import subprocess
import sys
import time
import tomllib
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from positionlib.call import PositionCall
from positionlib.check import FAMILIES, check_arrays, check_file
from positionlib.check import reading
from positionlib.check.__main__ import command, main
from positionlib.check.feed import ARRAYS, NUMBERS
from positionlib.check.reading import read_npz
from positionlib.errors import PositionContractError
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
LEFT = {"attention_mask": [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], "position_ids": [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]}
GOOD = {**LEFT, "position_ids": [[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]]}


def npz(**arrays) -> bytes:
    out = io.BytesIO()
    np.savez(out, **{name: np.asarray(values) for name, values in arrays.items()})
    return out.getvalue()


def member(data: bytes, name: str = "input_ids.npy", times: int = 1) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of the name that is there twice on purpose
        for _ in range(times):
            archive.writestr(name, data)
    return out.getvalue()


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode()


@pytest.fixture
def file(tmp_path):
    def write(name: str, content) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
        return str(path)
    return write


def test_each_kind_of_file_says_the_same(file):
    want = check_arrays(LEFT, "gpt2")
    for path in (file("a.json", LEFT), file("a.npz", npz(**LEFT)), file("b.npz", npz(**{k: np.asarray(v, np.int32, order="F") for k, v in LEFT.items()}))):
        assert check_file(path, "gpt2") == want
    call = PositionCall.padded(LEFT["attention_mask"], causal=True)
    told = [check_file(file(*f), "gpt2") for f in (("m.yaml", call.to_yaml()), ("m.json", call.to_json()))]
    assert told[0] == told[1] and told[0].findings[0].message == want.findings[0].message


def test_calls_in_one_file(file):
    document = {"calls": [GOOD, {"position_ids": [[5], [5]]}]}
    assert [f.field for f in check_file(file("c.json", document), "gpt2").findings] == ["calls.1.position_ids"]
    refused(lambda: check_file(file("c.json", {**document, "lengths": [1]}), "gpt2"), "document")


@pytest.mark.parametrize(("fields", "status"), [(GOOD, 0), (LEFT, 1), ({"input_ids": [[0.5]]}, 2)])
def test_exit_status_and_json(file, capsys, fields, status):
    path = file("a.json", fields)
    assert main(["check", "--family", "gpt2", path]) == status
    text = capsys.readouterr()
    assert ("clean" in text.out) == (status == 0) and ("1 finding" in text.out) == (status == 1) and ("bad input: input_ids" in text.err) == (status == 2)
    assert main(["check", path, "--family", "gpt2", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == status
    if status == 1:
        assert told["findings"] == [{"code": "left-pad-counted", "row": 1, "field": "position_ids", "remedy": told["findings"][0]["remedy"],
                                     "message": "row 1 is left-padded but its positions count pads: the prompt is shifted by 3"}]
    if status == 2:
        assert told["error"]["field"] == "input_ids" and told["error"]["remedy"]


def test_the_module_is_the_command(file):
    done = subprocess.run([sys.executable, "-m", "positionlib.check", "--family", "gpt2", file("a.json", LEFT)], capture_output=True, text=True)
    assert done.returncode == 1 and "the prompt is shifted by 3" in done.stdout and done.stderr == ""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]["positionlib"]
    assert pkgutil.resolve_name(script) is command
    for arguments in (["check"], ["check", "x", "--family", "gpt9"], []):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def test_the_readme_shows_what_is_printed(file, capsys):
    shown = re.search(r"```\n\$ positionlib (check .*) call.json\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert main([*shown[1].split(), file("call.json", LEFT)]) == 1 and capsys.readouterr().out == shown[2]


def test_raw_arrays_need_a_family_and_files_must_exist(file):
    for path in (file("a.json", GOOD), file("a.npz", npz(**GOOD)), file("c.json", {"calls": [GOOD]})):
        refused(lambda: check_file(path, None), "family")
    refused(lambda: check_file(file("a.json", GOOD) + "x", "gpt2"), "file")


def test_a_bare_machine_reads_npz_and_says_what_the_rest_needs(file):
    paths = [file("a.npz", npz(**LEFT)), file("a.json", LEFT)]
    script = f"""
import sys
sys.modules["yaml"] = sys.modules["pydantic"] = None  # an import of it now raises
from positionlib.check.__main__ import main
print([main(["check", "--family", "gpt2", "--json", path]) for path in {paths!r}])"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[1, 2]" and "the extra 'manifest'" in done.stdout and done.stderr == ""


class Bomb:
    """What a hostile pickle does when it is read."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


GOOD_NPZ = npz(**GOOD)
OBJECTS = np.empty(1, object)
OBJECTS[0] = Bomb()
HEADER = "{'descr': '<i8', 'fortran_order': False, 'shape': %s, }\n"
DEEP = "{'descr': '<i8', 'fortran_order': False, 'shape': " + "(" * 400 + ")" * 400 + "}"


@pytest.mark.parametrize(("name", "content", "says"), [
    ("truncated NPZ", GOOD_NPZ[: len(GOOD_NPZ) // 2], "an undamaged NPZ archive"), ("two letters", b"PK", "an undamaged NPZ archive"),
    ("damaged NPZ", GOOD_NPZ.replace(b"\x01\x00\x00\x00\x00\x00\x00\x00", b"\x02\x00\x00\x00\x00\x00\x00\x00", 3), "an undamaged NPZ archive"),
    ("truncated member", member(header(HEADER % "(2,)") + bytes(8)), "16 bytes, as the header says"),
    ("huge shape", member(header(HEADER % "(1000000000000,)")), "as the header says"),
    ("huger shape", member(header(HEADER % "(10**9, 10**9)")), "a short NPY header"),
    ("negative shape", member(header(HEADER % "(-1, -1)") + bytes(8)), "as the header says"),
    ("huge header", member(header(HEADER % "(1,)" + " " * 60_000)), "a short NPY header"),
    ("longer header", member(header(HEADER % "(1,)" + " " * 10**6, b"\x02\x00")), "a short NPY header"),
    ("deep header", member(header(DEEP)), "a short NPY header"),
    ("code in a header", member(header("__import__('os').abort()")), "a short NPY header"), ("a float array", npz(input_ids=[[0.5]]), "booleans or integers"),
    ("complex", npz(input_ids=[[1j]]), "booleans or integers"), ("text", npz(input_ids=[["a"]]), "booleans or integers"),
    ("structured", npz(input_ids=np.zeros(1, [("a", "i8")])), "booleans or integers"),
    ("too large", npz(input_ids=np.full((1, 1), 2**63, np.uint64)), "below 2^63"),
    ("objects in NPZ", member(header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + pickle.dumps(OBJECTS)), "never read"),
    ("unknown version", member(b"\x93NUMPY\x09\x00" + bytes(20)), "array format"), ("no magic", member(b"12345678901"), "a short NPY header"),
    ("one name twice", member(header(HEADER % "(1,)") + bytes(8), times=2), "each array once"), ("unknown name", npz(weights=[1]), "a known array"),
    ("path as name", member(b"", "../input_ids.npy"), "a known array"), ("many members", npz(**{f"a{i}": [1] for i in range(40)}), "one member an array"),
    ("a pickle", pickle.dumps(Bomb()), "a pickle is never read"), ("an NPY", header(HEADER % "(1,)") + bytes(8), "numpy.savez"),
    ("truncated JSON", '{"input_ids": [[1, 2', "one JSON object"), ("one JSON name twice", '{"input_ids": [[1]], "input_ids": [[2]]}', "each field once"),
    ("a list", "[1]", "one JSON object"), ("nothing", b"", "one JSON object"),
    ("deep JSON", "[" * 10**5, "one JSON object"), ("not text", b"\xff\xfe", "UTF-8"),
    ("NaN", '{"input_ids": [[NaN]]}', "integers or booleans"), ("unknown field", '{"inputs": [[1]]}', "known fields"),
    ("huge number", '{"input_ids": [[%s]]}' % ("9" * 4000), "below 2^63"), ("nested arrays", '{"input_ids": %s1%s}' % ("[" * 100, "]" * 100), "[B, N] or [N]"),
    ("unknown schema", '{"positional_call": {"schema": "numinens.position-call.v9"}}', "numinens.position-call.v1"),
    ("not a manifest", '{"positional_call": [1]}', "one mapping"), ("a manifest and more", '{"positional_call": {}, "input_ids": [[1]]}', "one mapping"),
])
def test_hostile_files_are_refused_in_words(file, capsys, name, content, says):
    path, start = file("x.bin", content), time.perf_counter()
    assert main(["check", "--family", "gpt2", path]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("bad input: ") and says in told.err and told.out == "" and time.perf_counter() - start < 2.0


@pytest.mark.parametrize(("content", "says"), [
    ("positional_call: !!python/object/apply:os.abort []\n", "no YAML tags"), ("positional_call: {schema: a, schema: b}\n", "each field once"),
    ("positional_call: &a [*a]\n", "aliases"), ("positional_call: {schema: v9}\n", "numinens.position-call.v1"), ("input_ids: [[1]]\n", "one mapping"),
])
def test_hostile_yaml_is_refused_in_words(file, capsys, content, says):
    assert main(["check", file("x.yaml", content)]) == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(("fields", "field"), [
    ({"input_ids": [[1]], "cache_length": 10**12}, "cache_length"), ({"input_ids": [[1]], "pad_token_id": 2**63}, "pad_token_id"),
    ({"input_ids": [[1]] * 5000}, "batch"), ({"segment_ids": [list(range(5000))]}, "segment_ids"), ({"calls": [{"input_ids": [[1]]}] * 5000}, "calls"),
    ({"input_ids": [[1] * 2000] * 20, "pair_mask": [[1] * 2000] * 2000}, "pair_mask"), ({"input_ids": {"a": 1}}, "input_ids"),
    ({"cache_positions": 3}, "cache_positions"),
])
def test_a_small_file_cannot_ask_for_much(file, fields, field):
    start = time.perf_counter()
    refused(lambda: check_file(file("x.json", fields), "gpt2"), field)
    assert time.perf_counter() - start < 5.0


def test_names_from_a_file_do_not_reach_the_terminal_as_they_are(file, capsys):
    document = PositionCall.decode(2).to_dict()
    for name, content, status in (("a.json", '{"\\ud800\\u001b[2J": 1, "\\ud800\\u001b[2J": 2}', 2),
                                  ("m.json", json.dumps({"positional_call": document | {"\x1b\x1b[2J": 1}}), 1)):
        assert main(["check", "--family", "gpt2", file(name, content)]) == status
        told = "".join(capsys.readouterr())
        assert "??[2J" in told and "\x1b" not in told


def test_a_bomb_is_not_unpacked(file, monkeypatch):
    monkeypatch.setattr(reading, "FILE_LIMIT", 10_000)
    assert "at most 10000 bytes unpacked" in str(refused(lambda: read_npz(member(header(HEADER % "(5000,)") + bytes(40_000))), "input_ids"))
    refused(lambda: check_file(file("big.json", " " * 10_001), "gpt2"), "file")


ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.integers(0, 3)
JUNK = st.recursive(ATOMS, lambda part: st.lists(part, max_size=3), max_leaves=8)
RECTANGLE = st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), min_size=1, max_size=2)


@given(st.dictionaries(st.sampled_from(ARRAYS + NUMBERS), JUNK | RECTANGLE, max_size=4), st.sampled_from(sorted(FAMILIES)))
def test_no_junk_escapes_as_another_error(fields, name):
    try:
        assert check_arrays(fields, name).status in (0, 1)
    except PositionContractError as error:
        assert error.field and error.remedy


@given(st.integers(0, len(GOOD_NPZ) - 1), st.integers(0, 255), st.integers(0, 40))
def test_no_damaged_byte_escapes_as_another_error(place, value, cut):
    content = bytearray(GOOD_NPZ)
    content[place] = value
    try:
        check_arrays(read_npz(bytes(content[: len(content) - cut])), "gpt2")
    except PositionContractError as error:
        assert error.field and error.remedy


@given(st.text("{'}descrfotan_h:(),<>i8|OFTule 0123456789L", max_size=80), st.binary(max_size=16))
def test_no_header_escapes_as_another_error(text, data):
    try:
        read_npz(member(header(text) + data))
    except PositionContractError as error:
        assert error.field and error.remedy
