"""The failure explorer shows what the lab's cases return and what their guards say; differences are found here once more, with numpy."""

import random

import numpy as np
import pytest
import torch

from positionlib import lab, widgets
from positionlib.lab.article import lines
from positionlib.widgets.failures import entries
from positionlib.widgets.panels import Badges, Table, Text


@pytest.fixture(scope="module")
def explorer():
    return widgets.failure_explorer()


def _line(choice):
    return next(line for line in lines() if f"{line.group}: {line.name}" == choice["failure"])


def _read(explorer, choice):
    panels = explorer.state(**choice)
    badge = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
    return next(p for p in panels if isinstance(p, Table)), badge, [p.text for p in panels if isinstance(p, Text)]


def _tensor(value):
    return value.detach().double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, dtype=float)


def test_twenty_states_are_what_the_cases_return(explorer):
    assert len(explorer.choices()) == 102
    for choice in random.Random(12).sample(explorer.choices(), 20):
        line = _line(choice)
        case = lab.get(line.cases[0])
        table, badge, texts = _read(explorer, choice)
        assert texts[0] == line.wrong and badge["kind"] == case.kind.replace("_", " ")
        assert badge["guard"] == ("refuses" if choice["side"] == "broken" else "accepts")
        subject = case.broken_subject or case.broken
        with pytest.raises(Exception) as refusal:
            case.guard(subject())
        assert texts[1] == f"Guard {case.guard_name}: {refusal.value if choice['side'] == 'broken' else 'accepted, without a word'}"
        if case.kind == "wrong_answer":
            broken, right = case.broken(), case.right()
            assert badge["shape"] == "the same"
            if isinstance(broken, (torch.Tensor, list)):
                gap = abs(_tensor(broken) - _tensor(right))
                if np.isfinite(gap).all():
                    assert float(badge["answer"].removeprefix("off by ")) == pytest.approx(gap.max(), rel=1e-3)
                    assert len(table.rows) == min(6, int((gap > 0).sum()))
                    for entry, a, b in table.rows:
                        at = tuple(int(i) for i in entry.strip("[]").split(",")) if entry != "value" else ()
                        assert float(a) == pytest.approx(_tensor(broken)[at], rel=1e-3, abs=1e-8) and float(b) == pytest.approx(_tensor(right)[at], rel=1e-3, abs=1e-8)


def test_at_rest_it_is_the_hand_case(explorer):
    assert explorer.choice == {"failure": "media: chunks that forget the text", "side": "broken"}
    table, badge, texts = _read(explorer, explorer.choice)
    assert [list(row) for row in table.rows] == [["[0]", "0.1667", "0.06667"], ["[1]", "0.3333", "0.1333"], ["[2]", "0.1667", "0.2667"], ["[3]", "0.3333", "0.5333"]]
    assert badge == {"kind": "wrong answer", "shape": "the same", "answer": "off by 0.2", "guard": "refuses"}
    assert "expected 2, because the cache holds 2 committed positions" in texts[1]


def test_captions_and_badges_are_true_of_every_state(explorer):
    said = {"wrong_answer": "have one shape", "late_error": "raises in use", "false_claim": "has no shape", "excess_cost": "answers are equal"}
    for choice in explorer.choices():
        case, caption = lab.get(_line(choice).cases[0]), explorer.caption_of(**choice)
        assert case.title in caption and case.id in caption
        assert [kind for kind, words in said.items() if words in caption] == [case.kind]
        assert ("names what is wrong" in caption) == (choice["side"] == "broken")
        _, badge, _ = _read(explorer, choice)
        assert (badge["shape"] == "the same") == (case.kind in ("wrong_answer", "excess_cost"))


def test_the_entries_that_differ_most_are_listed_in_their_own_order():
    rows = entries({"a": np.array([1.0, np.nan, 3.0, np.nan]), "b": "x"}, {"a": np.array([1.5, 2.0, 3.0, np.nan]), "b": "y"})
    assert rows == [(".a[0]", "1", "1.5"), (".a[1]", "nan", "2"), (".b", "x", "y")]
    assert [entry for entry, _, _ in entries(torch.arange(9.0), torch.zeros(9))] == ["[3]", "[4]", "[5]", "[6]", "[7]", "[8]"]


def test_size(explorer):
    assert explorer.size < 120_000
