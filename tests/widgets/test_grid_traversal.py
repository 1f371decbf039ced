"""Grid traversal: token numbers and coordinates by nested loops, for every state."""
import itertools

import pytest

from positionlib.widgets.grid_traversal import ORDERS, SIZES, grid_traversal

STATES = list(itertools.product(SIZES, ORDERS, ORDERS))


@pytest.fixture(scope="module")
def widget():
    return grid_traversal()


def walk(size, order):
    """Cells in the order of a traversal."""
    rows, cols = range(size[0]), range(size[1])
    return [(r, c) for r in rows for c in cols] if order == "row_major" else [(r, c) for c in cols for r in rows]


@pytest.mark.parametrize("size, content, coordinates", STATES)
def test_a_state_is_two_nested_loops(widget, size, content, coordinates):
    badges, grids = widget.state(size=size, content=content, coordinates=coordinates)
    patches, given = walk(size, content), walk(size, coordinates)
    stored, names = grids.items
    wrong = []
    for token, cell in enumerate(patches):
        assert stored.values[cell] == token and names.values[cell] == "r{} c{}".format(*given[token])
        wrong += [cell] if given[token] != cell else []
    assert sorted(names.highlight) == sorted(wrong)
    assert badges.items[0].value == f"{len(wrong)} of {size[0] * size[1]}"
    caption = widget.caption_of(size=size, content=content, coordinates=coordinates)
    assert (f"{len(wrong)} of {size[0] * size[1]} patches" in caption) == bool(wrong)
    assert ("cannot show" in caption) == (content != coordinates and not wrong)
    assert ("exchanged" in caption) == (bool(wrong) and size[0] == size[1])


def test_at_rest_eight_of_ten_patches_are_wrong(widget):
    assert widget.choice == {"size": (2, 5), "content": "row_major", "coordinates": "column_major"}
    assert widget.state(**widget.choice)[0].items[0].value == "8 of 10"


def test_stored_size(widget):
    assert widget.size < 40_000
