"""The built book in a real browser, with every request to anywhere else refused and written down."""

from __future__ import annotations

import functools
import http.server
import shutil
import statistics
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
PAGES = [f"chapters/{path.stem}.html" for path in sorted((ROOT / "chapters").glob("*.ipynb"))]
READ = [f"book/pages/{path.stem}.html" for path in sorted((ROOT / "book" / "pages").glob("*.md"))] + PAGES
KEY_PRESS = "key press of "  # a test's property: a widget, and the script milliseconds of each press


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def origins() -> dict[str, str]:
    """Where the built book stands, over http and as files."""
    if not (HTML / "index.html").exists():
        pytest.fail("There is no built book in _build/html: run `make book` first.", pytrace=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"http": f"http://127.0.0.1:{server.server_address[1]}", "file": HTML.as_uri()}
    server.shutdown()


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium that cannot resolve any name but this machine's."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.fail("No Chromium on the PATH: install the Debian package `chromium`.", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"])
        yield browser
        browser.close()


class Watched:
    """A page and everything it did that a page of the book must not do."""

    def __init__(self, page, origin: str) -> None:
        self.page, self.faults = page, []

        def admit(route) -> None:
            if route.request.url.startswith((origin, "data:", "blob:")):
                return route.continue_()
            self.faults.append(f"request to {route.request.url}")
            return route.abort()

        page.route("**/*", admit)
        page.on("console", lambda message: message.type == "error" and self.faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))
        page.on("response", lambda answer: answer.status >= 400 and self.faults.append(f"{answer.status}: {answer.url}"))


@pytest.fixture(scope="session")
def visit(chromium, origins):
    """``visit("http", "chapters/x.html", width=360, theme="dark")``: a page of the book, its widgets drawn. Each is loaded once."""
    opened: dict[tuple, Watched] = {}

    def show(how: str, path: str, width: int = 1200, theme: str = "light", script: bool = True) -> Watched:
        if (how, path, script) not in opened:
            context = chromium.new_context(viewport={"width": width, "height": 1000}, reduced_motion="reduce", java_script_enabled=script)
            context.set_default_timeout(20_000)
            watched = opened[how, path, script] = Watched(context.new_page(), origins[how])
            watched.page.goto(f"{origins[how]}/{path}", wait_until="load")
            if script:
                watched.page.wait_for_function("""() => [...document.querySelectorAll('script[type="application/vnd.jupyter.widget-view+json"]')]
                    .every((view) => view.previousElementSibling?.dataset.ready || view.previousElementSibling?.className === 'static-widget-note')""")
        watched = opened[how, path, script]
        watched.page.set_viewport_size({"width": width, "height": 1000})
        if script:
            watched.page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; return new Promise(requestAnimationFrame); }", theme)
        return watched

    yield show
    for watched in opened.values():
        watched.page.context.close()


def pytest_terminal_summary(terminalreporter) -> None:
    told = {name: times for report in terminalreporter.getreports("passed") for name, times in report.user_properties if name.startswith(KEY_PRESS)}
    if not told:
        return
    terminalreporter.section("script time of a key press (goal: 16 ms)")
    for name, times in sorted(told.items()):
        terminalreporter.write_line(f"{name.removeprefix(KEY_PRESS)}: median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms, {len(times)} presses")
