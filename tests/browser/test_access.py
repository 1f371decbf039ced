"""Every built page can be read: on a phone, in the dark, by keyboard, with a screen reader."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tests.browser.conftest import PAGES, READ

pytestmark = pytest.mark.browser
# Failures of the theme itself, outside what the book writes.
THEME = {"label-content-name-mismatch", "region"}

# WCAG contrast of the text of every element that matches, against the nearest opaque background.
CONTRAST = """(selector) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = (rgb) => rgb.slice(0, 3).reduce((sum, v, i) => { v /= 255; return sum + [0.2126, 0.7152, 0.0722][i] * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
    const a = light(rgba(getComputedStyle(e).color)), b = light(behind(e));
    return { ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text: e.textContent.trim().slice(0, 40), tag: e.tagName + "." + e.className };
  });
}"""


@pytest.mark.parametrize("path", READ)
def test_no_page_is_wider_than_a_phone(visit, path):
    page = visit("http", path, width=360).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("[...document.querySelectorAll('.pg-explorer')].every((e) => e.getBoundingClientRect().right <= 360)")


@pytest.mark.parametrize("path", READ)
def test_no_line_begins_with_the_mark_after_a_formula(visit, path):
    page = visit("http", path, width=360).page
    parted = page.evaluate("""[...document.querySelectorAll('.bd-article span.math')].filter((e) => e.checkVisibility() && /^[.,;:!?)\\]]/.test(e.nextSibling?.data ?? '')).filter((e) => {
        const mark = document.createRange();
        mark.setStart(e.nextSibling, 0);
        mark.setEnd(e.nextSibling, 1);
        return mark.getBoundingClientRect().left < e.getBoundingClientRect().left;
    }).map((e) => e.parentElement.textContent.slice(0, 60))""")
    assert parted == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", READ)
def test_text_stands_out_in_both_themes(visit, path, theme):
    page = visit("http", path, theme=theme).page
    page.evaluate("document.querySelectorAll('.bd-article details').forEach((d) => { d.open = true; })")
    boxes = ":is(.admonition, .proof, .exercise, .solution)"
    measured = page.evaluate(CONTRAST, f".pg-explorer *, {boxes}, {boxes} *, .bd-article p, .bd-article li")
    assert len(measured) > 5
    assert [m for m in measured if m["ratio"] < 4.5] == []


@pytest.mark.parametrize("path", PAGES)
def test_a_widget_follows_the_theme(visit, path):
    page = visit("http", path).page
    look = "(e) => [getComputedStyle(e).backgroundColor, getComputedStyle(e.querySelector('.pg-caption')).color]"
    for widget in page.query_selector_all(".pg-explorer"):
        page.evaluate("document.documentElement.dataset.theme = 'light'")
        day = widget.evaluate(look)
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        night = widget.evaluate(look)
        assert day[0] != night[0] and day[1] != night[1], f"{widget.get_attribute('data-name')}: {day} by day and {night} by night"


@pytest.mark.parametrize("path", READ)
def test_names_headings_and_alternatives(visit, path):
    page = visit("http", path).page
    unnamed = page.evaluate("""[...document.querySelectorAll('.bd-article :is(input, select, textarea)')]
        .filter((e) => e.type !== 'hidden' && !e.labels?.length && !e.getAttribute('aria-label')).map((e) => e.outerHTML)""")
    assert unnamed == []
    images = page.evaluate("[...document.querySelectorAll('.bd-article img')].map((e) => [e.getAttribute('alt') ?? '', e.getAttribute('src')])")
    assert [src for alt, src in images if len(alt) < 10 or src.endswith(alt) or "_images/" in alt] == []
    assert page.evaluate("[...document.querySelectorAll('mjx-merror')].map((e) => e.textContent)") == [], "a formula that MathJax could not set"
    levels = page.evaluate("[...document.querySelectorAll('.bd-article :is(h1, h2, h3, h4, h5, h6)')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:])), f"heading levels {levels}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", READ)
def test_axe_finds_nothing(visit, path, theme):
    page = visit("http", path, theme=theme).page
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false }).then((r) => r.violations.map((v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160))]))")
    assert [violation for violation in found if violation[0] not in THEME] == []
