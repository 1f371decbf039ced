"""The shift widget shows what sine and cosine say by themselves, and names the checks that notice each wrong block."""
import math
import random

import numpy as np
import pytest

from positionlib.widgets import shift_rotation


@pytest.fixture(scope="module")
def explorer():
    return shift_rotation()


def entries(choice, k):
    """The block of a choice from its definition; rows are [sin, cos]."""
    c, s = math.cos(k * choice["base"] ** -0.5), math.sin(k * choice["base"] ** -0.5)
    return np.array({"right": [[c, s], [-s, c]], "backwards": [[c, -s], [s, c]], "mirror": [[c, s], [s, -c]]}[choice["kind"]])


def row(choice, t):
    return np.array([math.sin(t * choice["base"] ** -0.5), math.cos(t * choice["base"] ** -0.5)])


def test_matrices_and_curves(explorer):
    for choice in random.Random(6).sample(explorer.choices(), 20):
        _, matrices, lines = explorer.state(**choice)
        t, k = choice["t"], choice["k"]
        wanted = entries(choice, k), row(choice, t)[:, None], (entries(choice, k) @ row(choice, t))[:, None], row(choice, t + k)[:, None]
        for shown, want in zip(matrices.items, wanted, strict=True):
            np.testing.assert_allclose(shown.values, want, atol=5.1e-5)
        direct, moved = (series.values for series in lines.series)
        np.testing.assert_allclose(direct, [row(choice, t + j)[0] for j in lines.x], atol=5.1e-4)
        np.testing.assert_allclose(moved, [(entries(choice, int(j)) @ row(choice, t))[0] for j in lines.x], atol=5.1e-4)


def test_which_check_notices(explorer):
    for choice in explorer.choices():
        verdicts = [badge.value for badge in explorer.state(**choice)[0].items]
        expected = {"right": ["yes"] * 4, "backwards": ["yes", "yes", "yes", "no"], "mirror": ["yes", "no", "no", "no"]}
        assert verdicts == expected[choice["kind"]], choice
        passed = verdicts.count("yes")
        assert ("all four" if passed == 4 else f"passes {passed} of 4") in explorer.caption_of(**choice)


def test_at_rest_a_transposed_block_passes_every_law(explorer):
    assert explorer.choice["kind"] == "backwards" and explorer.size <= 150_000
    assert explorer.caption_of().endswith("what notices: equals r(t + k).")
