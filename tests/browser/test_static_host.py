"""The static host by itself: shared models, restored bytes, and what stands where a widget cannot be drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ipywidgets.embed import embed_data

from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, HeatMap, Matrices, Matrix, Table
from tests.browser.conftest import ROOT

pytestmark = pytest.mark.browser


def explorer() -> Explorer:
    def compute(shift: int, flip: bool):
        table = np.arange(60).reshape(6, 10) / 7.0 + shift
        return [HeatMap("Ramp", table[::-1] if flip else table, rows=Axis("row", start=3), columns=Axis("column"), decimals=3, masked=table == table[2, 2],
                        column_hover={"half": np.arange(10) / 2}, cell_hover={"product": (np.arange(6), np.arange(10))}),
                Matrices([Matrix("signed", [[-1.5, 2.0], [0.0, 1.0]], shade="diverging", highlight=[(0, 1)], masked=[[False, False], [False, True]])]),
                Table("Words", ["shift"], [[str(shift)]])]

    return Explorer("ramp", "A ramp", "Where is zero?", [Control("shift", "Shift", [0, 1, 2]), Control("flip", "Flip", [False, True], labels=["no", "yes"])],
                    compute, lambda shift, flip: f"Shifted by {shift}.")


@pytest.fixture
def opened(chromium, tmp_path):
    """A page with these widget views and entries, opened from its file; ``page.faults`` collects what went wrong."""
    pages = []

    def made(entries: dict, views: list[str], after: str = ""):
        tags = "".join(f'<div><script type="application/vnd.jupyter.widget-view+json">{json.dumps({"model_id": view})}</script>{after}</div>' for view in views)
        state = json.dumps({"state": entries}).replace("</", r"<\/")
        (tmp_path / "page.html").write_text(f"""<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Widgets</title><body>{tags}
            <script type="application/vnd.jupyter.widget-state+json">{state}</script>
            <script defer src="{(ROOT / 'book/static/js/static-widgets.js').as_uri()}"></script></body></html>""", "utf-8")
        page = chromium.new_page()
        page.set_default_timeout(15_000)
        page.faults = []
        page.on("console", lambda message: message.type == "error" and page.faults.append(message.text))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function(f"document.querySelectorAll('.static-widget[data-ready], .static-widget-note').length === {len(views)}")
        pages.append(page)
        return page

    yield made
    for page in pages:
        page.close()


def test_two_views_of_one_model_move_together(opened):
    made = explorer()
    entries = embed_data([made], drop_defaults=False)["manager_state"]["state"]
    page = opened(entries, [made.model_id, made.model_id])
    first, second = (page.locator(".pg-explorer").nth(i) for i in (0, 1))
    first.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    for view in (first, second):
        assert view.locator(".pg-caption").inner_text() == "Shifted by 1."
        assert view.locator("input[type=range]").input_value() == "1"
        assert view.locator(".pg-table td").inner_text() == "1"
    second.locator("input[type=radio]").first.focus()
    page.keyboard.press("ArrowRight")
    assert [view.locator("input[type=radio]:checked").get_attribute("value") for view in (first, second)] == ["1", "1"]
    assert page.faults == []


@pytest.mark.parametrize("encoding", ["base64", "hex"])
def test_the_page_shows_the_numbers_that_python_stored(opened, encoding):
    made = explorer()
    entries = embed_data([made], drop_defaults=False)["manager_state"]["state"]
    buffer = entries[made.model_id]["buffers"][0]
    if encoding == "hex":
        buffer.update(data=made.block.hex(), encoding="hex")
    page = opened(entries, [made.model_id])
    stage = page.locator(".pg-stage")
    stage.focus()
    for key in ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"]:
        page.keyboard.press(key)
    value = made.state()[0].values[3, 2]
    assert page.locator(".pg-detail").inner_text() == f"row 6 · column 2 · value {value:.3f} · half 1 · product 6"
    page.keyboard.press("ArrowUp")
    assert page.locator(".pg-detail").inner_text() == "row 5 · column 2 · masked · half 1 · product 4"
    canvas = page.evaluate("""() => { const c = document.querySelector('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return [c.width, c.height, [...d.slice(0, 4)], [...d.slice(-4)], d[4 * (2 * c.width + 2) + 3]]; }""")
    assert canvas == [10, 6, [0x39, 0x26, 0x58, 255], shade_of(made), 0]
    cells = page.locator(".pg-matrix td")
    assert cells.all_inner_texts() == ["−1.50", "2.00", "0.00", "·"]
    assert "pg-lit" in cells.nth(1).get_attribute("class")
    assert page.faults == []


def shade_of(made: Explorer) -> list[int]:
    """Colour of the last cell: the 256-step ramp between nine stops, looked up where the value lies in the limits."""
    heat = made.state()[0]
    stops = np.array([[int(stop[i:i + 2], 16) for i in (1, 3, 5)] for stop in made.spec["ramps"]["sequential"]])
    step = np.floor(255 * (heat.values[-1, -1] - heat.limits[0]) / (heat.limits[1] - heat.limits[0]) + 0.5)
    at = step / 255 * 8
    return [int(np.floor(np.interp(at, range(9), stops[:, k]) + 0.5)) for k in range(3)] + [255]


def test_a_widget_that_fails_leaves_its_saved_picture(opened):
    made = explorer()
    entries = embed_data([made], drop_defaults=False)["manager_state"]["state"]
    entries[made.model_id]["state"]["_esm"] = "export default { render() { throw new Error('broken on purpose'); } };"
    dot = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    page = opened(entries, [made.model_id], after=f'<noscript><img alt="A ramp" src="{dot}"></noscript>')
    assert page.locator(".static-widget-note").inner_text().strip() == "This widget could not be drawn. Its saved picture:"
    assert page.locator(".static-widget-note img[alt='A ramp']").count() == 1
    assert page.locator(".static-widget").count() == 0
    assert len(page.faults) == 1 and "broken on purpose" in page.faults[0]


def test_a_widget_of_another_kind_says_that_it_needs_a_kernel(opened):
    page = opened({"x": {"model_module": "@jupyter-widgets/controls", "state": {}}}, ["x", "absent"])
    assert page.locator(".static-widget-note").all_inner_texts() == ["This widget needs a running notebook."] * 2
    assert page.faults == []
