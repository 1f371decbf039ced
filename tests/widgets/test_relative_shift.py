"""The relative-shift stepper: numbers and distances by plain lists, at every step, for both sides of the zero column."""
import itertools

import numpy as np
import pytest

from positionlib.widgets.panels import Badges, Matrices
from positionlib.widgets.relative_shift import SIDES, STEPS, relative_shift_stepper

STATES = list(itertools.product(STEPS, SIDES, range(4)))  # all 32


@pytest.fixture(scope="module")
def stepper():
    return relative_shift_stepper()


def by_lists(name, side, memory):
    """[(number, distance)] rows after a step: r of distance n is 4 − n, query number t has q = t, and v = 1."""
    queries = 4 - memory
    rows = [[((t + 1) * (4 - n), str(n)) for n in (3, 2, 1, 0)] for t in range(1, queries + 1)]
    pad = [(0, "pad")]
    if name != "compact":
        rows = [pad + row if side == "front" else row + pad for row in rows]
    if name in ("reshape", "drop"):
        flat = [cell for row in rows for cell in row]
        width = queries
        if name == "drop":
            flat, width = flat[queries:], 4
        rows = [flat[at:at + width] for at in range(0, len(flat), width)]
    return rows


@pytest.mark.parametrize("name, side, memory", STATES)
def test_a_state_shows_numbers_and_distances(stepper, name, side, memory):
    badges, grids = stepper.state(name=name, side=side, memory=memory)
    assert isinstance(badges, Badges) and isinstance(grids, Matrices)
    number, distance = grids.items
    rows = by_lists(name, side, memory)
    np.testing.assert_array_equal(number.values, [[n for n, _ in row] for row in rows])
    np.testing.assert_array_equal(distance.values, [[d for _, d in row] for row in rows])
    if name != "drop":
        assert not number.highlight and "not aligned yet" in [badge.value for badge in badges.items]
        return
    past = [(i, j) for i in range(4 - memory) for j in range(4) if j <= i + memory]
    wrong = [(i, j) for i, j in past if rows[i][j][1] != str(i + memory - j)]
    assert list(number.highlight) == list(distance.highlight) == wrong
    assert [badge.value for badge in badges.items][1:] == [len(wrong), 4 * (4 - memory) - len(past)]
    assert bool(wrong) == (side == "behind")
    caption = stepper.caption_of(name=name, side=side, memory=memory)
    assert (f"{len(wrong)} of {len(past)} past keys" in caption) == (side == "behind")


def test_behind_means_one_too_small():
    for memory in range(4):
        rows = by_lists("drop", "behind", memory)
        for i in range(4 - memory):
            for j in range(i + memory):
                assert rows[i][j][1] == str(i + memory - j - 1)
            assert rows[i][i + memory][1] == "pad"


def test_at_rest_it_is_the_case_by_hand(stepper):
    assert stepper.choice == {"name": "drop", "side": "front", "memory": 1}
    assert stepper.state(**stepper.choice)[1].items[0].values.tolist() == [[6, 8, 0, 3], [6, 9, 12, 0], [4, 8, 12, 16]]


def test_stored_size(stepper):
    assert stepper.size < 40_000


@pytest.mark.parametrize("name, memory", itertools.product(STEPS, range(4)))
def test_the_caption_follows_the_zero_column(stepper, name, memory):
    said = {stepper.caption_of(name=name, side=side, memory=memory) for side in SIDES}
    assert len(said) == 2, f"expected another caption for another side at step {name}"
