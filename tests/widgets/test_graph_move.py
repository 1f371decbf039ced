"""Graph permutation: distances by a search written here, outputs by plain weighted means, for every state."""
import itertools

import numpy as np
import pytest

from positionlib.widgets.graph_move import GRAPHS, MOVES, NAMES, ORDERS, graph_move

STATES = list(itertools.product(MOVES, ORDERS, GRAPHS))
CONTENT = np.array([3.0, 0.0, 1.0, 5.0])


@pytest.fixture(scope="module")
def widget():
    return graph_move()


def distances(kind):
    """Floyd and Warshall over the listed edges, both ways."""
    d = np.where(np.eye(4, dtype=bool), 0, 99)
    for a, b in GRAPHS[kind][1]:
        d[a, b] = d[b, a] = 1
    for k, i, j in itertools.product(range(4), repeat=3):
        d[i, j] = min(d[i, j], d[i, k] + d[k, j])
    return d


def used(kind, order, move):
    d, at = distances(kind), list(order)
    return {"both": d[np.ix_(at, at)], "rows": d[at], "none": d}[move]


def by_node(kind, order, move):
    weights = 0.5 ** used(kind, order, move)
    out = weights @ CONTENT[list(order)] / weights.sum(1)
    return np.array([out[order.index(n)] for n in range(4)])


@pytest.mark.parametrize("move, order, kind", STATES)
def test_a_state_is_means_by_distance(widget, move, order, kind):
    badges, grids, results = widget.state(move=move, order=order, kind=kind)
    content, relation = grids.items
    at = list(order)
    np.testing.assert_array_equal(content.values[:, 0], CONTENT[at])
    np.testing.assert_array_equal(relation.values, used(kind, order, move))
    right = distances(kind)[np.ix_(at, at)]
    wrong = [tuple(cell) for cell in np.argwhere(used(kind, order, move) != right)]
    assert list(relation.highlight) == wrong and relation.row_labels == tuple(NAMES[n] for n in order)
    before, now = by_node(kind, (0, 1, 2, 3), "both"), by_node(kind, order, move)
    np.testing.assert_allclose(results.items[0].values, np.stack((before, now), 1), rtol=0, atol=5.1e-4)
    gap = abs(before - now).max()
    assert [badge.value for badge in badges.items] == [len(wrong), f"{gap:.3f}"]
    caption = widget.caption_of(move=move, order=order, kind=kind)
    named = order != (0, 1, 2, 3) and move != "both"
    assert (f"{len(wrong)} of 16 pairs" in caption) == (named and bool(wrong) and gap > 1e-9)
    assert ("symmetry" in caption) == (order != (0, 1, 2, 3) and move != "both" and not wrong)
    assert ("keeps its distance" in caption) == (move == "both" and order != (0, 1, 2, 3))


def test_at_rest_an_output_moves(widget):
    assert widget.choice == {"move": "rows", "order": (2, 0, 3, 1), "kind": "path"}
    assert widget.state(**widget.choice)[0].items[0].value > 0 and float(widget.state(**widget.choice)[0].items[1].value) > 0


def test_moving_both_axes_changes_nothing(widget):
    for order, kind in itertools.product(ORDERS, GRAPHS):
        assert widget.state(move="both", order=order, kind=kind)[0].items[1].value == "0.000"


def test_stored_size(widget):
    assert widget.size < 60_000
