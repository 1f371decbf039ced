"""The addition heat map: every cell equals a table made here with numpy, and every caption and badge is true of it."""
import itertools

import numpy as np
import pytest

from positionlib.errors import PositionContractError
from positionlib.widgets.addition import PROGRAMS, addition_heatmap, content
from positionlib.widgets.panels import Badges, HeatMap

CHOICES = list(itertools.product(PROGRAMS, (0.25, 1.0, 4.0)))
ALL = CHOICES + [(p, s) for p, s in CHOICES if s == 1.0] + [("once", 0.25), ("twice", 4.0), ("one row", 0.25), ("sequences", 4.0)]  # 20


@pytest.fixture(scope="module")
def explorer():
    return addition_heatmap()


def added(program):
    """[2, 8, 16] in float64, from sines and cosines."""
    t, pair = np.arange(9.0)[:, None], np.arange(8.0)
    table = np.empty((9, 16))
    table[:, 0::2], table[:, 1::2] = np.sin(t * 10_000 ** (-pair / 8)), np.cos(t * 10_000 ** (-pair / 8))
    rows = {"once": table[:8], "twice": 2 * table[:8], "one row": table[8], "sequences": table[:2, None]}[program]
    return np.broadcast_to(rows, (2, 8, 16))


@pytest.mark.parametrize("choice", ALL, ids=str)
def test_cells_badges_and_caption(explorer, choice):
    program, scale = choice
    *maps, badges = explorer.state(program=program, scale=scale)
    x, p = scale * content().numpy(), added(program)
    assert [m.title for m in maps] == ["Content", "Added", "Sum"] and isinstance(badges, Badges) and all(isinstance(m, HeatMap) for m in maps)
    for panel, want in zip(maps, (x, p, x + p)):
        np.testing.assert_allclose(panel.values, want.reshape(16, 16), rtol=0, atol=5.01e-3)
        assert panel.rows.labels[9] == "1.1"
    long, short = np.linalg.norm(x, axis=-1).mean(), np.linalg.norm(p, axis=-1).mean()
    alike = np.corrcoef(p.ravel(), (x + p).ravel())[0, 1]
    own, shared = program in ("once", "twice"), program != "sequences"
    assert {b.label: b.value for b in badges.items} == {
        "each token its own row": "yes" if own else "no", "both sequences alike": "yes" if shared else "no",
        "content row, mean length": f"{long:.2f}", "added row, mean length": f"{short:.2f}", "correlation of sum and added": f"{alike:.2f}"}
    said = explorer.caption_of(program=program, scale=scale)
    assert f"{short:.2f} against {long:.2f}" in said and f"added: {alike:.2f}." in said
    assert ("longer than" in said) == (short > long)
    assert ("no token knows" in said) == (program == "one row") and ("number the sequences" in said) == (program == "sequences")
    assert ("twice as strong" in said) == (program == "twice")


def test_at_rest_it_is_the_right_sum(explorer):
    assert explorer.choice == {"program": "once", "scale": 0.25}
    panel = explorer.state()[1]
    np.testing.assert_array_equal(panel.values[:8], panel.values[8:])  # both sequences alike
    assert not np.array_equal(panel.values[0], panel.values[1])


def test_size_and_refusal(explorer):
    assert explorer.size < 60_000
    with pytest.raises(PositionContractError):
        addition_heatmap(programs=["once"])
