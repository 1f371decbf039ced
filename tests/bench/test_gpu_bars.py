"""The arithmetic of the GPU's table, its bars, its plan, and what a receipt may not say; no device is needed for any of it."""

import copy
import json

import pytest

from positionlib import PositionContractError
from positionlib.bench import gpu_bars, gpu_page, gpu_time
from positionlib.bench.gpu_bars import cells, check_gpu_receipt, memory_verdicts, verdict
from positionlib.bench.gpu_cases import MECHANISMS

FLOOR = {"forward": 0.5, "backward": 1.0}


def row(**changes) -> dict:
    """Ours takes 1 ms and 4 ms; flash 0.9 and 3.2; flex 1.2 and 4."""
    measured = {"mechanism": "alibi", "length": 8192, "width": 128, "causal": True, "judged": True, "extra_bytes": 5, "floor": FLOOR, "seconds": {
        "ours forward": [1.0, 9.0, 0.5, 1.0], "ours backward": [4.0], "flash forward": [0.9], "flash backward": [3.2],
        "flex forward": [1.2], "flex backward": [4.0], "bias in memory forward": [5.0], "bias in memory backward": []}} | changes
    return measured | {"cells": cells(measured, MECHANISMS["alibi"].bars, measured["floor"])}


def receipt(*rows: dict) -> dict:
    return {"date": "2026-01-01", "device": {"name": "NVIDIA H200"}, "versions": {"torch": "2"}, "time": {"attention": list(rows)}}


def test_a_row_says_medians_ratios_shares_and_verdicts():
    told = row()["cells"]
    assert told["forward"]["median"] == 1.0 and told["forward"]["share of floor"] == 0.5 and told["backward"]["share of floor"] == 0.25
    assert told["forward"]["ratios"] == {"flash": pytest.approx(1 / 0.9), "flex": pytest.approx(1 / 1.2), "bias in memory": 0.2}
    assert told["backward"]["ratios"] == {"flash": pytest.approx(1.25), "flex": 1.0}, "what was not measured has no ratio"
    assert (told["forward"]["bar"], told["backward"]["bar"]) == ("pass", "pass"), "1.11 of at most 1.15, and 1.25 of at most 1.3"
    assert (told["forward"]["flex bar"], told["backward"]["flex bar"]) == ("pass", "FAIL"), "1.2 and 1.0 of at least 1.1"


@pytest.mark.parametrize("changes, bar, flex", [
    ({"seconds": {"ours forward": [1.15], "flash forward": [1.0], "flex forward": [1.265]}}, "pass", "pass"),
    ({"seconds": {"ours forward": [1.151], "flash forward": [1.0], "flex forward": [1.26]}}, "FAIL", "FAIL"),
    ({"seconds": {"ours forward": [1.0]}}, "", ""), ({"judged": False}, "", ""),
])
def test_a_bar_is_met_by_equality_missed_by_more_and_silent_elsewhere(changes, bar, flex):
    told = row(**changes)["cells"]["forward"]
    assert (told["bar"], told["flex bar"]) == (bar, flex)


def test_a_mechanism_without_a_bar_is_measured_without_a_verdict():
    assert cells(row(), None, FLOOR)["forward"]["bar"] == ""


def test_the_bars_are_those_asked_for():
    """The issue's table: ALiBi, T5, NoPE, rotary; Shaw with k ≤ 64 and TUPE; DeBERTa with R = 512 and Transformer-XL."""
    asked = {(1.15, 1.3): {"nope", "rotary", "alibi", "t5"}, (1.6, 2.0): {"shaw", "tupe_a", "tupe_r"}, (2.2, 3.0): {"deberta", "transformer_xl"}}
    for bars, names in asked.items():
        assert {MECHANISMS[name].bars for name in names} == {bars}
    assert (gpu_bars.FLEX, gpu_bars.BANDWIDTH, gpu_bars.AT, gpu_time.HEADS, gpu_bars.DEVICE) == (1.1, 0.8, {"length": 8192, "width": 128}, 16, "H200")


def test_memory_that_doubles_with_the_length_passes_and_that_grows_as_its_square_does_not():
    assert memory_verdicts({1024: 10, 2048: 20, 4096: 41, 16384: 900}) == {2048: "pass", 4096: "pass"}
    assert memory_verdicts({1024: 10, 2048: 40, 4096: 160}) == {2048: "FAIL", 4096: "FAIL"}
    assert verdict(0.8, 0.8, most=False) == "pass" and verdict(0.79, 0.8, most=False) == "FAIL"


def test_the_plan_begins_with_the_rows_that_have_bars():
    names = [case.name for case in gpu_time.plan()]
    assert names[: len(MECHANISMS)] == [f"{name} N=8192 D=128" for name in MECHANISMS] and len(set(names)) == len(names)
    assert {case.length for case in gpu_time.plan()} == {1024, 2048, 4096, 8192, 16384} and {case.width for case in gpu_time.plan()} == {64, 128}
    assert all(MECHANISMS[name].bars or name == "graph" for name in gpu_time.EVERY_LENGTH)


class Clock:
    """Runs that take what they are told to."""

    def __init__(self, *seconds: float) -> None:
        self.left, self.runs = list(seconds), 0

    def seconds(self, call) -> float:
        call()
        return self.left.pop(0)


def test_a_case_is_repeated_for_its_time_but_at_least_three_times(monkeypatch):
    calls = []
    assert gpu_time.timed(lambda: calls.append(1), Clock(0.5, 0.5, 0.5, 0.5)) == [0.5] * 3 and len(calls) == 6, "three runs warm up"
    assert gpu_time.timed(lambda: None, Clock(*[0.02] * 9)) == [0.02] * 3
    assert gpu_time.timed(lambda: None, Clock(*[1e-6] * 40)) == [1e-6] * gpu_time.REPEATS


def changed(path: list, value) -> dict:
    """A good receipt with one place changed; None removes it."""
    whole = copy.deepcopy(receipt(row()))
    place = whole
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


ROW = ["time", "attention", 0]


@pytest.mark.parametrize("path, value, says", [
    (["date"], None, "the field date"), (["device"], None, "the field device"), (["versions"], None, "the field versions"), (["time"], None, "a part"),
    ([*ROW, "mechanism"], "abili", "one of content"), ([*ROW, "seconds"], {}, "seconds above 0"), ([*ROW, "seconds", "ours forward"], [0.0], "seconds above 0"),
    ([*ROW, "cells", "backward", "flex bar"], "pass", "computed, not written"), ([*ROW, "cells", "forward", "median"], 0.5, "computed, not written"),
    ([*ROW, "floor", "forward"], 0.4, "computed, not written"), ([*ROW, "judged"], False, "computed, not written"),
])
def test_a_receipt_that_does_not_hold_together_is_refused(path, value, says):
    check_gpu_receipt(receipt(row()), MECHANISMS)
    with pytest.raises(PositionContractError, match=says):
        check_gpu_receipt(changed(path, value), MECHANISMS)


def test_committed_receipts_say_what_their_numbers_give():
    for path in gpu_page.RECEIPTS.glob("gpu-*.json"):
        written = json.loads(path.read_text("utf-8"))
        check_gpu_receipt(written, MECHANISMS)
        assert path.stem.startswith(f"gpu-{written['date']}-")


def test_the_page_shows_the_newest_receipt_or_says_that_nothing_was_measured(tmp_path):
    page = gpu_page.gpu_page(tmp_path)
    assert page.startswith("No receipt: not measured yet.") and page.count(" not measured yet |") == 3 * len(MECHANISMS)
    assert "| alibi | not measured yet | ≤ 1.15× | not measured yet | ≤ 1.3× | not measured yet |" in page
    assert "| graph | not measured yet | – | not measured yet | – | not measured yet |" in page
    (tmp_path / "gpu-2025-12-31-x.json").write_text("{}")
    rows = [{"name": f"alibi {d} padded", "status": s} for d, s in (("bf16", "passed"), ("fp16", "passed"), ("fp32", "FAILED"))]
    found = receipt(row(), row(width=64)) | {"correct": {"rows": rows}}
    (tmp_path / "gpu-2026-01-01-nvidia-h200.json").write_text(json.dumps(found))
    page = gpu_page.gpu_page(tmp_path)
    assert page.startswith("NVIDIA H200, 2026-01-01, torch 2")
    assert "| alibi | 2 passed, 1 FAILED | ≤ 1.15× | 1000.00 ms, 1.11× pass | ≤ 1.3× | 4000.00 ms, 1.25× pass |" in page
