"""The route tracer: every number equals arithmetic made here, in whole numbers and fractions, without the library's attention."""
import itertools
from fractions import Fraction

import numpy as np
import pytest

from positionlib.errors import PositionContractError
from positionlib.widgets.panels import Badges, Matrices
from positionlib.widgets.routes import ROUTES, route_tracer

ROWS = {"beats": [(1, 0), (0, 0), (1, 0), (1, 1)], "equal": [(1, 0)] * 4}
CLOCK = [(0, 1), (1, 0), (0, -1), (-1, 0)]
LEARNED = [(1, 0), (0, 1), (0, 0), (-1, -1), (1, 1)]
CHOICES = list(itertools.product(ROUTES, ("content", "origin"), ("beats", "equal")))  # 20: all of them


@pytest.fixture(scope="module")
def tracer():
    return route_tracer()


def turn(row, quarters):
    for _ in range(quarters % 4):
        row = (-row[1], row[0])
    return row


def exact(route, start, rows):
    """Every tensor of a run; the scores are in units of ln 2, so a weight is a power of two over the row's sum."""
    content, t = ROWS[rows], range(start, start + 4)
    added = {"fixed": [CLOCK[i % 4] for i in t], "learned": [LEARNED[i] for i in t]}.get(route, [(0, 0)] * 4)
    x = [(a + p, b + r) for (a, b), (p, r) in zip(content, added)]
    q = [turn(row, i) for row, i in zip(x, t)] if route == "rotation" else x
    scores = [[a[0] * b[0] + a[1] * b[1] - (abs(i - j) if route == "bias" else 0) for j, b in enumerate(q)] for i, a in enumerate(q)]
    mask = [[int(j <= i or route != "mask") for j in range(4)] for i in range(4)]
    counts = [[Fraction(2) ** s * m for s, m in zip(*row)] for row in zip(scores, mask)]
    weights = [[c / sum(row) for c in row] for row in counts]
    output = [[sum(w * v[c] for w, v in zip(row, x)) for c in (0, 1)] for row in weights]
    return {"X": x, "Q": q, "K": q, "V": x, "S": scores, "M": mask, "A": weights, "Y": output}


def shown(tracer, choice):
    badges, *panels = tracer.state(**dict(zip(("route", "against", "rows"), choice)))
    assert isinstance(badges, Badges) and all(isinstance(panel, Matrices) for panel in panels)
    return {badge.label: badge.value for badge in badges.items}, {m.title.split(" ")[0]: m for panel in panels for m in panel.items}


def both(choice):
    route, against, rows = choice
    return (exact(None, 0, rows), exact(route, 0, rows)) if against == "content" else (exact(route, 0, rows), exact(route, 1, rows))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_numbers_marks_and_badges(tracer, choice):
    before, after = both(choice)
    names = [name for name in before if before[name] != after[name]]
    badges, matrices = shown(tracer, choice)
    for name, matrix in matrices.items():
        np.testing.assert_allclose(matrix.values, np.array(after[name], dtype=float), rtol=0, atol=5.1e-3 if name in "AY" else 1e-9)
        cells = [(i, j) for i, row in enumerate(after[name]) for j, value in enumerate(row) if value != before[name][i][j]]
        assert list(matrix.highlight) == cells and matrix.note == ("changed" if name in names else "as before")
    assert badges == {"first changed": names[0] if names else "none", "changed": " ".join(names) or "none",
                      "as before": " ".join(n for n in before if n not in names) or "none"}


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_captions_are_true(tracer, choice):
    before, after = both(choice)
    names = [name for name in before if before[name] != after[name]]
    said = tracer.caption_of(**dict(zip(("route", "against", "rows"), choice)))
    assert said.startswith(ROUTES[choice[0]].capitalize())
    listed = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else ""
    assert listed in said and ("no tensor notices" in said) == (not names)
    assert ("V is as before" in said) == (choice[1:] == ("content", "beats") and "V" not in names)
    assert ("the output Y is as before" in said) == (choice[1:] == ("content", "equal") and "Y" not in names)
    assert ("four equal beats" in said) == (choice[2] == "equal")
    assert ("scores do not" in said) == (choice[1] == "origin" and bool(names) and "S" not in names)


def test_at_rest_rotation_spares_the_values(tracer):
    assert tracer.choice == {"route": "rotation", "against": "content", "rows": "beats"}
    badges, matrices = shown(tracer, ("rotation", "content", "beats"))
    assert badges["changed"] == "Q K S A Y" and matrices["V"].note == "as before"
    assert matrices["Y"].values[2].tolist() == [0.75, 0.12]  # (6, 1)/8, rounded to the even digit


def test_size_and_refusal(tracer):
    assert tracer.size < 60_000
    with pytest.raises(PositionContractError):
        route_tracer(routes=["rotation"])
