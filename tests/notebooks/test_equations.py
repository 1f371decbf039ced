"""Every equation and number of the source article names the assert that proves it: book/pages/equations.yml.

A proof is a chapter and words of one assert's message in it, or a test by its node id. Chapters are executed and tests run by the same
suite, so what is named here has run; that it is there at all, once and with a condition, is proved here.
"""
import ast
from collections import Counter
from functools import cache

import nbformat
import pytest
import yaml

from positionlib.sections import SECTIONS
from tests.notebooks.rules import ROOT, chapters_in_toc

LIST = yaml.safe_load((ROOT / "book/pages/equations.yml").read_text("utf-8"))
EQUATIONS = {"0x01": 16, "0x06": 20}  # display equations of the article's section, counted there


@cache
def asserts(path: str) -> tuple[tuple[str, str], ...]:
    """(condition, message) of every assert in a chapter's code."""
    cells = nbformat.read(ROOT / path, as_version=4).cells
    nodes = [node for cell in cells if cell.cell_type == "code" for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Assert)]
    return tuple((ast.unparse(node.test), _words(node.msg)) for node in nodes if node.msg is not None)


def _words(message: ast.expr) -> str:
    return "".join(str(part.value) for part in ast.walk(message) if isinstance(part, ast.Constant))


def proved(proof: str) -> str:
    """The condition that an entry's proof names; an AssertionError when there is none, or more than one."""
    path, _, words = proof.partition(": ")
    if path.endswith(".ipynb"):
        assert ROOT / path in chapters_in_toc(), f"{path} is no chapter"
        found = {condition for condition, message in asserts(path) if words in message}
        assert len(found) == 1, f"{proof}: {len(found)} asserts say so, expected one"
        return found.pop()
    path, _, name = proof.partition("::")
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name and name.startswith("test_")]
    assert len(found) == 1, f"{proof}: no such test"
    assert any(isinstance(node, (ast.Assert, ast.With)) for node in ast.walk(found[0])) or "assert" in ast.unparse(found[0]), f"{proof} asserts nothing"
    return ast.unparse(found[0])


@pytest.mark.parametrize("entry", LIST, ids=lambda entry: f"{entry['section']} {entry.get('equation') or entry.get('number')}")
def test_a_named_proof_is_there(entry):
    assert sorted(entry) in (["equation", "proof", "section"], ["number", "proof", "section"])
    assert entry["section"] in SECTIONS
    assert proved(entry["proof"]) not in ("True", "1")


def test_the_counts_are_the_articles():
    found = Counter(entry["section"] for entry in LIST if "equation" in entry)
    assert {section: found[section] for section in EQUATIONS} == EQUATIONS


@pytest.mark.parametrize("proof", ["chapters/0x01-permutation.ipynb: words that nobody wrote", "chapters/none.ipynb: x",
                                   "tests/notebooks/test_equations.py::test_that_is_not_there"])
def test_a_proof_that_is_not_there_is_noticed(proof):
    with pytest.raises(AssertionError):
        proved(proof)
