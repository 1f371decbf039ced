"""The verdicts of the speed table from given numbers, at and beside each bar, and what a receipt may not say."""

import copy
import json
from pathlib import Path

import pytest

from positionlib import PositionContractError
from positionlib.bench import cpu
from positionlib.bench.pairs import PAIRS
from positionlib.bench.verdict import blocks, check_receipt, medians, settled, speedup, verdicts

RECEIPTS = sorted((Path(__file__).resolve().parents[2] / "book" / "receipts").glob("cpu-*.json"))


def seconds(ours: list[float], peer: list[float]) -> dict[str, list[float]]:
    return {"ours": ours, "peer": peer}


def pair(**changes) -> dict:
    """Twice as fast both ways in two blocks, a tenth of the memory, agreeing to 1e-6."""
    twice = seconds([0.1, 0.2, 0.3, 0.2, 0.2] * 2, [0.2, 0.9, 0.5, 0.4, 0.4] * 2)
    measured = {"name": "t5-eager", "mechanism": "T5", "peer": "HF T5 attention, eager", "transformers": "5.24.0",
                "bars": {"forward": 2.0, "forward + backward": 1.5, "peak memory": 0.1},
                "agreement": {"output": {"error": 1e-6, "largest": 1.0}, "input_gradient": {"error": 1e-6, "largest": 2.0}},
                "seconds": {"forward": twice, "forward + backward": twice},
                "peak_bytes": {"forward": {"ours": 10, "peer": 100}, "forward + backward": {"ours": 70, "peer": 100}}} | changes
    return {**measured, "verdicts": [vars(verdict) for verdict in verdicts(measured)]}


def receipt(*pairs: dict) -> dict:
    return {"date": "2026-01-01", "device": {}, "versions": {}, "call": {}, "pairs": list(pairs)}


def test_a_speed_up_is_the_quotient_of_the_minima():
    given = seconds([0.3, 0.1, 0.5], [0.9, 0.4, 0.8])
    assert speedup(given) == pytest.approx(4.0) and medians(given) == pytest.approx(0.8 / 0.3)


def test_every_bar_is_met_by_equality_and_missed_by_less():
    told = {verdict.what: verdict for verdict in verdicts(pair())}
    assert {what: (verdict.value, verdict.holds, verdict.settled) for what, verdict in told.items()} == {
        "agreement": (1e-6, True, True), "forward": (2.0, True, True), "forward + backward": (2.0, True, True), "peak memory": (0.1, True, True)}
    bars = {"forward": 2.01, "forward + backward": 2.01, "peak memory": 0.099}
    missed = verdicts(pair(bars=bars))
    assert [verdict.holds for verdict in missed] == [True, False, False, False] and [verdict.bar for verdict in missed[1:]] == list(bars.values())


def test_memory_is_judged_by_the_forward_pass():
    peak = {"forward": {"ours": 11, "peer": 100}, "forward + backward": {"ours": 1, "peer": 100}}
    assert [verdict.holds for verdict in verdicts(pair(peak_bytes=peak))] == [True, True, True, False]


def test_without_agreement_nothing_else_is_said():
    apart = {"output": {"error": 1e-6, "largest": 1.0}, "input_gradient": {"error": 3e-4, "largest": 2.0}}
    (only,) = verdicts(pair(agreement=apart))
    assert only.what == "agreement" and only.value == pytest.approx(1.5e-4) and not only.holds


def test_a_verdict_is_settled_when_every_block_alone_gives_it():
    fast, slow = [0.1] * 5, [0.3] * 5
    assert not settled(seconds(fast, [0.2] * 5), 2.0), "one block is no repeat"
    assert settled(seconds(fast * 2, [0.2] * 10), 2.0) and settled(seconds(slow * 2, [0.2] * 10), 2.0)
    mixed = seconds(fast + slow, [0.2] * 10)
    assert [speedup(block) for block in blocks(mixed)] == pytest.approx([2.0, 0.2 / 0.3])
    assert not settled(mixed, 1.9) and settled(mixed, 0.5)


def test_the_printed_cells():
    said = cpu.lines(pair(bars={"forward": 2.5, "forward + backward": 1.5, "peak memory": 0.1}))
    assert said[0] == "T5, against HF T5 attention, eager (transformers 5.24.0)"
    assert " ".join(said[2].split()) == "forward 2.00× bar ≥ 2.5× FAIL ours min 100 median 200 ms peer min 200 median 400 ms 10 rounds medians 2.00×"
    assert "1/10.0  bar ≤ 1/10   pass" in said[4] and "1.0e-06  bar ≤ 1e-04" in said[1]
    restless = seconds([0.1] * 5 + [0.3] * 5, [0.2] * 10)
    assert "pass (blocks disagree)" in cpu.lines(pair(seconds={"forward": restless, "forward + backward": restless}))[2]


def test_the_bars_are_those_asked_for():
    assert {name: (p.forward, p.both, round(1 / p.memory)) for name, p in PAIRS.items()} == {
        "t5-eager": (4.5, 1.5, 10), "t5-sdpa": (3.0, 1.5, 10), "alibi": (2.2, 1.3, 10), "deberta": (3.0, 1.4, 5), "shaw": (3.5, 8.0, 4),
        "xl-eager": (1.8, 1.6, 2), "xl-sdpa": (1.8, 1.6, 2)}


def test_committed_receipts_are_whole_and_say_what_their_numbers_give():
    for path in RECEIPTS:
        written = json.loads(path.read_text("utf-8"))
        check_receipt(written)
        assert path.stem == f"cpu-{written['date']}" and [p["name"] for p in written["pairs"]] == list(PAIRS)
        assert written["call"] == {"batch": 1, "heads": 8, "length": 2048, "d_head": 64, "dtype": "float32"} and written["device"]["threads"] == 2


def changed(path: list, value) -> dict:
    """A good receipt with one place changed; None removes it."""
    whole = copy.deepcopy(receipt(pair()))
    place = whole
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


@pytest.mark.parametrize("path, value, says", [
    (["pairs", 0, "seconds"], None, "the field seconds"), (["pairs", 0, "peak_bytes"], None, "the field peak_bytes"),
    (["device"], None, "the field device"), (["pairs", 0, "peer"], None, "the field peer"), (["pairs", 0, "verdicts"], None, "the field verdicts"),
    (["pairs", 0, "verdicts", 1, "holds"], False, "computed, not written"), (["pairs", 0, "verdicts", 1, "value"], 9.9, "computed, not written"),
    (["pairs", 0, "verdicts"], [], "computed, not written"), (["pairs", 0, "bars", "forward"], 9.0, "computed, not written"),
    (["pairs", 0, "seconds", "forward", "ours"], [], "above 0"), (["pairs", 0, "seconds", "forward", "peer", 0], -0.1, "above 0"),
    (["pairs", 0, "peak_bytes", "forward", "peer"], 0, "above 0"), (["pairs", 0, "agreement", "output", "largest"], 0.0, "above 0"),
])
def test_a_receipt_that_does_not_hold_together_is_refused(path, value, says):
    check_receipt(receipt(pair()))
    with pytest.raises(PositionContractError, match=says):
        check_receipt(changed(path, value))
