"""The fixture runner: everything the library has passes, a wrong number fails, and nothing is decided by a case's name."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import oracle_folders as folders
from tests.oracles.compare import difference, tolerance_for
from tests.oracles.runner import SOURCES, CorruptManifest, read_manifest, run, run_case

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
ENTRIES = read_manifest(FIXTURES)
COVERED = [entry for entry in ENTRIES if entry["mechanism"] in SOURCES]


def printed(folder: Path) -> tuple[int, list[str]]:
    out = io.StringIO()
    status = run(folder, out=out)
    return status, out.getvalue().splitlines()


def test_every_case_of_a_mechanism_that_the_library_has_passes():
    status, lines = printed(FIXTURES)
    assert status == 0 and len(lines) == len(ENTRIES) + 1
    passed = {line.removesuffix(" pass") for line in lines if line.endswith(" pass")}
    assert passed == {f"{entry['mechanism']}/{entry['case']}" for entry in COVERED}
    assert lines[-1] == f"{len(ENTRIES)} cases: {len(COVERED)} pass, 0 FAIL, {len(ENTRIES) - len(COVERED)} refused, 0 not covered"
    # The cases of the reference repositories are all there.
    counts = {"sinusoidal": 17, "t5": 18, "alibi": 14, "shaw": 12, "music_transformer": 5, "transformer_xl": 10, "deberta": 19, "tupe": 4,
              "graphormer": 4, "multiaxis": 13, "time2vec": 2, "rope_handoff": 2}
    assert {m: sum(entry["mechanism"] == m for entry in COVERED) for m in counts} == counts


def test_what_the_library_refuses_is_named():
    _, lines = printed(FIXTURES)
    assert any(line.startswith("dynamic_bias/") and " refused: a bias that a small network computes" in line for line in lines)


def moved(array: np.ndarray) -> np.ndarray:
    """The array with its entries shifted by two, or by one, or, where all are alike, increased."""
    shifted = [np.roll(array, step) for step in (2, 1)]
    return next((s for s in shifted if not np.array_equal(s, array)), array + 1)


def rewritten(tmp_path: Path, entry: dict, arrays: dict[str, np.ndarray]) -> dict:
    """The entry, pointing at an archive of these arrays, with shapes and dtypes unchanged."""
    np.savez(tmp_path / "case.npz", **arrays)
    if "inputs" in entry:  # a case that shares another's inputs needs that file too
        shared = tmp_path / entry["inputs"]["file"]
        shared.parent.mkdir(exist_ok=True)
        shutil.copy(FIXTURES / entry["inputs"]["file"], shared)
    return {**entry, "file": "case.npz", "sha256": None}


def spoiled(array: np.ndarray, step: float) -> np.ndarray:
    """One entry changed: an integer by one, a boolean flipped, the largest finite float by ``step``."""
    changed = array.copy()
    if array.dtype == bool:
        changed.flat[-1] ^= True
    elif array.dtype.kind in "iu":
        changed.flat[-1] += 1
    else:
        changed.flat[int(np.where(np.isfinite(array), np.abs(array), -1).argmax())] += step
    return changed


@pytest.mark.parametrize("entry", COVERED, ids=lambda entry: f"{entry['mechanism']}-{entry['case']}")
def test_ten_times_the_tolerance_in_one_entry_of_any_array_fails(entry, tmp_path):
    case = run_case(FIXTURES, entry).case
    for name in case.errors:
        stored = case.arrays[name]
        if name.startswith("max_abs"):
            changed = stored * 0.1  # a bound fails when it is too small
        else:
            rtol, atol = tolerance_for(entry["tolerance"], name) or (0.0, 0.0)  # integers need none
            largest = np.abs(stored[np.isfinite(stored)]).max() if stored.dtype.kind == "f" else 0.0
            changed = spoiled(stored, 10 * (atol + rtol * largest) or 1.0)  # what is compared exactly changes by one
        verdict = run_case(tmp_path, rewritten(tmp_path, entry, {**case.arrays, name: changed}))
        assert verdict.status == "FAIL" and name in verdict.reason, f"{name} was changed and the case says: {verdict}"


@pytest.mark.parametrize("entry", COVERED, ids=lambda entry: f"{entry['mechanism']}-{entry['case']}")
def test_every_input_takes_part(entry, tmp_path):
    case = run_case(FIXTURES, entry).case
    # A bias of the keys shifts all scores of a row alike.
    blind = {"bk", "param.key.bias"} | ({"param.pos_key_proj.bias"} if "c2p" not in case.arrays else set())
    for name in (n for n in case.taken - set(case.errors) - blind if case.arrays[n].size):
        verdict = run_case(tmp_path, rewritten(tmp_path, entry, {**case.arrays, name: moved(case.arrays[name])}))
        assert verdict.status == "FAIL", f"input {name} was changed and the case says: {verdict}"


def test_a_flipped_sign_fails_and_the_exit_status_says_so(tmp_path):
    mechanism, source, settings, arrays, tolerance = folders.bias_case()
    assert printed(folders.write(tmp_path / "a", (mechanism, source, settings, arrays, tolerance)))[0] == 0
    status, lines = printed(folders.write(tmp_path / "b", (mechanism, source, settings, {**arrays, "bias": -arrays["bias"]}, tolerance)))
    largest = 2 * np.abs(arrays["bias"]).max()
    assert status == 1 and lines[0].startswith(f"t5/case-0 FAIL: bias: error {largest:.3g} at ")
    assert lines[-1] == "1 cases: 0 pass, 1 FAIL, 0 refused, 0 not covered"


def test_names_do_not_decide(tmp_path):
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    renamed = [{**entry, "case": f"n{number}"} for number, entry in enumerate(ENTRIES)]
    (tmp_path / "manifest.json").write_text(json.dumps({"entries": renamed}))
    after = [line.partition(" ")[2] for line in printed(tmp_path)[1]]
    assert after == [line.partition(" ")[2] for line in printed(FIXTURES)[1]]


UNSEEN = [folders.sinusoid_case(), folders.sinusoid_case(1, 2), folders.bucket_case(12, 40, True), folders.bucket_case(10, 33, False),
          folders.bias_case(), folders.t5_attention_case(causal=True), folders.t5_attention_case(causal=False),
          folders.slopes_case(5, 10, 24, 48), folders.bloom_case(), folders.axial_case(), folders.mae_case(), folders.detr_case()]


def test_unseen_cases_pass(tmp_path):
    status, lines = printed(folders.write(tmp_path, *UNSEEN))
    assert status == 0 and lines[-1] == f"{len(UNSEEN)} cases: {len(UNSEEN)} pass, 0 FAIL, 0 refused, 0 not covered", "\n".join(lines)


def verdict_of(tmp_path: Path, parts: folders.Parts, **changes) -> str:
    (entry,) = read_manifest(folders.write(tmp_path, parts))
    return str(run_case(tmp_path, {**entry, **changes}))


def test_an_unknown_source_array_or_mechanism_is_not_covered(tmp_path):
    mechanism, source, settings, arrays, tolerance = folders.sinusoid_case()
    assert verdict_of(tmp_path, (mechanism, {**source, "function": "Rotary"}, settings, arrays, tolerance)) == \
        "not covered: no library call is known for Rotary of the_annotated_transformer.py"
    assert verdict_of(tmp_path, ("mamba", source, settings, arrays, tolerance)) == "not covered: the library has no mamba yet"
    extra = {**arrays, "grad_table": np.zeros(3)}
    assert verdict_of(tmp_path, (mechanism, source, settings, extra, tolerance)) == "not covered: unknown array grad_table"
    extra["pe_f64"] = extra["pe_f64"] + 1
    assert verdict_of(tmp_path, (mechanism, source, settings, extra, tolerance)).startswith("FAIL: pe_f64: error 1 at ")


def test_a_case_that_cannot_be_read_fails_with_the_reason(tmp_path):
    parts = folders.sinusoid_case()
    assert verdict_of(tmp_path, parts, sha256="0" * 64) == "FAIL: sinusoidal/case-0.npz has another sha256 than the manifest states"
    assert verdict_of(tmp_path, parts, file="sinusoidal/none.npz") == "FAIL: sinusoidal/none.npz cannot be read: No such file or directory"
    assert verdict_of(tmp_path, parts, file="../case.npz") == "FAIL: ../case.npz lies outside the folder"
    assert verdict_of(tmp_path, parts, arrays={"pe_f64": {}}) == "FAIL: manifest and file differ in the arrays pe_f32"
    assert verdict_of(tmp_path, parts, settings={"max_len": 23}) == "FAIL: the settings lack d_model"
    assert verdict_of(tmp_path, parts, tolerance={}) == \
        "FAIL: pe_f32: the manifest states no tolerance for it; pe_f64: the manifest states no tolerance for it"
    pickled = {"pe_f64": np.array([{}], dtype=object)}
    assert verdict_of(tmp_path, (*parts[:3], pickled, parts[4])).startswith("FAIL: sinusoidal/case-0.npz is no archive of plain arrays: Object arrays")


@pytest.mark.parametrize("text", ["{", "[]", '{"entries": {}}', '{"entries": [{"mechanism": "t5"}]}', '[{"mechanism": "t5", "case": 1, "file": "a", "source": {}}]'])
def test_a_corrupt_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CorruptManifest, match="manifest.json"):
        read_manifest(tmp_path)


def command(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "tests.oracles", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_exits_with_0_1_or_2(tmp_path):
    assert command(tmp_path).returncode == 2 and "manifest.json" in command(tmp_path).stderr
    good = command(folders.write(tmp_path, folders.sinusoid_case()))
    assert (good.returncode, good.stdout) == (0, "sinusoidal/case-0 pass\n1 cases: 1 pass, 0 FAIL, 0 refused, 0 not covered\n")
    mechanism, source, settings, arrays, tolerance = folders.sinusoid_case()
    bad = command(folders.write(tmp_path, (mechanism, source, {**settings, "d_model": 14}, arrays, tolerance)))
    assert bad.returncode == 1 and "FAIL: pe_f32: shape (1, 23, 14), stored (1, 23, 12)" in bad.stdout


def test_tolerances_by_name():
    groups = {"official": {"rtol": 1.0}, "bloom/mpt": {"atol": 2.0}, "bloom_h6": {"atol": 3.0}, "default": {"rtol": 4.0, "atol": 5.0}}
    wanted = {"official_h4": (1, 0), "mpt_h4": (0, 2), "bloom_h4": (0, 2), "bloom_h6": (0, 3), "officially": (4, 5)}
    assert {name: tolerance_for(groups, name) for name in wanted} == wanted
    assert tolerance_for({"rtol": 1, "atol": 2, "grad": {"atol": 3}}, "out") == (1, 2)
    assert tolerance_for({"grad": {"atol": 3}}, "out") is None and tolerance_for(None, "out") is None


@pytest.mark.parametrize(("stored", "got", "near"), [
    ([1.0, np.inf], [1.0 + 1e-9, np.inf], True), ([1.0, -np.inf], [1.0, np.inf], False), ([1.0, np.inf], [1.0, 1e300], False),
    ([1.0, 2.0], [1.0, np.nan], False), ([1.0, np.nan], [1.0, np.nan], True), ([1.0, 2.0], [1.0, 2.1], False),
    ([1, 2], [1, 3], False), ([1, 2], [1.0, 2.0], False), ([True, False], [True, True], False), ([1.0], [[1.0]], False), ([], [], False)])
def test_entries_are_compared_one_by_one(stored, got, near):
    assert (difference(np.array(stored), np.array(got), (0.0, 1e-6)).problem is None) is near


def test_undefined_entries_are_left_out_but_never_all_of_them():
    stored, got = np.array([1.0, 2.0]), np.array([1.0, 9.0])
    assert difference(stored, got, (0.0, 1e-6), np.array([True, False])).problem is None
    assert difference(stored, got, (0.0, 1e-6), np.array([False, False])).problem == "no entry to compare"
