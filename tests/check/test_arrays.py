"""Every kind of fault that a call can carry is found, by its own name, and nothing is said about clean calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from positionlib.check import REMEDIES, check_arrays, check_calls
from positionlib.check.families import FAMILIES
from tests.check.calls import FAULTS, LEFT, clean
from tests.refusals import refused

CLEAN = list(clean())


def run(family, calls):
    return check_arrays(calls[0], family) if len(calls) == 1 else check_calls(calls, family)


def test_hits_and_false_alarms(capsys):
    """The table: each injected fault with what was found, and the findings on clean calls."""
    hits = [(code, source, family, [f.code for f in run(family, calls).findings]) for code, source, family, calls in FAULTS]
    alarms = [(name, family, [f.code for f in report.findings]) for name, family, calls in CLEAN if (report := run(family, calls)).findings]
    found = sum(code in got for code, _, _, got in hits)
    with capsys.disabled():
        print("\ncode               family        from                              found")
        for code, source, family, got in hits:
            print(f"{code:18} {family:13} {source:33} {', '.join(got) or '-'}")
        print(f"{found} of {len(hits)} faults of {len({h[0] for h in hits})} kinds found; {len(alarms)} false alarms in {len(CLEAN)} clean calls")
    assert [h for h in hits if h[0] not in h[3]] == [] and alarms == []


@pytest.mark.parametrize(("code", "source", "family", "calls"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_a_fault_is_named_and_nothing_else_is(code, source, family, calls):
    assert {f.code for f in run(family, calls).findings} == {code}


def test_the_table_covers_every_code_that_arrays_can_give():
    of_manifests = {"contract", "causality", "method", "bucket-direction", "relation-sign"}
    assert {f[0] for f in FAULTS} == {code for code in REMEDIES if not code.startswith("probe-")} - of_manifests


def test_a_finding_says_which_row_by_how_much_and_what_to_do():
    found, = check_arrays({"attention_mask": LEFT, "position_ids": [0, 1, 2, 3, 4]}, "gpt2").findings
    assert (found.row, found.field) == (1, "position_ids")
    assert found.message == "row 1 is left-padded but its positions count pads: the prompt is shifted by 3" and "compress_active" in found.remedy


def test_the_numbers_in_messages():
    says = {code: run(family, calls).findings[0].message for code, _, family, calls in FAULTS}  # the last of each code
    assert says["cursor-twice"] == "call 1: row 0 decodes at position 8: the committed length is added twice, and 4 is due"
    assert says["range"] == "row 0 reaches table row 7, and the table has 7" and says["rounded"].endswith("2049 became 2048")
    assert says["pads-between"] == "row 0 counts the 1 pad before column 3: its position jumps from 1 to 3"
    assert says["future-visible"] == "row 0 lets query 2 read column 3, which comes later"
    assert says["triangle-top-left"] == "row 0 aligns its triangle to the first key: its first query reads 1 of 5 keys"
    assert says["lengths"] == "row 0 has 3 tokens by its mask and 4 by its length"
    assert says["boundaries"] == "cu_seqlens begins at 0, falls between and ends at 4, and the packed row has 4 tokens"


def test_the_explanation_says_where_tokens_stand():
    told = check_arrays({"attention_mask": LEFT}, "gpt2").explanation
    assert told == ("gpt2: learned_abs, causal; reads position_ids; without them it counts columns, padding included",
                    "row 0: tokens in columns 0..4, no padding; ids 0..4",
                    "row 1: tokens in columns 3..4, 3 pads on the left; ids 3..4, without padding 0..1")
    told = check_calls([{"input_ids": [[1, 2, 3]]}, {"input_ids": [[4]]}], "opt").explanation
    assert told[-1] == "call 1: row 0: tokens in columns 3 after 3 cached ones, no padding; ids 3"
    assert len(check_arrays({"attention_mask": [[1]] * 40}, "bert").explanation) == 18


@pytest.mark.parametrize("name", FAMILIES)
def test_numbering_alike_with_and_without_padding_is_what_the_families_need(name):
    """The ids due to a padded row are the model's own ids of the same row without padding, whatever the family."""
    family = FAMILIES[name]
    whole = torch.ones(1, 4, dtype=torch.bool)
    for mask in ([[0, 0, 1, 1, 1, 1]], [[1, 1, 1, 1, 0]], [[1, 0, 1, 1, 1]]):
        active = torch.tensor(mask).bool()
        assert family.ids(active, 0)[active].tolist() == family.own_ids(whole, 0)[0].tolist()


CASES = {case["id"]: case for case in json.loads((Path(__file__).resolve().parents[1] / "fixtures" / "open_cases.json").read_text("utf-8"))}


def report(case: str, part: str = "call") -> dict:
    return CASES[case][part]


def test_the_values_of_public_reports_are_told_apart():
    """What the reports call wrong is found, what they call right is clean."""
    mask, (_, right) = report("O01")["attention_mask"], report("O01", "expected")["positions_of_active_rows"]
    for row, code in ((report("O01", "wrong_value")[0], ["left-pad-counted"]), (report("O01", "expected")["positions_of_active_rows"][0], [])):
        found = check_arrays({"attention_mask": mask, "position_ids": [[0, 0, *row], right]}, "gpt2").findings
        assert [f.code for f in found] == code
    mask, step = report("O02")["prefill_attention_mask"], {"gpt2": [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4]], "llama": [[7, 7, 7, 0, 1], [0, 1, 2, 3, 4]]}
    for name, ids in step.items():
        for new, code in ((report("O02", "wrong_value"), ["decode-counts-pads"]), (report("O02", "expected")["query_positions"], [])):
            assert [f.code for f in check_calls([{"attention_mask": mask, "position_ids": ids}, {"position_ids": new}], name).findings] == code
    ids = report("O04", "expected")["positions"]
    assert check_arrays({"input_ids": report("O04")["input_ids"], "position_ids": ids, "pad_token_id": 1, "bos_token_id": 0,
                         "attention_mask": [[int(i != 1) for i in row] for row in report("O04")["input_ids"]]}, "roberta").findings == ()
    segments, positions = report("O10")["segment_ids"], report("O10")["positions"]
    assert check_arrays({"segment_ids": [segments], "position_ids": [positions]}, "gpt2").findings == ()
    assert [f.code for f in check_arrays({"position_ids": [positions]}, "llama").findings] == ["restarts"]
    for case, message in (("O17", "call 2: row 0 decodes at position 18 where 10 is due"),
                          ("O79", "call 1: row 0 decodes at position 18: the committed length is added twice, and 14 is due")):
        for starts, told in ((report(case, "wrong_value"), [message]), (report(case, "expected")["query_start_of_each_call"], [])):
            calls = [{"position_ids": [list(range(a, a + n))]} for a, n in zip(starts, report(case)["append_lengths"])]
            assert [f.message for f in check_calls(calls, "llama").findings][:1] == told


@st.composite
def fed(draw):
    """A family, a padded prefill and some steps after it, numbered as the family needs."""
    family = draw(st.sampled_from(list(FAMILIES.values())))
    lengths, left = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)), draw(st.booleans()) or family.coordinate == "columns"
    column = torch.arange(max(lengths))
    active = torch.stack([column >= max(lengths) - n if left else column < n for n in lengths])
    calls, past = [], 0
    for width in (0, *draw(st.lists(st.integers(1, 3), max_size=3 if family.causal else 0))):
        active = torch.cat((active, torch.ones(len(lengths), width, dtype=torch.bool)), 1)
        ids = {"position_ids": family.ids(active, past)} if family.coordinate == "position_ids" else {}
        calls.append({"attention_mask": active.long(), **ids})
        past = active.shape[1]
    return family, calls


@given(fed())
def test_right_numbering_is_never_blamed(case):
    family, calls = case
    assert check_calls(calls, family.name).findings == ()


@given(fed(), st.data())
def test_no_wrong_position_of_an_absolute_family_goes_unseen(case, data):
    family, calls = case
    if not family.absolute:
        return
    call = data.draw(st.integers(0, len(calls) - 1))
    ids = calls[call]["position_ids"].clone()
    tokens = calls[call]["attention_mask"][:, -ids.shape[1]:].bool().nonzero().tolist()
    row, column = data.draw(st.sampled_from(tokens))
    ids[row, column] += data.draw(st.integers(-6, 6).filter(bool))
    calls[call] = calls[call] | {"position_ids": ids}
    found = check_calls(calls, family.name).findings
    assert found and found[0].row == row and found[0].field == f"calls.{call}.position_ids"


@pytest.mark.parametrize(("fields", "field"), [
    ({}, "input_ids"), ({"inputs": [[1]]}, "fields"), ({"input_ids": [[1, 2], [3]]}, "input_ids"), ({"input_ids": [[1.0, 2.0]]}, "input_ids"),
    ({"input_ids": [[1]], "position_ids": [[0.5]]}, "position_ids"), ({"input_ids": [[1, 2]], "attention_mask": [[0.0, -1e9]]}, "attention_mask"),
    ({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]}, "mask"), ({"input_ids": [[1, 2]], "attention_mask": [[1, 1, 1]]}, "attention_mask"),
    ({"input_ids": [[1, 2]], "position_ids": [[1, 2, 3]]}, "position_ids"), ({"input_ids": [[1, 2]], "cache_length": -1}, "cache_length"),
    ({"input_ids": [[1, 2]], "cache_length": True}, "cache_length"), ({"input_ids": [[1, 2]], "lengths": [2, 2]}, "lengths"),
    ({"input_ids": [[1, 2]], "lengths": [1]}, "attention_mask"), ({"input_ids": []}, "input_ids"), ({"input_ids": [[[1]]]}, "input_ids"),
    ({"input_ids": [[2**62 + 1]]}, "input_ids"), ({"input_ids": [[-(2**62), 2**62]]}, "input_ids"), ({"input_ids": [[2**64]]}, "input_ids"), ({"input_ids": "text"}, "input_ids"),
    ({"input_ids": [[1, 2]], "segment_ids": [[0, 1]], "cu_seqlens": [0, 1, 2]}, "cu_seqlens"), ({"input_ids": [[1], [2]], "cu_seqlens": [0, 1]}, "cu_seqlens"),
    ({"input_ids": [[1, 2]], "segment_ids": [[0, 1]], "cache_length": 2}, "cache_length"), ({"input_ids": [[1, 2]], "pair_mask": [[1, 0]]}, "pair_mask"),
    ({"input_ids": [[1, 2]], "pair_mask": [[0.0, -9.0], [0.0, 0.0]]}, "pair_mask"), ({"attention_mask": [[1, 1]], "cache_length": 2}, "attention_mask"),
    ({"input_ids": [[1, 2]], "cache_positions": [[0, 1]], "cache_length": 3}, "cache_positions"),
])
def test_arrays_that_are_no_call_are_refused(fields, field):
    refused(lambda: check_arrays(fields, "gpt2"), field)


def test_an_unknown_family_and_calls_that_do_not_follow_are_refused():
    refused(lambda: check_arrays({"input_ids": [[1]]}, "gpt9"), "family")
    refused(lambda: check_calls([], "gpt2"), "calls")
    refused(lambda: check_calls([1], "gpt2"), "calls")
    refused(lambda: check_calls([{"input_ids": [[1]]}, {"input_ids": [[1], [2]]}], "gpt2"), "calls.1.cache_positions")
    refused(lambda: check_calls([{"input_ids": [[1]]}, {"input_ids": [[1.5]]}], "gpt2"), "calls.1.input_ids")
    refused(lambda: check_calls([{"input_ids": [[1, 2]], "cu_seqlens": [0, 1, 2]}, {"input_ids": [[1]]}], "gpt2"), "calls.1.segment_ids")


def test_calls_may_begin_with_a_cache_of_which_nothing_is_known():
    calls = [{"input_ids": [[1]], "cache_length": 4}, {"input_ids": [[2]], "cache_length": None}, {"position_ids": [[0]]}]
    assert [f.message for f in check_calls(calls, "gpt2").findings] == ["call 2: row 0 restarts at position 0 although 6 tokens are cached: 6 is due"]
