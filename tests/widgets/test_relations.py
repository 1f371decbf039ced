"""The relation classes are those of an index loop written here, and the captions count them rightly in every state."""
import random

import numpy as np
import pytest

from positionlib.widgets import relation_classes


@pytest.fixture(scope="module")
def explorer():
    return relation_classes()


def pairs(call):
    """(query row, key, query position) of every visible pair, from comparisons alone."""
    queries = {"decoder": range(8), "encoder": range(8), "step": [7], "reset": [0]}[call]
    return [(i, j, p) for i, p in enumerate(queries) for j in range(8) if call != "decoder" or j <= p]


def row(choice, j, p):
    offset = j - p if choice["sign"] == "key_minus_query" else p - j
    return max(-choice["k"], min(choice["k"], offset)) + choice["k"]


def counts(choice):
    found = [0] * (2 * choice["k"] + 1)
    for _, j, p in pairs(choice["call"]):
        found[row(choice, j, p)] += 1
    return found


def sampled(explorer):
    return random.Random(9).sample(explorer.choices(), 20)


def test_every_pair_by_a_loop(explorer):
    for choice in sampled(explorer):
        matrix = explorer.state(**choice)[1].items[0]
        hidden = np.ones(matrix.values.shape, dtype=bool)
        for i, j, p in pairs(choice["call"]):
            assert matrix.values[i, j] == row(choice, j, p), (choice, i, j)
            hidden[i, j] = False
        np.testing.assert_array_equal(np.zeros_like(hidden) if matrix.masked is None else np.asarray(matrix.masked, dtype=bool), hidden)


def test_bars_and_badges_count_the_pairs(explorer):
    for choice in sampled(explorer):
        badges, _, bars = explorer.state(**choice)
        want = counts(choice)
        np.testing.assert_array_equal(bars.values, want)
        unread = [r for r, n in enumerate(want) if not n]
        shown = {badge.label: badge.value for badge in badges.items}
        assert shown["rows that no pair reads"] == (", ".join(map(str, unread)) or "none")
        assert shown["table rows"] == 2 * choice["k"] + 1 and shown["pairs"] == len(pairs(choice["call"])) and shown["row of offset 0"] == choice["k"]


def test_captions_are_true_everywhere(explorer):
    for choice in explorer.choices():
        want, caption = counts(choice), explorer.caption_of(**choice)
        assert f"0 and {2 * choice['k']} take {want[0] + want[-1]} of {sum(want)} pairs" in caption
        assert ("no gradient reaches" in caption) == (not all(want) and choice["call"] in ("decoder", "encoder"))
        assert ("Every row is read" in caption) == all(want) and f"collects {max(want)} pairs" in caption
        assert ("look like the future" in caption) == (choice["call"] == "reset" and choice["sign"] == "key_minus_query")


def test_at_rest_the_future_rows_get_nothing(explorer):
    assert explorer.choice == {"call": "decoder", "k": 2, "sign": "key_minus_query"}
    assert "No pair reads rows 3, 4, so no gradient reaches them." in explorer.caption_of() and list(explorer.state()[2].values) == [21, 7, 8, 0, 0] and explorer.size < 60_000
