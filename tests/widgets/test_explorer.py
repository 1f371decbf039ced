"""What an explorer stores is what Python computed, rounded as stated; what it cannot store it refuses by name."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from positionlib.errors import PositionContractError
from positionlib.widgets import packing
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, Badge, Badges, Bars, HeatMap, Lines, Mark, Matrices, Matrix, Series, Table, Text

WAVE = np.sin(np.arange(200)[:, None] * 10_000.0 ** (-np.arange(16) / 16))


def panels(rows: int, start: int = 0, swap: bool = False) -> list:
    order = [*range(0, 16, 2), *range(1, 16, 2)] if swap else None
    x = np.arange(1, rows + 1)
    return [
        HeatMap("Table", WAVE[start:start + rows], rows=Axis("position", start=start), columns=Axis("channel"), scale="diverging", limits=(-1, 1), decimals=4,
                order=order, column_hover={"pair": list(range(16))}, cell_hover={"angle": (x, np.arange(16) / 3), "sign": np.sign(WAVE[start:start + rows])}),
        Lines("Curves", x, [Series("root", np.sqrt(x)), Series("half", x // 2, "step")], marks=[Mark(4, "four")]),
        Bars("Counts", ["a", "b", "c"], [1.25, -2.0, rows], highlight=[1]),
        Matrices([Matrix("M", [[0.125, -1.0], [2.5, 3.0]], decimals=3, highlight=[(0, 1)], masked=[[False, True], [False, False]]), Matrix("W", [["x", "y"]])]),
        Table("T", ["n", "word"], [[rows, "many"], [np.int64(3), "few"]], highlight=[0]),
        Badges([Badge("rows", rows), Badge("exact", True, "ok"), Badge("gap", np.float64(0.5), "bad")]),
        Text("words")]


def explorer(**changes) -> Explorer:
    given_ = dict(name="demo", title="A demo", question="How many rows?", compute=panels, caption=lambda rows, start, swap: f"{rows} rows from {start}.",
                  controls=[Control("rows", "Rows", [8, 32, 64]), Control("start", "Start", [0, 100]), Control("swap", "Swap", [False, True])], start={"rows": 32})
    return Explorer(**given_ | changes)


@pytest.fixture(scope="module")
def demo() -> Explorer:
    return explorer()


def test_every_state_is_the_computation_rounded(demo):
    assert len(demo.choices()) == 12
    for choice in demo.choices():
        stored, fresh = demo.state(**choice), panels(**choice)
        assert all(a.same_as(b) for a, b in zip(stored, fresh, strict=True))
        rows, start = choice["rows"], choice["start"]
        order = [*range(0, 16, 2), *range(1, 16, 2)] if choice["swap"] else list(range(16))
        np.testing.assert_array_equal(stored[0].values, np.round(WAVE[start:start + rows][:, order], 4))
        np.testing.assert_array_equal(stored[0].cell_hover["angle"][0], np.arange(1, rows + 1))
        np.testing.assert_array_equal(stored[1].series[0].values, np.round(np.sqrt(np.arange(1, rows + 1)), 3))
        np.testing.assert_array_equal(stored[2].values, [1.25, -2.0, rows])
        assert stored[3].items[0].values.tolist() == [[0.125, -1.0], [2.5, 3.0]] and stored[3].items[1].values.tolist() == [["x", "y"]]
        assert stored[4].rows == ((rows, "many"), (3, "few")) and stored[5].items[2] == Badge("gap", 0.5, "bad")
        assert demo.caption_of(**choice) == f"{rows} rows from {start}."


def test_same_as_notices_every_change(demo):
    heat, lines, bars, matrices, table, badges, text = panels(8)
    assert not heat.same_as(replace(heat, values=heat.values + 1e-4 * (np.arange(16) == 3)))
    assert heat.same_as(replace(heat, values=heat.values + 1e-9))
    assert not heat.same_as(replace(heat, limits=(-2, 2)))
    assert not heat.same_as(replace(heat, column_hover={"pair": [0] * 16}))
    assert not lines.same_as(replace(lines, marks=(Mark(5, "four"),)))
    assert not bars.same_as(replace(bars, highlight=(2,)))
    assert not matrices.same_as(Matrices([replace(matrices.items[0], masked=None), matrices.items[1]]))
    assert not table.same_as(replace(table, rows=((8, "many"), (3, "some"))))
    assert not badges.same_as(Badges([Badge("rows", 9), *badges.items[1:]]))
    assert not text.same_as(heat) and not text.same_as(Text("word"))


@given(arrays.arrays(np.float64, st.integers(32, 80), elements=st.floats(-1e4, 1e4)), st.integers(0, 4))
def test_packed_numbers_are_within_half_a_step_and_in_the_smallest_type(values, decimals):
    stored, block = packing.place([packing.encode(Lines("L", np.arange(len(values)), [Series("s", values)], decimals=decimals))])
    back = packing.decode(stored[0], block).series[0].values
    assert np.abs(back - values).max() <= 0.5 * 10.0**-decimals * (1 + 1e-9) + 1e-11
    np.testing.assert_array_equal(back, np.round(values, decimals))
    span = np.rint(values * 10.0**decimals).max() - np.rint(values * 10.0**decimals).min()
    assert stored[0]["series"][0]["values"]["type"] == ("u1" if span < 256 else "u2" if span < 65536 else "i4")


def heat(values, **changes) -> HeatMap:
    return HeatMap("H", values, **{"limits": (-1, 1), "decimals": 2} | changes)


def test_slices_and_repeats_of_stored_rows_cost_no_bytes():
    whole = WAVE[:128]
    _, alone = packing.place([packing.encode(heat(whole))])
    parts = [heat(whole), heat(whole[:40]), heat(whole[64:]), heat(whole.copy()), heat(whole, order=range(15, -1, -1))]
    stored, block = packing.place([packing.encode(p) for p in parts])
    assert len(alone) == 128 * 16 and len(block) == len(alone)
    _, joined = packing.place([packing.encode(heat(WAVE[:100])), packing.encode(heat(WAVE[60:160]))])
    assert len(joined) == 160 * 16, "rows 60..99 stand in both tables and are stored once"
    for panel, one in zip(parts, stored):
        np.testing.assert_array_equal(packing.decode(one, block).values, np.round(panel.drawn().values, 2))


def test_equal_panels_of_two_states_are_stored_once(demo):
    panels_, states = json.loads(demo.store)
    assert len(states) == 12 and len({row[-1] for row in states}) == 1, "the Text panel is the same in all twelve states"
    assert len(panels_) == len({json.dumps(p) for p in panels_})


def test_limits_are_shared_over_the_states_and_centred_when_diverging():
    def compute(gain):
        return [HeatMap("D", [[gain * 1.0, -0.5]], scale="diverging"), HeatMap("S", [[gain * 1.0, 0.5]]), Bars("B", ["a"], [gain * 1.0]), Lines("L", [0, 1], [Series("y", [0.0, gain])])]

    made = Explorer("l", "L", "Q?", [Control("gain", "Gain", [1, 4])], compute, "Said.")
    for gain in (1, 4):
        assert [panel.limits for panel in made.state(gain=gain)] == [(-4, 4), (0.5, 4), (0, 4), (0, 4)]


def test_choice_moves_and_refuses(demo):
    made = explorer()
    assert made.choice == {"rows": 32, "start": 0, "swap": False} and made.index == [1, 0, 0]
    made.choose(start=100, swap=True)
    assert made.choice == {"rows": 32, "start": 100, "swap": True} and made.index == [1, 1, 1]
    assert made.state()[0].rows.start == 100
    for refused in (lambda: made.choose(rows=9), lambda: made.choose(row=8), lambda: made.state(swap="no"), lambda: setattr(made, "index", [0, 0, 2])):
        with pytest.raises(PositionContractError):
            refused()
    assert made.index == [1, 1, 1]


@pytest.mark.parametrize(("changes", "field", "remedy"), [
    ({"controls": [Control(f"c{i}", "C", [0, 1]) for i in range(6)]}, "controls", "Fix the others"),
    ({"controls": []}, "controls", "Fix the others"),
    ({"controls": [Control("rows", "R", [8, 9]), Control("rows", "S", [8, 9])]}, "controls", "Rename"),
    ({"start": {"row": 8}}, "start", "Spell"),
    ({"start": {"rows": 7}}, "rows", "offered"),
    ({"compute": lambda **_: []}, "compute", "Return panels"),
    ({"compute": lambda **_: ["words"]}, "compute", "Return panels"),
    ({"caption": lambda **_: ""}, "caption", "Say what"),
    ({"compute": lambda rows, **_: [HeatMap("Big", np.random.default_rng(rows).normal(size=(400, 300)))]}, "states", "fewer decimals"),
])
def test_an_explorer_refuses_by_field_and_remedy(changes, field, remedy):
    with pytest.raises(PositionContractError, match=remedy) as caught:
        explorer(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(("make", "field"), [
    (lambda: Control("a b", "L", [1, 2]), "Control.name"), (lambda: Control("a", "L", []), "a.values"), (lambda: Control("a", "L", [1]), "a.values"),
    (lambda: Control("a", "L", [1, 1]), "a.values"), (lambda: Control("a", "L", [1, 2], labels=["one"]), "a.labels"),
    (lambda: Control("a", "L", [1, 2], kind="dial"), "a.kind"),
    (lambda: HeatMap("H", [[1.0, np.nan]]), "H.values"), (lambda: HeatMap("H", np.zeros((0, 3))), "H.values"), (lambda: HeatMap("H", [1.0]), "H.values"),
    (lambda: HeatMap("H", [["a"]]), "H.values"), (lambda: HeatMap("H", [[1.0]], scale="rainbow"), "H.scale"), (lambda: HeatMap("H", [[1.0]], decimals=9), "H.decimals"),
    (lambda: HeatMap("H", [[1.0]], limits=(1, 1)), "H.limits"), (lambda: HeatMap("H", [[1.0, 2.0]], order=[0, 0]), "H.order"),
    (lambda: HeatMap("H", [[1.0]], masked=[[True, False]]), "H.masked"), (lambda: HeatMap("H", [[1.0]], rows=Axis("r", labels=["a", "b"])), "H.rows.labels"),
    (lambda: HeatMap("H", [[1.0]], row_hover={"n": [1, 2]}), "H.row_hover['n']"), (lambda: HeatMap("H", [[1.0]], cell_hover={"n": [1.0]}), "H.cell_hover['n']"),
    (lambda: Lines("L", [0, 1], [Series("s", [1.0])]), "L.s"), (lambda: Lines("L", [1, 0], [Series("s", [1.0, 2.0])]), "L.x"), (lambda: Lines("L", [0, 1], []), "L.series"),
    (lambda: Lines("L", [0, 1], [Series("s", [1.0, 2.0])], log_x=True), "L.log_x"), (lambda: Series("s", [np.inf]), "s.values"), (lambda: Series("s", [1.0], "dots"), "s.kind"),
    (lambda: Bars("B", ["a"], [1.0, 2.0]), "B.labels"), (lambda: Matrix("M", [["a"]], shade="diverging"), "M.shade"), (lambda: Matrix("M", [[1.0]], row_labels=["a", "b"]), "M.row_labels"),
    (lambda: Table("T", ["a"], [["x", "y"]]), "T.rows[0]"), (lambda: Badge("b", float("nan")), "b.value"), (lambda: Badge("b", 1, "fine"), "b.status"),
    (lambda: packing.encode(Lines("L", np.arange(40), [Series("s", np.linspace(0, 1e9, 40))], decimals=3)), "L.values"),
])
def test_a_panel_refuses_by_field(make, field):
    with pytest.raises(PositionContractError) as caught:
        make()
    assert caught.value.field == field


def test_the_display_holds_view_picture_and_text(demo):
    data, metadata = demo._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == demo.model_id
    assert data["text/plain"].split("\n") == ["A demo", "Question: How many rows?", "Shown: Rows: 32; Start: 0; Swap: False", "32 rows from 0.", "rows: 32", "exact: True", "gap: 0.5", "words"]
    assert metadata["image/png"]["alt"] == "A demo. 32 rows from 0."
    assert base64.b64decode(data["image/png"]) == demo.picture()
    assert repr(demo) == "Explorer('demo', rows=32, start=0, swap=False; 12 states)"


def test_the_saved_picture_is_the_same_bytes_and_follows_the_choice():
    from PIL import Image

    made = explorer()
    first = made.picture()
    assert explorer().picture() == first and b"Software" not in first
    made.choose(rows=8)
    assert made.picture() != first
    image = np.asarray(Image.open(io.BytesIO(first)).convert("RGBA"))
    assert image.shape[1] == 704 and len(np.unique(image.reshape(-1, 4), axis=0)) > 20, "6.4 inches at 110 dots, and something drawn on them"


def test_the_front_end_is_small_and_stays_inside_the_page(demo):
    front, look = demo._esm, demo._css
    assert len(front) < 26_000 and len(look) < 10_000, "both are stored with every widget"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|import\s*\(|fetch\(|@import|url\(", front + look)
    assert demo.size < Explorer.LIMIT and demo.size >= len(base64.b64encode(demo.block)) + len(demo.store)


def test_names_load_on_first_use_only():
    import subprocess
    import sys

    code = "import sys, positionlib.widgets as w; print('anywidget' in sys.modules, 'matplotlib' in sys.modules); w.Explorer; print('anywidget' in sys.modules, 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False", "True", "False"]
    with pytest.raises(AttributeError, match="sinusoidal_heatmap"):
        from positionlib import widgets

        widgets.sinusoidal_heatmaps
