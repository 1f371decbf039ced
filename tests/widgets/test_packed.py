"""The packing widget against loops: positions, lengths, counts and the farthest key, for every state."""

import pytest

from positionlib import widgets
from positionlib.errors import PositionContractError

LENGTHS = {"three": [3, 2, 3], "uneven": [1, 6, 1], "one": [8]}


@pytest.fixture(scope="module")
def explorer():
    return widgets.packed_rows()


def by_hand(choice):
    rows, column = [], 0
    for d, n in enumerate(LENGTHS[choice["documents"]]):
        for i in range(n):
            rows.append((column, "ABC"[d], {"reset": i, "continue": column, "spread": 4 * d + i}[choice["rule"]]))
            column += 1
    return rows


def test_every_state_is_that_of_the_loops(explorer):
    for choice in explorer.choices():
        rows = by_hand(choice)
        table, lengths, coverage, badges = explorer.state(**choice)
        assert [tuple(r) for r in table.rows] == rows
        assert lengths.values.tolist() == [LENGTHS[choice["documents"]].count(n) for n in range(1, 9)]
        counts = [sum(p == r for _, _, p in rows) for r in range(12)]
        assert coverage.values.tolist() == counts
        far = max(p - q for _, d, p in rows for _, e, q in rows if d == e)
        assert [b.value for b in badges.items] == [f"{sum(map(bool, counts))} of 12", max(p for *_, p in rows), f"{far} back"]


def test_captions_are_true(explorer):
    for choice in explorer.choices():
        said, rows = explorer.caption_of(**choice), by_hand(choice)
        counts = [sum(p == r for _, _, p in rows) for r in range(12)]
        assert f"{sum(map(bool, counts))} of 12 rows are read" in said
        assert ("once each" in said) == (max(counts) == 1) and ("up to" in said) == (max(counts) > 1)
        assert ("rules agree" in said) == (choice["documents"] == "one") != (f"more than {max(LENGTHS[choice['documents']]) - 1} back" in said)


def test_state_at_rest_shows_short_coverage(explorer):
    assert explorer.choice == {"documents": "three", "rule": "reset"} and explorer.size < 40_000
    assert explorer.state()[2].values.tolist() == [3, 3, 2] + [0] * 9
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.packed_rows(rule=["reset"])
