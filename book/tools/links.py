"""Check a built book: every inner link leads somewhere, and no page loads anything from outside.

Usage: python book/tools/links.py _build/html
"""
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# (tag, attribute) of what a browser fetches by itself; an `a href` waits for the reader.
LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src"), ("audio", "src"),
          ("embed", "src"), ("object", "data"), ("image", "href"), ("use", "href")}
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s;]+)""")
LOADING_RELS = {"stylesheet", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "icon", "manifest"}


class Page(HTMLParser):
    """The ids a page defines, the addresses it links to, and those it loads."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value is not None}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.linked.append(values["href"])
        if tag == "link" and LOADING_RELS & set(values.get("rel", "").lower().split()):
            self.loaded.append(values.get("href", ""))
        if tag == "meta" and values.get("http-equiv", "").lower() == "refresh":
            self.linked.append(values.get("content", "").partition("url=")[2])
        self.loaded += IN_STYLES.findall(values.get("style", ""))
        self.loaded += [values[name] for loads, name in sorted(LOADED) if loads == tag and name in values]


def _outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "ftp"}


def problems(site: Path) -> Iterator[str]:
    """One line for each dead link, missing fragment and outside resource under `site`."""
    # The theme leaves templates among its static files; no reader meets them.
    files = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.relative_to(site).parts]
    pages = {file.resolve(): Page(file.read_text("utf-8")) for file in files}
    for sheet in sorted(site.rglob("*.css")):
        for address in IN_STYLES.findall(sheet.read_text("utf-8")):
            yield f"{sheet.relative_to(site)}: loads {address} from outside"
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        for address in page.loaded:
            if _outside(address):
                yield f"{name}: loads {address} from outside"
        for address in sorted(set(page.linked + page.loaded)):
            parts = urlsplit(address)
            if _outside(address) or parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {address} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: {address} names a place that is not on that page"


def main() -> int:
    site = Path(sys.argv[1])
    if not any(site.rglob("*.html")):
        print(f"no page under {site}: make book")
        return 1
    found = list(problems(site))
    print("\n".join(found) if found else "every link leads somewhere, and nothing is loaded from outside")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
