"""What the reference pages say about the chapters, made from the chapters when the book is built, so that it cannot go stale.

A page holds a line `% generated: NAME`; `fill` puts there what NAME makes:

- `chapters`: every chapter of the table of contents by part, with its question from `book/pages/questions.yml`;
- `claims`: every claim that carries a class of evidence, by class and chapter;
- `symbols`: every symbol of the chapters' symbol tables, and what it is in which chapter;
- `speeds`: the newest receipt of the processor's speed table;
- `costs`, `gpu`: what the kernels have to do, and what the newest receipt of a GPU says of them.

    python book/tools/generated.py claims        print one of them
"""
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("source-local", "primary-paper", "official-implementation", "interpretation")
MARK = re.compile(r'<span class="ev ev-([\w-]+)">[^<]*</span>')
_SLOT = re.compile(r"^% generated: (\w+)$", re.M)
_FENCED = re.compile(r"^(`{3,})(?!\{)[^\n]*\n.*?^\1\s*$|^\$\$.*?\$\$\s*$", re.M | re.S)
_SENTENCE = re.compile(r"(?<=[.?!])[\")*]*\s+(?=[A-Z*`$\[{(])")
_TRAILING = re.compile(r"^[,.]?\s*((?:\{cite[^}]*\}`[^`]*`\s*)?\([^()]*(?:\([^()]*\)[^()]*)*\)|\{cite[^}]*\}`[^`]*`)")
_RELATIVE = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


@dataclass(frozen=True)
class Claim:
    """A statement of a chapter and its class of evidence."""

    chapter: str
    place: str
    kind: str
    text: str


def parts() -> list[tuple[str, list[str]]]:
    """(caption, chapter files without suffix) of each part of the table of contents that has chapters."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    found = [(part["caption"], [e["file"] for e in part["chapters"] if e["file"].startswith("chapters/")]) for part in toc["parts"]]
    return [(caption, files) for caption, files in found if files]


def files() -> list[str]:
    """Every chapter, in order."""
    return [name for _, names in parts() for name in names]


@cache
def prose(name: str) -> tuple[str, ...]:
    """The markdown cells of a chapter."""
    notebook = nbformat.read(ROOT / f"{name}.ipynb", as_version=4)
    return tuple(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def section(name: str) -> str:
    """`0x05` of chapters/0x05-sinusoidal-table."""
    return Path(name).name.partition("-")[0]


def link(name: str) -> str:
    """A link to a chapter by its number, from a page of the book."""
    return f"[{section(name)}](../../{name}.ipynb)"


# --- claims -----------------------------------------------------------------------------------------------------------

def _blocks(cell: str) -> list[str]:
    """Paragraphs, list items and rows of tables; code and displayed formulas are taken out."""
    text = _FENCED.sub("\n\n", cell)
    text = re.sub(r"^\s*(`{3,}|:{3,}).*$|^:class:.*$", "", text, flags=re.M)
    pieces = re.split(r"\n\s*\n|\n(?=\s*(?:\d+\.|[-*]|\|)\s)", text)
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


def _plain(text: str) -> str:
    """One line that can stand in a list: no marker of a list, no link into the chapter."""
    text = re.sub(r"^(?:\d+\.|[-*])\s+", "", text.strip())
    return _RELATIVE.sub(r"\1", text).strip(" ,;")


def _said(before: str, whole: bool) -> str:
    """The last sentence before a mark, or all since the mark before; a sentence of fewer than five words takes the one before along."""
    sentences = [s for s in _SENTENCE.split(before.strip()) if s.strip()]
    count = len(sentences) if whole else 1
    while not whole and count < len(sentences) and len(" ".join(sentences[-count:]).split()) < 5:
        count += 1
    return " ".join(sentences[-count:]) if sentences else ""


def claims_in(name: str, cells: tuple[str, ...]) -> Iterator[Claim]:
    """Every claim of a chapter's markdown cells, in order; its place is the heading it stands under."""
    place = ""
    for cell in cells:
        recap, last = bool(re.match(r"##\s+Recap", cell)), ""
        for block in _blocks(cell):
            at = 0
            if heading := re.match(r"#{1,3}\s+(.*)", block):
                place = heading[1]
            if block.startswith("|"):
                row = "; ".join(filter(None, (MARK.sub("", field).strip(" ,;") for field in block.strip("|").split(" | "))))
                for mark in MARK.finditer(block):
                    yield Claim(name, place, mark[1], _plain(row))
                continue
            for mark in MARK.finditer(block):
                text = _plain(_said(block[at:mark.start()], recap or re.match(r"\d+\.\s", block) is not None))
                after = _TRAILING.match(block[mark.end():])
                at = mark.end() + (after.end() if after else 0)
                if len(text.split()) < 4:
                    text = f"{last} {text}".strip()
                last = text
                yield Claim(name, place, mark[1], f"{text} {after[1]}" if after else text)
            rest = MARK.sub("", block)
            last = _plain(_said(rest, False)) or last


def claims() -> list[Claim]:
    """Every claim of the book."""
    return [claim for name in files() for claim in claims_in(name, prose(name))]


def claims_page() -> str:
    """A table of counts, then the claims of each class by chapter."""
    found = claims()
    counts = Counter((claim.chapter, claim.kind) for claim in found)
    lines = ["| chapter | " + " | ".join(CLASSES) + " |", "| --- |" + " ---: |" * len(CLASSES)]
    lines += [f"| {link(name)} | " + " | ".join(str(counts[name, kind]) for kind in CLASSES) + " |" for name in files()]
    totals = [sum(claim.kind == kind for claim in found) for kind in CLASSES]
    lines += ["| all | " + " | ".join(map(str, totals)) + " |", ""]
    for kind, total in zip(CLASSES, totals):
        lines += [f"### {kind}: {total}", ""]
        lines += [f"- {link(claim.chapter)} *{claim.place}* · {claim.text}" for claim in found if claim.kind == kind] + [""]
    return "\n".join(lines)


# --- symbols ----------------------------------------------------------------------------------------------------------

def symbol_rows(cells: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The fields of every row of a table whose first heading is `symbol`."""
    for cell in cells:
        inside = False
        for line in cell.splitlines():
            if not line.startswith("|"):
                inside = False
                continue
            fields = tuple(field.strip() for field in re.split(r"(?<!\\)\|", line.strip().strip("|")))
            if fields[0] == "symbol":
                inside = True
            elif inside and not set(line) <= set("|-: "):
                yield fields


def _own(field: str, index: int, count: int) -> str:
    """What a field says of one symbol, where it lists one thing for each."""
    items = re.split(r"[,;] (?=`)|; ", field)
    return items[index] if len(items) == count else field


def symbols_page() -> str:
    """One list item a symbol: in which chapter it is what, in code and in shape."""
    uses: dict[str, list[str]] = {}
    for name in files():
        for symbol, *fields in symbol_rows(prose(name)):
            named = re.findall(r"\$[^$]+\$", symbol) or [symbol]
            for index, one in enumerate(named):
                what = (_own(field, index, len(named)) for field in fields)
                uses.setdefault(one, []).append(f"{link(name)} {', '.join(filter(None, what))}")
    order = sorted(uses, key=lambda s: (re.sub(r"[^a-zA-Z]", "", s.replace("\\", "")).lower(), s))
    return "\n".join(f"- {symbol}: " + " · ".join(uses[symbol]) for symbol in order)


# --- chapters ---------------------------------------------------------------------------------------------------------

def questions() -> dict[str, str]:
    """The question of each section of the course."""
    return yaml.safe_load((ROOT / "book/pages/questions.yml").read_text("utf-8"))


def chapters_page() -> str:
    """A heading with the count, and a table for each part."""
    asked, lines = questions(), [f"## {len(files())} chapters, a question each", ""]
    for caption, names in parts():
        lines += [f"### {caption}", "", "| chapter | question |", "| --- | --- |"]
        lines += [f"| [](../../{name}.ipynb) | {asked[section(name)]} |" for name in names] + [""]
    return "\n".join(lines)


# --- speeds -----------------------------------------------------------------------------------------------------------

def receipt() -> dict | None:
    """The newest receipt of the processor's speed table, or None."""
    written = sorted((ROOT / "book/receipts").glob("cpu-*.json"))
    return json.loads(written[-1].read_text("utf-8")) if written else None


def speeds_page() -> str:
    """One row a peer: times, speed-ups beside their bars, memory; and where and when it was measured."""
    told = receipt()
    if told is None:
        return "No receipt is published yet: not measured."
    call, device = told["call"], told["device"]
    shape = f"B = {call['batch']}, H = {call['heads']}, N = {call['length']}, D = {call['d_head']}, {call['dtype']}"
    lines = [f"Measured on {told['date']}: {device['processor']}, {device['threads']} threads, torch {told['versions']['torch']}; {shape}. Shortest times in ms, "
             "memory in MB of the forward pass, ours / the peer's; × is how many times faster, the bar in brackets.", "",
             "| mechanism | forward | × | forward + backward | × | peak memory | share |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for pair in told["pairs"]:
        fields = [f"{pair['mechanism']}, against {pair['peer']} (transformers {pair['transformers']})"]
        cells = {verdict["what"]: verdict for verdict in pair["verdicts"]}
        for mode, times in pair.get("seconds", {}).items():
            fields += [" / ".join(f"{1000 * min(times[side]):.0f}" for side in ("ours", "peer")), _against(f"{cells[mode]['value']:.2f}", f"≥ {cells[mode]['bar']:g}", cells[mode]["holds"])]
        for peak in [pair["peak_bytes"]["forward"]] if "peak_bytes" in pair else []:
            share = cells["peak memory"]
            fields += [f"{peak['ours'] / 1e6:.0f} / {peak['peer'] / 1e6:.0f}", _against(f"1/{1 / share['value']:.1f}", f"≤ 1/{1 / share['bar']:g}", share["holds"])]
        lines.append("| " + " | ".join(fields + ["not timed: no agreement"] * (len(fields) == 1)) + " |")
    return "\n".join(lines)


def _against(value: str, bar: str, holds: bool) -> str:
    return f"{value} ({bar}{'' if holds else ', missed'})"


# --- kernels ----------------------------------------------------------------------------------------------------------

def kernels_page(table: str) -> str:
    """A table of :mod:`positionlib.bench.gpu_page`, which no other page needs torch for."""
    from positionlib.bench import gpu_page

    return getattr(gpu_page, f"{table}_page")()


PAGES = {"chapters": chapters_page, "claims": claims_page, "symbols": symbols_page, "speeds": speeds_page,
         "costs": lambda: kernels_page("costs"), "gpu": lambda: kernels_page("gpu")}


def filled(text: str) -> str:
    """A page with each slot replaced by what it names."""
    return _SLOT.sub(lambda slot: PAGES[slot[1]](), text)


def fill(app, docname: str, source: list[str]) -> None:
    """Sphinx's `source-read`: fill the slots of the book's own pages."""
    if docname.startswith("book/pages/"):
        source[0] = filled(source[0])


if __name__ == "__main__":
    print(PAGES[sys.argv[1]]())
