"""Drop from a built book what no page needs, so that a chapter stays light.

MathJax: a page loads `tex-chtml.js`, the fonts beside it, and an extension when a formula calls for one; the other bundles, the
SVG output and the speech engine go (24 MB become 3 MB). Font Awesome: the theme draws its icons twice, with a web font and with a
script of 1.5 MB; the script goes, and so do the style rules of the icons that no page shows. The index of the search grows with the book
and is read on the page that shows the results alone.

Usage: python book/tools/prune.py _build/html
"""
import re
import shutil
import sys
from pathlib import Path

KEEP = ("tex-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")
ICON_SCRIPT = re.compile(r'<script[^>]*src="[^"]*/fontawesome\.js[^"]*"[^>]*></script>\s*')
SEARCH_INDEX = re.compile(r'<script[^>]*src="[^"]*searchindex\.js[^"]*"[^>]*></script>\s*')
ICON_RULE = re.compile(r'(?:\.fa-[\w-]+:{1,2}before,?\s*)+\{\s*content:\s*"[^"]*";?\s*\}')


def prune(mathjax: Path) -> int:
    """Delete every file under `mathjax` outside KEEP and return the number of bytes freed."""
    freed = 0
    for file in [f for f in mathjax.rglob("*") if f.is_file()]:
        name = file.relative_to(mathjax).as_posix()
        if not any(name == kept or name.startswith(kept + "/") for kept in KEEP):
            freed += file.stat().st_size
            file.unlink()
    for folder in sorted((d for d in mathjax.rglob("*") if d.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            shutil.rmtree(folder)
    return freed


def prune_icons(html: Path) -> int:
    """Leave the icons to the web font, keep the rules of those in use, and return the number of bytes freed."""
    used, freed = set(), 0
    for page in html.rglob("*.html"):
        text = page.read_text("utf-8")
        used.update(re.findall(r"fa-[\w-]+", text))
        page.write_text(ICON_SCRIPT.sub("", text), "utf-8")
    for script in html.glob("_static/scripts/fontawesome.js*"):
        freed += script.stat().st_size
        script.unlink()
    for script in html.glob("_static/**/*.js"):  # a script may show an icon too
        used.update(re.findall(r"fa-[\w-]+", script.read_text("utf-8")))
    for sheet in html.glob("_static/styles/*.css"):
        text = sheet.read_text("utf-8")
        kept = ICON_RULE.sub(lambda rule: rule[0] if used & set(re.findall(r"fa-[\w-]+", rule[0])) else "", text)
        freed += len(text) - len(kept)
        sheet.write_text(kept, "utf-8")
    return freed


def prune_search(html: Path) -> None:
    """Take the index of the search out of every page but the one that answers."""
    for page in html.rglob("*.html"):
        if page.name != "search.html":
            page.write_text(SEARCH_INDEX.sub("", page.read_text("utf-8")), "utf-8")


def main() -> int:
    html = Path(sys.argv[1])
    mathjax = html / "_static" / "mathjax"
    if not (mathjax / KEEP[0]).is_file():
        print(f"no {KEEP[0]} in {mathjax}: formulas would not be typeset")
        return 1
    prune(mathjax)
    prune_icons(html)
    prune_search(html)
    return 0


if __name__ == "__main__":
    sys.exit(main())
