"""Every number of the layout explorer equals arithmetic made here, and every caption is true of its state."""

import math

import numpy as np
import pytest

from positionlib import widgets
from positionlib.widgets.panels import Badges, HeatMap, Table


@pytest.fixture(scope="module")
def explorer():
    return widgets.layout_explorer()


def _coordinates(d, layout):
    """Names and angles' functions in the order of the layout, written without the library."""
    sines, cosines = [("sin", i) for i in range((d + 1) // 2)], [("cos", i) for i in range(d // 2)]
    if layout == "concatenated":
        return sines + cosines
    return [pair for i in range((d + 1) // 2) for pair in (sines[i : i + 1] + cosines[i : i + 1])]


def _value(name, t, d):
    kind, i = name
    return (math.sin if kind == "sin" else math.cos)(t * 10_000 ** (-2 * i / d))


def _expected(c):
    d = c["d_model"]
    trained_at = {name: 2**k for k, name in enumerate(_coordinates(d, "interleaved"))}
    here = _coordinates(d, c["layout"])
    # "move" puts the columns in the order of the concatenated layout, whatever the table's layout is.
    weight = [trained_at[name] for name in _coordinates(d, "concatenated" if c["columns"] == "move" else "interleaved")]
    foreign = [k for k, name in enumerate(here) if weight[k] != trained_at[name]]
    got = sum(w * _value(name, 2, d) for w, name in zip(weight, here))
    right = sum(w * _value(name, 2, d) for name, w in trained_at.items())
    return here, weight, foreign, got, right


def test_every_state_is_the_arithmetic(explorer):
    assert len(explorer.choices()) == 20
    for choice in explorer.choices():
        here, weight, foreign, got, right = _expected(choice)
        panels, d = explorer.state(**choice), choice["d_model"]
        table = next(p for p in panels if isinstance(p, Table))
        assert [r[1] for r in table.rows] == [f"{kind} {i}" for kind, i in here]
        assert [float(r[2]) for r in table.rows] == pytest.approx([_value(name, 2, d) for name in here], abs=5.1e-5)
        assert [r[3] for r in table.rows] == weight and list(table.highlight) == foreign
        assert [float(r[4]) for r in table.rows] == pytest.approx([w * _value(n, 2, d) for w, n in zip(weight, here)], abs=5.1e-5)
        badge = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
        assert badge == {"sum here": f"{got:.4f}", "sum in training": f"{right:.4f}", "foreign weights": f"{len(foreign)} of {d}"}
        heat = next(p for p in panels if isinstance(p, HeatMap))
        direct = np.array([[_value(name, t, d) for name in here] for t in range(16)])
        np.testing.assert_array_equal(heat.values, np.round(direct, 2))
        assert list(heat.columns.labels) == [f"{kind} {i}" for kind, i in here]


def test_captions_are_true(explorer):
    for choice in explorer.choices():
        here, _, foreign, got, right = _expected(choice)
        said = explorer.caption_of(**choice)
        assert said.startswith(choice["layout"].capitalize()) and f"The layer gives {got:.4f}" in said.replace("the layer", "The layer")
        assert f"The last channel holds {here[-1][0]} {here[-1][1]}." in said
        assert (f"channels {', '.join(map(str, foreign))} meet" in said) == bool(foreign) and (f"{right:.4f}" in said)
        assert ("every weight meets its coordinate" in said) == (not foreign) == (abs(got - right) < 1e-9)


def test_state_at_rest_is_the_hand_case(explorer):
    assert explorer.choice == {"d_model": 4, "layout": "concatenated", "columns": "stay"}
    badge = {b.label: b.value for p in explorer.state() if isinstance(p, Badges) for b in p.items}
    assert badge["foreign weights"] == "2 of 4" and badge["sum here"] != badge["sum in training"]
    odd = next(p for p in explorer.state(d_model=5) if isinstance(p, Table)).rows
    assert odd[2][1] == "sin 2" and odd[4][1] == "cos 1", "the unpaired sine stays among the sines"


def test_size(explorer):
    assert explorer.size < 60_000
