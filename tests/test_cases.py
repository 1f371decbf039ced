"""The runner of reported faults: every covered case passes, a wrong number fails, and nothing is skipped in silence."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.expect import distance
from tests.cases.runner import HANDLERS, NOT_THE_LIBRARY, CorruptFile, read, run, run_case

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "fixtures" / "open_cases.json"
CASES = read(FILE)
COVERED = [case for case in CASES if case["call"]["mechanism"] in HANDLERS]
BY_ID = {case["id"]: case for case in CASES}


def test_every_case_on_a_topic_of_the_library_passes():
    out = io.StringIO()
    assert run(FILE, out=out) == 0
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.endswith(" pass")] == [f"{c['call']['mechanism']}/{c['id']} pass" for c in COVERED]
    assert lines[-1] == f"79 cases: {len(COVERED)} pass, 0 FAIL, {79 - len(COVERED)} not covered" and len(COVERED) == 76
    assert any(line.startswith("setup_cell_check/") and line.endswith("not covered: installation is the book's concern") for line in lines)


def test_every_word_has_one_meaning():
    assert not set(HANDLERS) & set(NOT_THE_LIBRARY)


def spots(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Paths of the numbers and truth values that a case expects; the options of an "either" are a choice, not a demand."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name != "either":
                yield from spots(part, (*path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from spots(part, (*path, index))
    elif isinstance(value, (bool, int, float)):
        yield path


def changed(case: dict, path: tuple) -> dict:
    """A copy whose number at ``path`` is off by ten tolerances, or by one; a truth value is turned round."""
    case = copy.deepcopy(case)
    part = case["expected"]
    for step in path[:-1]:
        part = part[step]
    value, limits = part[path[-1]], case["tolerance"]
    if isinstance(value, bool):
        part[path[-1]] = not value
    elif limits == "exact":
        part[path[-1]] = value + 1
    else:
        part[path[-1]] = value + 10 * (limits["abs"] + limits["rel"] * abs(value))
    return case


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case["id"])
def test_a_wrong_number_anywhere_fails(case):
    places = list(spots(case["expected"]))
    assert places or "either" in case["expected"] or case["id"] == "O52"
    # The first and the last number of each part stand for the part.
    by_part = {path[:1]: [p for p in places if p[:1] == path[:1]] for path in places}
    for path in {p for group in by_part.values() for p in (group[0], group[-1])}:
        status, reason, _ = run_case(changed(case, path))
        assert status == "FAIL", f"expected{list(path)} was changed and the case says: {status} {reason}"


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case["id"])
def test_the_reported_wrong_value_is_not_accepted_as_the_right_one(case):
    """Put the fault's value where it has the form of an expectation: the library must disagree."""
    wrong, expected = case.get("wrong_value"), case["expected"]
    if isinstance(wrong, list) and isinstance(expected, dict):
        options = [{**expected, name: wrong} for name, part in expected.items() if isinstance(part, list)]
    elif isinstance(wrong, dict) and isinstance(expected, dict):
        options = [{**expected, **wrong}] if set(wrong) <= set(expected) else []
    else:
        options = [wrong] if isinstance(wrong, list) else []
    for option in options:
        status, reason, _ = run_case({**case, "expected": option, "wrong_value": None})
        assert status == "FAIL" and ("error" in reason or "shape" in reason), (status, reason)


def test_ids_do_not_decide():
    for case in CASES:
        assert run_case({**case, "id": "another", "topic": "another", "guard": "another"}) == run_case(case)


def case_of(mechanism: str, expected: object, tolerance: object = "exact", wrong_value: object = None, **call: object) -> dict:
    return {"id": "new", "call": {"mechanism": mechanism, **call}, "expected": expected, "tolerance": tolerance, "wrong_value": wrong_value}


@pytest.mark.parametrize("case", [
    case_of("alibi_slopes", [2.0**-4, 2.0**-8, 2.0**-2], heads=3),
    case_of("alibi_slopes_shard", {"0": [2.0**-8, 2.0**-4], "1": [2.0**-2]}, heads=3, ranks=2, heads_of_rank={"0": [1, 0], "1": [2]}),
    case_of("alibi_bias", {"bias": [[[0.0, 0.0], [-0.75, 0.0]]]}, slopes=[0.75], query_positions=[6, 7], key_positions=[6, 7]),
    case_of("t5_bucket", [3, 3, 0, 6], relative_position=[90, 7, 0, -2], sign="query_minus_key", bidirectional=True, num_buckets=8, max_distance=9),
    case_of("t5_bias_per_layer", {"sharing=per_layer": {"a": [[1.0]], "b": [[5.0]]}, "sharing=stack": {"a": [[1.0]], "b": [[1.0]]}},
            tables={"a": [1.0, 0.0, 0.0, 0.0], "b": [5.0, 0.0, 0.0, 0.0]}, heads=1, bidirectional=True, num_buckets=4, max_distance=8,
            query_positions=[3], key_positions=[3]),
    case_of("positions_from_mask", {"positions_of_active_rows": [[4, 5], [4]]}, attention_mask=[[1, 1, 0], [0, 0, 1]],
            padding_policy="compress_active", first_position=4),
    case_of("decode_positions", {"query_positions": [[3], [1]]}, prefill_attention_mask=[[1, 1, 1], [0, 0, 1]], padding_policy="compress_active", new_tokens=1),
    case_of("pack", {"positions": [0, 0, 1, 2], "segment_ids": [0, 1, 1, 1], "cu_seqlens": [0, 1, 4]}, lengths=[1, 3], coordinate_rule="reset_per_segment"),
    case_of("causal_visibility", [[0, 1]], query_positions=[4], key_positions=[5, 4]),
    case_of("committed_length_trace", {"query_start_of_each_call": [7, 9], "committed_after": [9, 14]}, append_lengths=[2, 5], start=7),
    case_of("masked_attention", {"probabilities": [[0.25, 0.75, 0.0]], "outputs": [[1.75]]}, {"abs": 1e-12},
            scores=[[0.0, 1.0986122886681098, 50.0]], key_active=[1, 1, 0], v=[[1.0], [2.0], [9.0]]),
    case_of("learned_absolute_lookup", {"3": "ok", "4": "error naming 4 and 4 rows"}, table_rows=4, positions=[[3], [4]]),
    case_of("sinusoidal", [[0.0, 0.0, 1.0, 1.0]], positions=[0], d_model=4, base=100, layout="concatenated"),
    case_of("first_position_alias", {"bfloat16": [256, 257]}, formats=["bfloat16"]),
    case_of("index_buffer_admission", {"either": ["refused: not a range"]}, expected_range=3, loaded_values=[0, 0, 2], loaded_dtype="int64"),
    case_of("transformer_xl_align", [[2.0, 3.0, None], [4.0, 5.0, 6.0]], compact=[[1, 2, 3], [4, 5, 6]], memory=1, column_order="distance K-1 .. 0"),
    case_of("bidirectional_align", [[2.0, 3.0], [4.0, 5.0]], compact=[[1, 2, 3], [4, 5, 6]], column_order="query_minus_key L-1 .. -(L-1)"),
    case_of("segment_memory_update", {"memory_positions": [3, 4, 5]}, mem_len=3, old_memory_positions=[1, 2, 3, 4], new_segment_positions=[5, 6], ext_len=1),
    case_of("deberta_indices", {"paper": {"p2c": [[1, 1], [0, 1]]}}, length=2, max_relative=1, terms=["p2c"]),
    case_of("deberta_scale", {"denominators": [3.0]}, {"abs": 1e-12}, d_head=3, enabled=[["p2c", "c2p"]]),
    case_of("tupe_cls_override", {"scores": [[5.0, 5.0], [6.0, 4.0]]}, position_scores=[[1.0, 2.0], [3.0, 4.0]], theta_cls_to_others=5.0, theta_others_to_cls=6.0),
    case_of("graph_distance_bias", {"bias_permuted": [[0.5, -3.0], [1.5, 0.5]]}, distance=[[0, 1], [-1, 0]], perm=[1, 0],
            bias_table={"0": 0.5, "1": 1.5, "unreachable": -3.0}),
    case_of("content_positions", {"must_be_flagged": False}, ids_trained=[1, 5], ids_served=[1, 5], bos_id=1),
], ids=lambda case: case["call"]["mechanism"])
def test_unseen_cases_pass(case):
    assert run_case(case)[:2] == ("pass", "")


@pytest.mark.parametrize(("case", "status", "reason"), [
    (case_of("rotary", [1.0]), "not covered", "no library call is known for rotary"),
    (case_of("alibi_slopes", [2.0**-8], heads=1, temperature=2), "not covered", "the field temperature is not understood"),
    (case_of("alibi_slopes", [2.0**-8]), "not covered", "the call has no field heads"),
    (case_of("alibi_slopes", [2.0**-8], "about", heads=1), "not covered", "the tolerance 'about' is not understood"),
    (case_of("pack", {"positions": [0], "order": [0]}, lengths=[1], coordinate_rule="reset_per_segment"), "not covered", "the expectation order is not understood"),
    (case_of("pack", {}, lengths=[1], coordinate_rule="alphabetical"), "not covered", "coordinate_rule 'alphabetical' is not understood"),
    (case_of("learned_absolute_lookup", {"1": "perhaps"}, table_rows=1, positions=[[1]]), "not covered", "the refusal 'perhaps' is not understood"),
    (case_of("learned_absolute_lookup", {"1": "error naming 7 rows"}, table_rows=1, positions=[[1]]), "FAIL", "1: the refusal does not name 7: position = 1"),
    (case_of("learned_absolute_lookup", {"0": "error"}, table_rows=1, positions=[[0]]), "FAIL", "0: 'error', but it was accepted"),
    (case_of("learned_absolute_add", {"second_application": "is doubled"}, x=[[0.0]], table=[[1.0]], applications_requested=2), "not covered",
     "the refusal 'is doubled' is not understood"),
    (case_of("sinusoidal", [[0.0]], positions=[0], d_model=3, layout="interleaved"), "FAIL", "the library refused: d_model = 3"),
    (case_of("t5_bias", {"either": [[[[1.0]]]]}, stack="cross", heads=1, query_positions=[0], key_positions=[0]), "FAIL", "refused, which is not listed"),
    (case_of("alibi_slopes", [0.5], heads=1), "FAIL", "value: error 0.496 at entry 0: 0.00390625 for 0.5"),
    # 2^-8 is within the tolerance of both, but only the wrong value is beyond that of the right one.
    (case_of("alibi_slopes", [0.0], {"abs": 0.01}, [0.0125], heads=1), "FAIL", "the library returns the reported wrong value [0.0125]"),
])
def test_what_is_not_understood_or_wrong_is_said(case, status, reason):
    found = run_case(case)
    assert found[0] == status and found[1].startswith(reason), found


@pytest.mark.parametrize("text", ["[", "{}", "[]", "[1]", '[{"id": 1, "expected": 0}]', '[{"id": 1, "expected": 0, "call": {}}]'])
def test_a_corrupt_file_is_refused(tmp_path, text):
    (tmp_path / "cases.json").write_text(text)
    with pytest.raises(CorruptFile, match="cases.json"):
        read(tmp_path / "cases.json")


def test_the_command_exits_with_0_1_or_2(tmp_path):
    file = tmp_path / "cases.json"
    answers = []
    for content in ([BY_ID["O29"]], [BY_ID["O29"], {**BY_ID["O29"], "expected": [1.0, 0.25, 0.0625, 0.015625]}], {}):
        file.write_text(json.dumps(content))
        answers.append(subprocess.run([sys.executable, "-m", "tests.cases", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=120))
    assert [a.returncode for a in answers] == [0, 1, 2]
    assert answers[0].stdout == "alibi_slopes/O29 pass\n1 cases: 1 pass, 0 FAIL, 0 not covered\n"
    assert answers[1].stdout.splitlines()[-1] == "2 cases: 1 pass, 1 FAIL, 0 not covered"
    assert "expected a list of cases" in answers[2].stderr


@pytest.mark.parametrize(("stored", "got", "near"), [
    ([1, 2], [1, 2], True), ([1, 2], [True, 2], True), ([[1], [2, 3]], [[1, 2], [3]], False), ([1.0], [float("nan")], False), (None, 0, False),
    ([None], [None], True), ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False), ([1.0], [1.0 + 1e-9], True), ([1.0], [1.1], False), (1, [1], False)])
def test_nested_values_are_compared_by_shape_and_entry(stored, got, near):
    assert (distance(stored, got, 1e-6, 0.0) is None) is near
