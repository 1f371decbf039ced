"""Every number of the rotation dial equals complex arithmetic made here, and every caption is true of its state."""

import random

import numpy as np
import pytest

from positionlib import widgets
from positionlib.widgets.panels import Badges, Lines, Matrices

TURNS = (1j, -1)  # a quarter turn and a half turn a position
Q, K = (1, 0, 1, 0), (2, 1, 1, 0)


@pytest.fixture(scope="module")
def explorer():
    return widgets.rotation_dial()


def _turned(row, t, halves=False):
    pairs = ((0, 2), (1, 3)) if halves else ((0, 1), (2, 3))
    out = [0] * 4
    for (a, b), turn in zip(pairs, TURNS):
        z = complex(row[a], row[b]) * turn**t
        out[a], out[b] = round(z.real), round(z.imag)
    return out


def _rows(i, j, sides):
    halves = sides == "halves"
    return _turned(Q, i, halves), list(K) if sides == "query" else _turned(K, j, halves)


def _score(i, j, sides):
    return int(np.dot(*_rows(i, j, sides)))


def _sample(explorer):
    return random.Random(13).sample(explorer.choices(), 20)


def test_every_number_is_the_arithmetic(explorer):
    assert len(explorer.choices()) == 48
    for c in _sample(explorer):
        i, j, sides = c["i"], c["j"], c["sides"]
        panels = explorer.state(**c)
        q, k = next(p for p in panels if isinstance(p, Matrices)).items
        assert q.values[:, 0].tolist() == _rows(i, j, sides)[0] and k.values[:, 0].tolist() == _rows(i, j, sides)[1]
        line = next(p for p in panels if isinstance(p, Lines))
        scores = [_score(i + step, j + step, sides) for step in range(9)]
        assert line.series[0].values.tolist() == scores and line.x.tolist() == list(range(9))
        badge = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
        assert badge == {"score": scores[0], "trained score": _score(i, j, "both"), "stays when both grow": "yes" if len(set(scores)) == 1 else "no"}


def test_captions_are_true(explorer):
    for c in explorer.choices():
        i, j, sides = c["i"], c["j"], c["sides"]
        said, scores = explorer.caption_of(**c).replace("−", "-"), [_score(i + s, j + s, sides) for s in range(9)]
        assert said.startswith(f"The score is {scores[0]} (")
        assert ("as trained" in said) == (scores[0] == _score(i, j, "both"))
        assert ("the same for every pair" in said) == (len(set(scores)) == 1)
        if sides != "query":
            assert said.endswith(f"key minus query = {j - i:+d}." if i != j else "key minus query = 0.")
        else:
            assert ", ".join(map(str, sorted(set(scores)))) in said


def test_state_at_rest_and_what_the_other_sides_show(explorer):
    assert explorer.choice == {"i": 3, "j": 1, "sides": "both"}
    assert explorer.caption_of() == "The score is −1 (as trained); it is the same for every pair with key minus query = −2."
    assert all(_score(t, t, "halves") == _score(t, t, "both") for t in range(4)), "equal positions do not tell the pairings apart"
    assert explorer.size < 60_000
