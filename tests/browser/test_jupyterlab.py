"""The same widgets in JupyterLab with a kernel: the keyboard moves them, and Python reads the chosen state back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import nbformat
import pytest

from tests.browser.conftest import ROOT

pytestmark = pytest.mark.browser
SMALL = """
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Series
def compute(base, sign):
    return [Lines("Powers", [0, 1, 2, 3], [Series("y", [sign * base**k for k in range(4)])]), Badges([Badge("last", sign * base**3)])]
explorer = Explorer("small", "Powers", "How fast?", [Control("base", "Base", [2, 3, 5]), Control("sign", "Sign", [1, -1], kind="choice")],
                    compute, lambda base, sign: f"The last power is {sign * base**3}.")
explorer
"""
REAL = "from positionlib import widgets\nheat = widgets.sinusoidal_heatmap()\nheat"
CELLS = [SMALL, "print('chosen', explorer.choice)", "explorer.choose(base=2, sign=1)", REAL, "print('heat', heat.index)"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own, with its own settings, serving one notebook."""
    home = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, home / "try.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {name: str(home / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
                                                       "JUPYTERLAB_WORKSPACES_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1",
             "--IdentityProvider.token=", f"--ServerApp.root_dir={home}"],
            env=os.environ | own | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=2)
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert server.poll() is None, (home / "log").read_text()[-2000:]
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def test_arrow_keys_reach_python_and_python_reaches_the_page(chromium, lab):
    from playwright.sync_api import expect

    context = chromium.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(40_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{lab}/lab/tree/try.ipynb?reset")
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.nth(4).wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()

    def run(i: int) -> None:
        # A key pressed before JupyterLab takes keys is lost without a trace: press until the cell's prompt says that it has started.
        prompt = cells.nth(i).locator(".jp-InputPrompt")
        for _ in range(4):
            cells.nth(i).locator(".cm-content").click()
            page.keyboard.press("Control+Enter")
            try:
                return expect(prompt).not_to_have_text("[ ]:", timeout=8_000)
            except AssertionError:
                continue
        raise AssertionError(f"cell {i} never started")

    run(0)
    widget = cells.nth(0).locator(".pg-explorer")
    widget.wait_for()
    assert "The last power is 8." in widget.locator(".pg-caption").inner_text()
    slider = widget.locator("input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert slider.evaluate("(e) => document.activeElement === e"), "JupyterLab took the focus away from the slider"
    widget.locator("input[type=radio]").first.focus()
    page.keyboard.press("ArrowDown")
    assert "The last power is -125." in widget.locator(".pg-caption").inner_text()

    run(1)
    said = cells.nth(1).locator(".jp-OutputArea-output", has_text="chosen")
    said.wait_for()
    assert said.inner_text().strip() == "chosen {'base': 5, 'sign': -1}"

    run(2)
    page.wait_for_function("() => document.querySelector('.pg-explorer .pg-caption').textContent === 'The last power is 8.'")
    assert slider.evaluate("(e) => e.value") == "0"

    run(3)
    real = cells.nth(3).locator(".pg-explorer")
    real.wait_for()
    heat = real.locator("input[type=range]").first
    start = int(heat.evaluate("(e) => e.value"))
    heat.focus()
    page.keyboard.press("ArrowRight" if start == 0 else "ArrowLeft")
    moved = int(heat.evaluate("(e) => e.value"))
    assert abs(moved - start) == 1
    run(4)
    said = cells.nth(4).locator(".jp-OutputArea-output", has_text="heat")
    said.wait_for()
    assert said.inner_text().strip().startswith(f"heat [{moved},")

    day = real.evaluate("(e) => getComputedStyle(e).backgroundColor")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert real.evaluate("(e) => getComputedStyle(e).backgroundColor") != day
    assert errors == []
    context.close()
