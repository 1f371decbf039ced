"""The small tools of the book: links, MathJax, measures."""
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book.tools.links import problems
from book.tools.measure import measure, words
from book.tools.prune import prune, prune_icons, prune_search


def site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>", "utf-8")
    return list(problems(folder))


def test_sound_links_pass(tmp_path):
    assert site(tmp_path, a='<h2 id="x">X</h2><a href="#x">x</a><a href="b.html#y">y</a>',
                b='<span id="y"></span><a href="a.html">a</a><a href="https://example.org/">out</a>') == []


@pytest.mark.parametrize("body, problem", [
    ('<a href="c.html">c</a>', "a.html: c.html leads to no file"),
    ('<a href="#z">z</a>', "a.html: #z names a place that is not on that page"),
    ('<a href="b.html#z">z</a>', "a.html: b.html#z names a place that is not on that page"),
    ('<img src="x.png" alt="x">', "a.html: x.png leads to no file"),
    ('<meta http-equiv="Refresh" content="0; url=c.html">', "a.html: c.html leads to no file"),
    ('<script src="https://cdn.example.org/x.js"></script>', "a.html: loads https://cdn.example.org/x.js from outside"),
    ('<link rel="stylesheet" href="//fonts.example.org/x">', "a.html: loads //fonts.example.org/x from outside"),
    ('<img src="https://example.org/x.png" alt="x">', "a.html: loads https://example.org/x.png from outside"),
    ('<p style="background: url(https://example.org/x.png)">', "a.html: loads https://example.org/x.png from outside"),
])
def test_dead_links_and_outside_resources_are_named(tmp_path, body, problem):
    assert site(tmp_path, a=body, b="") == [problem]


def test_styles_may_not_load_from_outside(tmp_path):
    (tmp_path / "x.css").write_text("@import 'https://fonts.example.org/a.css'; p { background: url(\"local.png\") }")
    assert site(tmp_path, a="") == ["x.css: loads https://fonts.example.org/a.css from outside"]


def test_what_a_page_loads_of_mathjax_is_kept(tmp_path):
    kept = ["tex-chtml.js", "output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff", "input/tex/extensions/cancel.js"]
    dropped = ["tex-svg.js", "sre/mathmaps/en.json", "output/svg.js"]
    for name in kept + dropped:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("xx")
    assert prune(tmp_path) == 2 * len(dropped)
    assert sorted(f.relative_to(tmp_path).as_posix() for f in tmp_path.rglob("*") if f.is_file()) == sorted(kept)
    assert not (tmp_path / "sre").exists()


def test_icons_in_use_keep_their_rules_and_lose_their_script(tmp_path):
    styles, scripts = tmp_path / "_static" / "styles", tmp_path / "_static" / "scripts"
    for folder in (styles, scripts):
        folder.mkdir(parents=True)
    (styles / "theme.css").write_text('.fa-bars:before,.fa-navicon:before{content:"\\f0c9"}.fa-moon:before{content:"m"}.fa-cat:before{content:"c"}p{color:red}')
    (scripts / "fontawesome.js").write_text("x" * 10)
    (scripts / "own.js").write_text("show('fa-moon')")
    (tmp_path / "a.html").write_text('<script defer src="_static/scripts/fontawesome.js?v=1"></script><i class="fa-navicon"></i>')
    assert prune_icons(tmp_path) == 10 + len('.fa-cat:before{content:"c"}')
    assert (styles / "theme.css").read_text() == '.fa-bars:before,.fa-navicon:before{content:"\\f0c9"}.fa-moon:before{content:"m"}p{color:red}'
    assert (tmp_path / "a.html").read_text() == '<i class="fa-navicon"></i>' and not (scripts / "fontawesome.js").exists()


@pytest.mark.parametrize("text, count", [
    ("Two words.", 2),
    ("The score $q^\\top k$ of `x`, see {cite:p}`vaswani2017attention`.", 4),
    ("$$\na + b\n$$\nOne", 1),
    ("Before\n```python\nx = 1\n```\nbetween\n```python\ny = 2\n```\nafter", 3),
    (":::{admonition} Predict\n:class: predict\nWhich sign?\n:::\nThen", 3),
    ("````{exercise}\nProve it:\n```python\nx\n```\nnow\n````", 3),
    ("| a | b |\n|---|---|\n| one | two |", 4),
])
def test_words_are_prose_alone(text, count):
    assert words(text) == count


def test_a_chapter_is_measured():
    picture = new_output("display_data", data={"image/png": "QUJD"})
    cells = [new_markdown_cell("one two three ev-primary-paper"),
             new_code_cell("x = 1\n\nassert x == 1, 'one'", outputs=[picture], metadata={"mystnb": {"image": {"alt": "A dot"}}}),
             new_markdown_cell("four five"), new_markdown_cell("six ev-interpretation"),
             new_code_cell("plot(x)", outputs=[picture], metadata={"tags": ["hide-input"]})]
    habits = measure(new_notebook(cells=cells))
    assert (habits.code_lines, habits.open_code_lines, habits.cell_lines, habits.asserts) == (3, 2, [2, 1], 1)
    assert (habits.pictures, habits.pictures_with_alt) == (2, 1)
    assert (habits.words, habits.longest_prose, habits.words_per_line) == (8, 4, 4.0)
    assert habits.claims == {"primary-paper": 1, "interpretation": 1}
    assert nbformat.validator.isvalid(new_notebook(cells=cells))


def test_the_search_index_is_read_where_the_search_answers_alone(tmp_path):
    (tmp_path / "chapters").mkdir()
    pages = {name: tmp_path / name for name in ("search.html", "chapters/a.html")}
    for page in pages.values():
        page.write_text('<script src="../_static/searchtools.js"></script><script src="../searchindex.js" defer></script><p>searchindex.js</p>')
    prune_search(tmp_path)
    assert pages["search.html"].read_text().count("searchindex.js") == 2
    assert pages["chapters/a.html"].read_text() == '<script src="../_static/searchtools.js"></script><p>searchindex.js</p>'
