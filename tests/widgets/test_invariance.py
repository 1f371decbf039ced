"""The invariance widget shows scores of rows built by hand, and says rightly which forms see the offset and its sign."""
import random

import numpy as np
import pytest

from positionlib.widgets import invariance_explorer

ROTATE = np.array([[0.0, 1.0], [-1.0, 0.0]])


@pytest.fixture(scope="module")
def explorer():
    return invariance_explorer()


def form(name):
    a, b = {"identity": ((1, 1), (0, 0)), "even": ((0.8, 0.3), (0, 0)), "oriented": ((0.8, 0.3), (0.6, -0.2))}.get(name, ((0, 0), (0, 0)))
    out = np.zeros((4, 4))
    for i in range(2):
        out[2 * i:2 * i + 2, 2 * i:2 * i + 2] = a[i] * np.eye(2) + b[i] * ROTATE
    if name == "crossed":
        out[0, 2] = 1
    if name == "swapped":
        out[[0, 1, 2, 3], [2, 3, 0, 1]] = 1
    return out


def row(t, base):
    return np.array([np.sin(t), np.cos(t), np.sin(t * base**-0.5), np.cos(t * base**-0.5)])


def test_scores(explorer):
    for choice in random.Random(6).sample(explorer.choices(), 20):
        badges, lines, matrices = explorer.state(**choice)
        np.testing.assert_allclose(matrices.items[0].values, form(choice["name"]), atol=1e-12)
        raw = []
        for shown, sign in zip(lines.series, (-1, 1), strict=True):
            raw.append([row(12 + c, choice["base"]) @ form(choice["name"]) @ row(12 + sign * choice["offset"] + c, choice["base"]) for c in lines.x])
            np.testing.assert_allclose(shown.values, raw[-1], atol=5.1e-4)
        assert badges.items[0].value == f"{max(raw[0]) - min(raw[0]):.3f}"


def test_what_each_form_sees(explorer):
    for choice in explorer.choices():
        _, alone, sign = (badge.value for badge in explorer.state(**choice)[0].items)
        assert alone == ("yes" if choice["name"] in ("identity", "even", "oriented") else "no")
        assert sign == ("no" if choice["name"] in ("identity", "even") else "yes"), choice
        assert ("flat" in explorer.caption_of(**choice)) == (alone == "yes")


def test_at_rest_the_oriented_blocks_do_both(explorer):
    assert explorer.choice["name"] == "oriented" and explorer.size <= 150_000
    assert "before and after get different scores" in explorer.caption_of()
