"""The offset tiles show the block of one matrix that is written out here by hand, and the captions hold in every state."""
import itertools
import random

import numpy as np
import pytest

from positionlib.widgets import offset_tiles

WHOLE = np.array([[j - i for j in range(12)] for i in range(12)])  # key minus query, no library call


@pytest.fixture(scope="module")
def explorer():
    return offset_tiles()


def sampled(explorer):
    return random.Random(3).sample(explorer.choices(), 18)  # all there are


def block(choice):
    q, k = choice["q_start"], choice["k_start"]
    return WHOLE[q:q + 4, k:k + 4] * (1 if choice["sign"] == "key_minus_query" else -1), WHOLE[q:q + 4, k:k + 4] <= 0


def test_a_tile_is_cut_from_the_whole_matrix(explorer):
    for choice in sampled(explorer):
        offsets, visible = block(choice)
        _, matrices = explorer.state(**choice)
        mine, local = matrices.items
        np.testing.assert_array_equal(np.where(visible, mine.values, 0), np.where(visible, offsets, 0))
        np.testing.assert_array_equal(np.asarray(mine.masked, dtype=bool), ~visible)
        np.testing.assert_array_equal(local.values, WHOLE[:4, :4] * (1 if choice["sign"] == "key_minus_query" else -1))
        assert len(local.highlight) == int((offsets != local.values).sum())
        assert mine.row_labels[0] == f"q{choice['q_start']}" and mine.column_labels[3] == f"k{choice['k_start'] + 3}"


def test_badges_count_the_block(explorer):
    for choice in sampled(explorer):
        offsets, visible = block(choice)
        shown = {badge.label: badge.value for badge in explorer.state(**choice)[0].items}
        assert shown["k_start − q_start"] == choice["k_start"] - choice["q_start"]
        assert shown["pairs a causal mask leaves"] == f"{visible.sum()} of 16"
        assert shown["tile"] == {0: "skip it", 16: "no mask needed", 10: "mask inside"}[int(visible.sum())]


def test_captions_name_the_tiles_on_the_same_diagonal(explorer):
    for choice in explorer.choices():
        offsets, visible = block(choice)
        caption = explorer.caption_of(**choice)
        for q, k in itertools.product((0, 4, 8), repeat=2):
            other = block(choice | {"q_start": q, "k_start": k})[0]
            own = (q, k) == (choice["q_start"], choice["k_start"])
            assert (f"({q}, {k})" in caption) == (not own and np.array_equal(other, offsets)), (choice, q, k)
        assert ("never reads" in caption) == (not visible.any()) and ("changes nothing" in caption) == visible.all()
        assert f"Corner: {offsets[0, 0]}.".replace("-", "−") in caption
        assert ("both starts are equal" in caption) == (choice["q_start"] == choice["k_start"])


def test_at_rest_and_size(explorer):
    assert explorer.choice == {"q_start": 8, "k_start": 4, "sign": "key_minus_query"}
    assert explorer.state()[1].items[0].values[0].tolist() == [-4, -3, -2, -1] and explorer.size < 30_000
