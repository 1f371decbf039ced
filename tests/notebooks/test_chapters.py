"""The committed chapters keep to the rules, exist where the table of contents says, and are in normal form."""
import nbformat
import pytest

from book.tools.execute import normal_form
from tests.notebooks.rules import RULES, ROOT, chapters_in_toc

CHAPTERS = chapters_in_toc()


def test_the_table_of_contents_and_the_folder_name_the_same_chapters():
    assert CHAPTERS, "the table of contents names no chapter"
    assert {path.name for path in (ROOT / "chapters").glob("*.ipynb")} == {path.name for path in CHAPTERS}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_keeps_to_the_rule(chapter, rule):
    breaches = rule(nbformat.read(chapter, as_version=4))
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_committed_in_normal_form(chapter):
    text = chapter.read_text("utf-8")
    assert normal_form(nbformat.reads(text, as_version=4), chapter.stem) == text, "run: make notebooks"
