"""What a reader downloads: a chapter with its widgets stays under 1.5 MB, MathJax and its fonts aside."""

from __future__ import annotations

import pytest

from tests.browser.conftest import PAGES

LIMIT = 1_500_000

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("path", PAGES)
def test_a_chapter_is_light(chromium, origins, path):
    page, sizes = chromium.new_page(), {}
    page.on("response", lambda answer: sizes.__setitem__(answer.url, len(answer.body())))
    page.goto(f"{origins['http']}/{path}", wait_until="networkidle")
    page.close()
    own = {url: size for url, size in sizes.items() if url.startswith("http") and "/mathjax/" not in url}
    heaviest = sorted(((size, url.rpartition("/")[2]) for url, size in own.items()), reverse=True)[:4]
    assert path.rpartition("/")[2] in {name for _, name in heaviest} and sum(own.values()) < LIMIT, (
        f"{path} loads {sum(own.values()):,} bytes, more than {LIMIT:,}; the heaviest: {heaviest}")
