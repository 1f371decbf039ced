"""The tile stepper's numbers are fractions of powers of two, added up here by hand; its captions hold in all forty states."""
import random
from fractions import Fraction

import numpy as np
import pytest

from positionlib.widgets import tile_stepper

ROWS = {"rising": [0, 0, 0, 0, 1, 1, 2, 2], "falling": [2, 2, 1, 1, 0, 0, 0, 0], "hidden": [None, None, 0, 0, 1, 2, 2, 2], "nothing": [None] * 8}


@pytest.fixture(scope="module")
def explorer():
    return tile_stepper()


def kept(row, read, order):
    """(m or None, l, o[8]) in exact fractions: exp of k·ln 2 is 2^k."""
    tiles = [range(j, j + 2) for j in range(0, 8, 2)][::1 if order == "first" else -1]
    keys = [j for tile in tiles[:read] for j in tile if ROWS[row][j] is not None]
    if not keys:
        return None, Fraction(0), [Fraction(0)] * 8
    m = max(ROWS[row][j] for j in keys)
    o = [Fraction(2) ** (ROWS[row][j] - m) if j in keys else Fraction(0) for j in range(8)]
    return m, sum(o), o


def sampled(explorer):
    return random.Random(5).sample(explorer.choices(), 20)


def rounded(values):
    return np.array([float(v) for v in values])


def test_rows_are_the_fractions_by_hand(explorer):
    for choice in sampled(explorer):
        m, l, o = kept(**choice)  # noqa: E741
        before_m, _, before = kept(**choice | {"read": max(choice["read"] - 1, 0)})
        table = explorer.state(**choice)[1].items[0].values
        factor = Fraction(1) if before_m is None else Fraction(2) ** (before_m - m)
        for got, want in ((table[1], before), (table[2], [b * factor for b in before]), (table[3], o), (table[4], [x / l if l else 0 for x in o])):
            np.testing.assert_allclose(got, rounded(want), rtol=0, atol=5.1e-5)
        assert [None if hidden else int(s) for s, hidden in zip(table[0], np.asarray(explorer.state(**choice)[1].items[0].masked)[0])] == ROWS[choice["row"]]


def test_badges_and_history(explorer):
    for choice in sampled(explorer):
        m, l, _ = kept(**choice)  # noqa: E741
        badges, _, history = explorer.state(**choice)
        shown = {badge.label: badge.value for badge in badges.items}
        assert shown["m, in ln 2"] == ("−∞" if m is None else str(m)) and float(shown["l"]) == pytest.approx(float(l), rel=1e-3)
        for read, line in enumerate(history.rows[:choice["read"]], 1):
            m, l, _ = kept(**choice | {"read": read})  # noqa: E741
            assert line[2] == ("−∞" if m is None else str(m)) and float(line[4]) == pytest.approx(float(l), rel=1e-3)


def test_captions_are_true_everywhere(explorer):
    for choice in explorer.choices():
        caption = explorer.caption_of(**choice)
        m, was = kept(**choice)[0], kept(**choice | {"read": max(choice["read"] - 1, 0)})[0]
        assert ("grew from" in caption) == (choice["read"] > 0 and None not in (m, was) and m > was), choice
        assert ("factor is 1" in caption) == (choice["read"] > 0 and None not in (m, was) and m == was), choice
        assert ("softmax of the whole row" in caption) == (choice["read"] == 4 and choice["row"] != "nothing")
        if "grew from" in caption:
            assert f"from {was} to {m}" in caption and f"by {float(Fraction(2) ** (was - m)):.4g}." in caption


def test_the_final_weights_do_not_depend_on_the_order(explorer):
    for row in ROWS:
        one, two = (explorer.state(row=row, read=4, order=order)[1].items[0].values[4] for order in ("first", "last"))
        np.testing.assert_array_equal(one, two)
        weights = [2.0**s if s is not None else 0 for s in ROWS[row]]
        np.testing.assert_allclose(one, np.array(weights) / (sum(weights) or 1), atol=5.1e-5)


def test_at_rest_and_size(explorer):
    assert explorer.choice == {"row": "rising", "read": 4, "order": "first"} and explorer.size < 60_000
    assert "grew from 1 to 2: everything kept is multiplied by 0.5" in explorer.caption_of()
