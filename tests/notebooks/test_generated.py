"""The reference pages: nothing of the chapters is missing there, and what they say of the library is so."""
import ast
import re
from collections import Counter, defaultdict

import pytest

import positionlib as pl
from book.tools.generated import CLASSES, PAGES, ROOT, chapters_page, claims, claims_in, files, filled, prose, questions, receipt, section, speeds_page, symbol_rows, symbols_page
from positionlib.sections import SECTIONS
from tests.notebooks.rules import chapters_in_toc

PAGE = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "book/pages").glob("*.md"))}
SLOTS = {"index": ["chapters"], "evidence": ["speeds", "claims"], "symbols": ["symbols"], "kernels": ["costs", "gpu"]}


@pytest.mark.parametrize("page, slots", SLOTS.items())
def test_each_page_has_its_slots_once_and_they_are_filled(page, slots):
    assert re.findall(r"^% generated: (\w+)$", PAGE[page], re.M) == slots
    assert "% generated" not in filled(PAGE[page]) and all(PAGES[slot]() in filled(PAGE[page]) for slot in slots)


def test_every_mark_of_every_chapter_is_a_claim_in_the_list():
    marks = {name: len(re.findall(r'<span class="ev ev-', "\n".join(prose(name)))) for name in files()}
    found = claims()
    assert Counter(claim.chapter for claim in found) == Counter(marks)
    assert {claim.kind for claim in found} == set(CLASSES)
    page = filled(PAGE["evidence"])
    for claim in found:
        assert claim.text in page and claim.place, claim
        assert not re.search(r"<span|\n", claim.text), claim
    short = [claim for claim in found if len(claim.text.split()) < 3]
    assert short == []


MARK = '<span class="ev ev-{0}">{0}</span>'.format


@pytest.mark.parametrize("cell, said", [
    (f"One thing is so. The paper takes ten of them (section 3). {MARK('primary-paper')}", "The paper takes ten of them (section 3)."),
    (f"## Recap\n\n1. Rows are added. They are added once. {MARK('source-local')} Nothing else is. {MARK('interpretation')}", "Rows are added. They are added once."),
    (f"It says so itself, in words {MARK('primary-paper')} (section 3.5). And more.", "It says so itself, in words (section 3.5)"),
    (f"A rule of four words.\n\n$$\nx = 1\n$$\n\n{MARK('primary-paper')}", "A rule of four words."),
    (f"| source | what it does |\n| --- | --- |\n| DETR | adds rows in every layer {MARK('official-implementation')} |", "DETR; adds rows in every layer"),
    (f"What is shown [below](#here) holds for it. {MARK('interpretation')}", "What is shown below holds for it."),
])
def test_a_claim_is_the_sentence_before_its_mark(cell, said):
    first = next(claims_in("chapters/0x05-x", (cell,)))
    assert first.text == said and first.kind in CLASSES


def test_a_second_mark_in_one_item_is_a_claim_of_its_own():
    cell = f"## Recap\n\n1. Rows are added. They are added once. {MARK('source-local')} Nothing else is added anywhere. {MARK('interpretation')}"
    assert [(c.kind, c.text, c.place) for c in claims_in("x", (cell,))][1] == ("interpretation", "Nothing else is added anywhere.", "Recap")


def test_every_chapter_is_on_the_first_page_with_its_question():
    assert tuple(questions()) == SECTIONS and len(SECTIONS) == 24
    assert all(asked.endswith("?") for asked in questions().values())
    page = chapters_page()
    assert page.startswith(f"## {len(files())} chapters") and [ROOT / f"{name}.ipynb" for name in files()] == chapters_in_toc()
    for name in files():
        assert f"| [](../../{name}.ipynb) | {questions()[section(name)]} |" in page
    order = [SECTIONS.index(section(name)) for name in files()]
    assert order == sorted(order), "the table of contents keeps the order of the course"


def test_every_way_through_names_sections_of_the_course_and_every_section_is_on_one():
    named = re.findall(r"\b0x[0-9A-F]{2}[A-F]?\b", PAGE["how-to-read"].partition("## With and without")[0])
    assert set(named) == set(SECTIONS), set(named) ^ set(SECTIONS)
    for text in PAGE.values():
        assert set(re.findall(r"\b0x[0-9A-F]{2}[A-F]?\b", text)) <= set(SECTIONS)


def test_every_symbol_of_a_chapter_is_in_the_list():
    page = symbols_page()
    for name in files():
        for symbol, *_ in symbol_rows(prose(name)):
            for one in re.findall(r"\$[^$]+\$", symbol):
                line = next(line for line in page.splitlines() if line.startswith(f"- {one}: "))
                assert f"[{section(name)}](../../{name}.ipynb)" in line


def written_shapes():
    """Axes without a leading star of every jaxtyping annotation, by the name of argument, attribute or function; and every name."""
    shapes, names = defaultdict(set), set(pl.__all__)
    for path in (ROOT / "positionlib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            pairs = []
            if isinstance(node, ast.FunctionDef):
                pairs = [(a.arg, a.annotation) for a in node.args.args + node.args.kwonlyargs] + [(node.name, node.returns)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                pairs = [(node.target.id, node.annotation)]
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
            for name, hint in pairs:
                names.add(name)
                for text in re.findall(r"(?:Float|Int|Bool)\[Tensor, '([^']*)'\]", ast.unparse(hint) if hint is not None else ""):
                    shapes[name].add(re.sub(r"^\*\S+ ", "", text))
    return shapes, names


def test_the_symbols_of_the_library_have_the_shapes_of_its_annotations():
    shapes, _ = written_shapes()
    rows = [row for row in symbol_rows((PAGE["symbols"].partition("## Every symbol")[0],))]
    assert len(rows) >= 10
    for symbol, code, shape, _ in rows:
        assert shape.strip("`[]") in shapes[code.strip("`")], f"{symbol}: {code} is never {shape}; it is {sorted(shapes[code.strip('`')])}"


def test_the_glossary_is_sorted_and_its_names_are_the_library_s():
    _, names = written_shapes()
    glossary = re.search(r"```\{glossary\}\n(.*?)```", PAGE["symbols"], re.S)[1]
    terms = re.findall(r"^(\w[\w -]*)$", glossary, re.M)
    assert terms == sorted(terms) and len(terms) >= 15
    for name in re.findall(r"`(\w+)`", glossary):
        assert name in names | {"True", "False"}, name
    for kind in ("StateRows", "ScoreBias", "Relation", "Decomposition", "QKTransform", "VisibilityOnly"):
        assert f"`{kind}`" in glossary, "the glossary lists every kind of term"
    chapters = "\n".join(cell for name in files() for cell in prose(name)).lower()
    assert [term for term in terms if term not in chapters] == [], "a word that no chapter uses"


def test_the_speeds_on_the_page_are_those_of_the_receipt():
    """Recomputed from the times; a bar that was missed says so."""
    told, page = receipt(), speeds_page()
    for pair in told["pairs"]:
        row = next(line for line in page.splitlines() if f"{pair['peer']} (transformers {pair['transformers']})" in line)
        for mode, times in pair["seconds"].items():
            assert f"| {1000 * min(times['ours']):.0f} / {1000 * min(times['peer']):.0f} | {min(times['peer']) / min(times['ours']):.2f} (≥ {pair['bars'][mode]:g})" in row
        peak = pair["peak_bytes"]["forward"]
        assert f"1/{peak['peer'] / peak['ours']:.1f} (≤ 1/{1 / pair['bars']['peak memory']:g})" in row
    missed = [verdict for pair in told["pairs"] for verdict in pair["verdicts"] if not verdict["holds"]]
    assert page.count("missed") == len(missed) and told["date"] in page
