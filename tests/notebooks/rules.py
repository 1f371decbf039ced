"""What every committed chapter keeps to. Each rule takes a notebook and returns one line for each breach."""
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import yaml

from book.tools.measure import EVIDENCE, alt_text, code_lines, has_picture

ROOT = Path(__file__).resolve().parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
LONGEST_CELL = 20

SKELETON = {  # the nine parts of a chapter, and the words that a heading may use for them
    "question": r"\bquestion\b",
    "worked case": r"\bby hand\b|\bworked\b",
    "predict": r"\bpredict",
    "formula": r"\bformulas?\b",
    "code": r"\bcode\b",
    "widget": r"\bwidgets?\b|\bmove\b|\bexplore\b",
    "failure": r"\bfail|\bbreak",
    "exercises": r"\bexercises?\b",
    "recap": r"\brecap\b",
}
# Folders that stand at the root of some machine, and Windows drives. A lone slash in prose or a fraction is none of these.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/:-])/(?:home|root|tmp|usr|var|opt|work|mnt|srv|private|Users|workspace|content|builds?)/[\w.]|\b[A-Z]:\\\w")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}", re.I)
TEXT = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")


def chapters_in_toc() -> list[Path]:
    """The notebooks that the table of contents names, whether they exist or not."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [ROOT / f"{name}.ipynb" for name in files if name.startswith("chapters/")]


def outputs(notebook: nbformat.NotebookNode) -> Iterator[tuple[int, nbformat.NotebookNode]]:
    """(index of the cell, output), over the code cells."""
    for index, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            yield index, output


def missing_parts(notebook: nbformat.NotebookNode) -> list[str]:
    """Parts of the skeleton that no heading names, and a missing "not shown here"."""
    markdown = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    # Prediction is often a box, whose title is a heading to the reader.
    titles = re.findall(r"^#{2,4}\s+(.+)$|^[:`]{3,}\{(?:admonition|dropdown)\}\s*(.+)$", markdown, re.M)
    said = "\n".join(heading or box for heading, box in titles)
    missing = [f"no heading for the part {name!r}" for name, words in SKELETON.items() if not re.search(words, said, re.I)]
    if not re.search(r"not\s+shown\s+here|does\s+not\s+show", markdown, re.I):
        missing.append("nothing says what is not shown here")
    return missing


def long_cells(notebook: nbformat.NotebookNode) -> list[str]:
    """Code cells of more than LONGEST_CELL lines, blank ones not counted."""
    return [f"cell {index} has {code_lines(cell.source)} lines, {LONGEST_CELL} at most"
            for index, cell in enumerate(notebook.cells)
            if cell.cell_type == "code" and code_lines(cell.source) > LONGEST_CELL]


def pictures_without_alt(notebook: nbformat.NotebookNode) -> list[str]:
    """Pictures whose cell has no alternative text in its metadata, or one that only names a file or a figure."""
    found = []
    for index, cell in enumerate(notebook.cells):
        if has_picture(cell) and len(alt_text(cell).split()) < 4:
            found.append(f"cell {index}: mystnb.image.alt must tell the finding, it is {alt_text(cell)!r}")
        for output in cell.get("outputs", []):
            page = "".join(output.get("data", {}).get("text/html", ""))
            if re.search(r"<img(?![^>]*\balt=[\"'][^\"']+)[^>]*>", page):
                found.append(f"cell {index}: an <img> without alt")
            if re.search(r"<svg(?![^>]*\baria-(?:label|labelledby|hidden)=)[^>]*>", page):
                found.append(f"cell {index}: an <svg> without aria-label")
    return found


def traces_of_a_machine(notebook: nbformat.NotebookNode) -> list[str]:
    """Absolute paths in sources and outputs, and memory addresses in outputs."""
    found = []
    for index, cell in enumerate(notebook.cells):
        found += [f"cell {index}, source: {match[0]!r}" for match in MACHINE_PATH.finditer(cell.source)]
    for index, output in outputs(notebook):
        said = [output.get("text", ""), *output.get("traceback", [])]
        said += [output.get("data", {}).get(mime, "") for mime in TEXT]
        for text in map("".join, said):
            found += [f"cell {index}, output: {match[0]!r}" for kind in (MACHINE_PATH, ADDRESS) for match in kind.finditer(text)]
    return found


def unpublishable_widgets(notebook: nbformat.NotebookNode) -> list[str]:
    """Widget views with no saved picture, or no text that says what the picture shows."""
    found = []
    for index, output in outputs(notebook):
        data = output.get("data", {})
        if WIDGET not in data:
            continue
        if not {"image/png", "image/svg+xml"} & set(data):
            found.append(f"cell {index}: a widget view with no picture behind it")
        text = "".join(data.get("text/plain", ""))
        if len(text.split()) < 5 or ADDRESS.search(text) or re.fullmatch(r"\w+\(.*\)", text.strip(), re.S):
            found.append(f"cell {index}: a widget's text must say what it shows, it is {text[:60]!r}")
    return found


def failed_cells(notebook: nbformat.NotebookNode) -> list[str]:
    """Cells that raised without saying that they would, and code cells that never ran."""
    found = [f"cell {index} was not executed" for index, cell in enumerate(notebook.cells)
             if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None]
    return found + [f"cell {index} raised {output.ename}" for index, output in outputs(notebook)
                    if output.output_type == "error"
                    and "raises-exception" not in notebook.cells[index].metadata.get("tags", [])]


def unknown_evidence(notebook: nbformat.NotebookNode) -> list[str]:
    """Evidence marks that are none of the four, and a chapter with fewer than three marks."""
    marks = [(index, mark) for index, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"
             for mark in re.findall(r"(?<![\w-])ev-([\w-]+)", cell.source)]
    found = [f"cell {index}: {mark!r} is no class of evidence" for index, mark in marks if mark not in EVIDENCE]
    return found + ([] if len(marks) >= 3 else [f"{len(marks)} claims carry a class of evidence, three are due"])


RULES = [missing_parts, long_cells, pictures_without_alt, traces_of_a_machine, unpublishable_widgets, failed_cells,
         unknown_evidence]
