"""Every widget of every built page: it draws, each control answers the keyboard, and nothing goes wrong or outside."""

from __future__ import annotations

import statistics

import pytest

from tests.browser.conftest import KEY_PRESS, PAGES

pytestmark = pytest.mark.browser
CONTROLS = ".pg-control :is(input[type=range], select, input[type=radio]:checked)"


def picture(widget) -> str:
    """What a reader sees of the panels: their markup and every pixel of their canvases."""
    return widget.evaluate("""(root) => root.querySelector('.pg-panels').innerHTML
        + [...root.querySelectorAll('canvas')].map((canvas) => canvas.toDataURL()).join()""")


def step_keys(control) -> tuple[str, str]:
    """A key that moves this control from where it stands, and the key that moves it back."""
    forward, back = ("ArrowDown", "ArrowUp") if control.evaluate("(e) => e.tagName") == "SELECT" else ("ArrowRight", "ArrowLeft")
    at_end = control.evaluate("(e) => e.type === 'range' ? e.value === e.max : e.tagName === 'SELECT' && e.selectedIndex === e.length - 1")
    return (back, forward) if at_end else (forward, back)


def widgets_of(page) -> list:
    found = page.query_selector_all(".pg-explorer")
    assert found, "expected at least one drawn widget on a chapter's page, found none"
    return found


@pytest.mark.parametrize("how", ["http", "file"])
@pytest.mark.parametrize("path", PAGES)
def test_every_control_moves_the_picture(visit, path, how):
    watched = visit(how, path)
    page = watched.page
    assert not page.query_selector_all(".static-widget-note"), "a widget could not be drawn"
    for widget in widgets_of(page):
        name, before = widget.get_attribute("data-name"), picture(widget)
        caption = widget.query_selector(".pg-caption")
        assert caption.inner_text().strip(), f"{name}: the caption is empty"
        for place, control in enumerate(widget.query_selector_all(CONTROLS)):
            control.focus()
            forward, back = step_keys(control)
            seen, presses = before, 0
            while seen == before and presses < 6:
                page.keyboard.press(forward)
                seen, presses = picture(widget), presses + 1
            assert seen != before, f"{name}: control {place} never changed the picture in {presses} presses of {forward}"
            for _ in range(presses):
                page.keyboard.press(back)
            assert picture(widget) == before, f"{name}: control {place} moved there and back does not give the first picture again"
    assert watched.faults == []


@pytest.mark.parametrize("path", PAGES)
def test_pixels_change_and_numbers_can_be_read_by_keyboard(visit, path):
    page = visit("http", path).page
    for widget in widgets_of(page):
        panels, control = widget.query_selector(".pg-panels"), widget.query_selector(CONTROLS)
        for stage in widget.query_selector_all(".pg-stage"):
            read = set()
            stage.focus()
            for key in ("ArrowRight", "ArrowRight", "End", "Home"):
                page.keyboard.press(key)
                read.add(stage.evaluate("(e) => e.parentElement.querySelector('.pg-detail').textContent"))
            assert len(read) >= 3 and all("·" in words for words in read), f"arrow keys read {read}"
        page.evaluate("document.activeElement.blur()")
        before = panels.screenshot()
        control.focus()
        page.keyboard.press(step_keys(control)[0])
        assert panels.screenshot() != before, f"{widget.get_attribute('data-name')}: a key press left the same pixels"


@pytest.mark.parametrize("path", PAGES)
def test_script_time_of_a_key_press(visit, path, record_property):
    page = visit("http", path).page
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def script_seconds() -> float:
        return next(m["value"] for m in session.send("Performance.getMetrics")["metrics"] if m["name"] == "ScriptDuration")

    for widget in widgets_of(page):
        times = []
        for control in widget.query_selector_all(CONTROLS):
            control.focus()
            for key in step_keys(control) * 4:
                start = script_seconds()
                page.keyboard.press(key)
                times.append(1000 * (script_seconds() - start))
        record_property(KEY_PRESS + widget.get_attribute("data-name"), times)
        assert statistics.median(times) < 16, f"{widget.get_attribute('data-name')}: median {statistics.median(times):.1f} ms of script a key press"


@pytest.mark.parametrize("path", PAGES)
def test_the_saved_picture_stands_without_javascript(visit, path):
    page = visit("http", path, script=False).page
    views = page.locator('script[type="application/vnd.jupyter.widget-view+json"]')
    for i in range(views.count()):
        image = views.nth(i).locator("xpath=following::img[1]")
        assert image.is_visible() and image.evaluate("(e) => e.naturalWidth") > 300
        assert len(image.get_attribute("alt")) > 10
