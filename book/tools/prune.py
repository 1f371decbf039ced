"""Drop from a built book the parts of MathJax that no page loads (24 MB become 3 MB).

A page loads `tex-chtml.js`, the fonts beside it, and an extension when a formula calls for one; the other bundles,
the SVG output and the speech engine stay behind. Usage: python book/tools/prune.py _build/html
"""
import shutil
import sys
from pathlib import Path

KEEP = ("tex-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")


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


def main() -> int:
    mathjax = Path(sys.argv[1]) / "_static" / "mathjax"
    if not (mathjax / KEEP[0]).is_file():
        print(f"no {KEEP[0]} in {mathjax}: formulas would not be typeset")
        return 1
    prune(mathjax)
    return 0


if __name__ == "__main__":
    sys.exit(main())
