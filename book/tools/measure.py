"""Print the measured habits of each chapter: words, code, cells, asserts, figures, claims by class of evidence.

    python book/tools/measure.py chapters

The aims are at most 20 lines in a cell and 6 in the median, 5 words for a line of code, 120 words between code cells.
"""
import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat

EVIDENCE = ("source-local", "primary-paper", "official-implementation", "interpretation")
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
PICTURE = ("image/png", "image/svg+xml", "image/jpeg")

_NOT_PROSE = [
    re.compile(r"\$\$.*?\$\$", re.S), re.compile(r"\$[^$\n]*\$"),
    re.compile(r"^\s*:[\w-]+:.*$", re.M),  # options of a directive
    re.compile(r"\{[\w:-]+\}`[^`]*`|`[^`]*`|<[^>]+>|\]\([^)]*\)|\{[^}]*\}|\|[-:| ]+\|"),
]
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*|\d[\d.,]*")
_CLAIM = re.compile(r"\bev-(%s)\b" % "|".join(EVIDENCE))


def _without_fenced_code(markdown: str) -> str:
    """The text less its fences and what stands in a fence of code; what a {directive} holds is prose and stays."""
    kept, open_fences = [], []
    for line in markdown.splitlines():
        fence = re.match(r"\s*(`{3,}|:{3,})\s*(.*)$", line)
        if fence and fence[2]:
            open_fences.append(fence[2].startswith("{"))
        elif fence and open_fences:
            open_fences.pop()
        elif fence:
            open_fences.append(False)
        elif all(open_fences):
            kept.append(line)
    return "\n".join(kept)


def words(markdown: str) -> int:
    """Words of prose in a Markdown text: no code, formulas, directive lines or addresses."""
    markdown = _without_fenced_code(markdown)
    for pattern in _NOT_PROSE:
        markdown = pattern.sub(" ", markdown)
    return len(_WORD.findall(markdown))


def code_lines(source: str) -> int:
    """Lines of a code cell that are not blank."""
    return sum(bool(line.strip()) for line in source.splitlines())


def has_picture(cell: nbformat.NotebookNode) -> bool:
    return any(mime in output.get("data", {}) for output in cell.get("outputs", []) for mime in PICTURE)


def alt_text(cell: nbformat.NotebookNode) -> str:
    return str(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")).strip()


@dataclass(frozen=True)
class Habits:
    words: int
    code_lines: int
    open_code_lines: int  # those not folded away
    cell_lines: list[int]
    longest_prose: int    # words between two code cells
    asserts: int
    pictures: int
    pictures_with_alt: int
    claims: Counter

    @property
    def words_per_line(self) -> float:
        return self.words / max(1, self.open_code_lines)


def measure(notebook: nbformat.NotebookNode) -> Habits:
    """Count one chapter's habits."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    runs, claims = [0], Counter()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            runs.append(0)
        elif cell.cell_type == "markdown":
            runs[-1] += words(cell.source)
            claims.update(_CLAIM.findall(cell.source))
    pictures = [cell for cell in code if has_picture(cell)]
    return Habits(
        words=sum(runs), code_lines=sum(code_lines(cell.source) for cell in code),
        open_code_lines=sum(code_lines(c.source) for c in code if not FOLDED & set(c.metadata.get("tags", []))),
        cell_lines=[code_lines(cell.source) for cell in code], longest_prose=max(runs),
        asserts=sum(len(re.findall(r"^\s*assert\b", cell.source, re.M)) for cell in code),
        pictures=len(pictures), pictures_with_alt=sum(bool(alt_text(cell)) for cell in pictures), claims=claims)


def main() -> int:
    files = [f for arg in map(Path, sys.argv[1:]) for f in (sorted(arg.glob("*.ipynb")) if arg.is_dir() else [arg])]
    for file in files:
        habits = measure(nbformat.read(file, as_version=4))
        lines = habits.cell_lines or [0]
        print(f"{file.name}\n"
              f"  prose   {habits.words} words, {habits.words_per_line:.1f} for a line of open code, "
              f"at most {habits.longest_prose} between code cells\n"
              f"  code    {habits.code_lines} lines ({habits.open_code_lines} open) in {len(lines)} cells, "
              f"median {statistics.median(lines):g}, longest {max(lines)}; {habits.asserts} asserts\n"
              f"  figures {habits.pictures}, {habits.pictures_with_alt} with alt text\n"
              f"  claims  " + ", ".join(f"{name} {habits.claims[name]}" for name in EVIDENCE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
