"""The odometer's digits, hands and distances equal arithmetic written out here, and every caption is true of its state."""

import math
import random
import re

import numpy as np
import pytest

from positionlib.errors import PositionContractError
from positionlib.widgets import odometer
from positionlib.widgets.panels import Lines, Matrices


@pytest.fixture(scope="module")
def explorer():
    return odometer()


def digits_of(t, m):
    return [int(digit) for digit in f"{t:0{m}b}"]


def hands_of(t, m, base):
    speeds = [(0.5**i if base == "2^m" else 10_000 ** (-i / m)) for i in range(m)]
    return [f(t * speed) for speed in speeds for f in (math.sin, math.cos)]


def near(rows, t):
    away = [math.dist(rows[t], row) for row in rows]
    return away, sum(away[s] < away[t + 1] - 1e-9 for s in range(len(rows)) if s != t)


def both(position, digits, base):
    count = range(2**digits)
    return near([digits_of(t, digits) for t in count], position), near([hands_of(t, digits, base) for t in count], position)


def test_twenty_states_equal_arithmetic(explorer):
    for choice in random.Random(3).sample(explorer.choices(), 20):
        t, m, base = choice["position"], choice["digits"], choice["base"]
        badges, matrices, lines = explorer.state(**choice)
        (by_digit, near_digit), (by_hand, near_hand) = both(t, m, base)
        assert isinstance(matrices, Matrices) and isinstance(lines, Lines)
        np.testing.assert_array_equal(matrices.items[0].values, [digits_of(t, m), digits_of(t + 1, m)])
        np.testing.assert_allclose(matrices.items[1].values, [hands_of(t, m, base), hands_of(t + 1, m, base)], atol=5.1e-3)
        flips = [c for c in range(m) if digits_of(t, m)[c] != digits_of(t + 1, m)[c]]
        assert list(matrices.items[0].highlight) == [(1, c) for c in flips]
        np.testing.assert_allclose(lines.series[0].values, by_digit, atol=5.1e-3)
        np.testing.assert_allclose(lines.series[1].values, by_hand, atol=5.1e-3)
        assert lines.marks[0].x == t and max(by_digit + by_hand) <= 5.0
        assert [b.value for b in badges.items] == [f"{len(flips)} of {m}", near_digit, near_hand]
        assert [b.status for b in badges.items[1:]] == ["bad" if n else "ok" for n in (near_digit, near_hand)]


def test_every_caption_is_true(explorer):
    assert len(explorer.choices()) == 90
    for choice in explorer.choices():
        t, m = choice["position"], choice["digits"]
        said = explorer.caption_of(**choice)
        (by_digit, near_digit), (by_hand, near_hand) = both(t, m, choice["base"])
        flips = sum(a != b for a, b in zip(digits_of(t, m), digits_of(t + 1, m)))
        assert said.startswith(f"{t} → {t + 1} flips {flips} of {m} digits, a step of {math.sqrt(flips):.2f}:")
        assert f"hands step by {by_hand[t + 1]:.2f}," in said
        counted = [0 if n == "no" else int(n) for n in re.findall(r"(no|\d+) rows? (?:is|are)", said)]
        assert counted == [near_digit, near_hand]


def test_at_rest_a_carry_makes_the_next_row_the_farthest(explorer):
    assert explorer.choice == {"position": 7, "digits": 4, "base": "2^m"}
    lines = explorer.state()[2]
    assert lines.series[0].values[8] == 2.0 == lines.series[0].values.max()
    assert [b.value for b in explorer.state()[0].items] == ["4 of 4", 14, 0]


def test_hands_step_alike_at_every_position(explorer):
    for base in ("2^m", "10,000"):
        steps = {explorer.state(position=t, base=base)[2].series[1].values[t + 1] for t in range(15)}
        assert len(steps) == 1


def test_size_and_refusals(explorer):
    assert explorer.size < 200_000
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        odometer(digits=(4,))
