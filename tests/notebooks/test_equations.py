"""Every display equation, statement and number of the source article names the assert that proves it: book/pages/equations.yml.

A proof is a chapter and words of one assert's message in it, or a test by its node id. Chapters are executed and tests run by the same
suite, so what is named here has run; that it is there at all, once and with a condition, is proved here. That it fails when the
equation is perturbed is proved by tests/notebooks/perturb.py.
"""
import ast
import re
from collections import Counter

import pytest

from positionlib.sections import SECTIONS
from tests.notebooks.equations import LIST, told
from tests.notebooks.rules import ROOT, chapters_in_toc

EQUATIONS = {  # display equations of each section of the article, counted there: 99
    "0x01": 16, "0x02A": 1, "0x03": 1, "0x03A": 7, "0x05": 6, "0x06": 20, "0x07": 6, "0x09A": 1, "0x09B": 10, "0x09C": 6, "0x09D": 9, "0x09F": 13,
    "0x0A": 2, "0x0D": 1,
}


def proved(proof: str) -> str:
    """The condition that an entry's proof names; an AssertionError when there is none, or more than one."""
    path, _, words = proof.partition(": ")
    if path.endswith(".ipynb"):
        assert ROOT / path in chapters_in_toc(), f"{path} is no chapter"
        found = {ast.unparse(node.test) for _, node in told(path, words)}
        assert len(found) == 1, f"{proof}: {len(found)} asserts say so, expected one"
        return found.pop()
    path, _, name = proof.partition("::")
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name and name.startswith("test_")]
    assert len(found) == 1, f"{proof}: no such test"
    assert re.search(r"assert|raises|verify", ast.unparse(found[0])), f"{proof} asserts nothing"
    return ast.unparse(found[0])


@pytest.mark.parametrize("entry", LIST, ids=lambda entry: " ".join(entry[kind] for kind in entry if kind != "proof"))
def test_a_named_proof_is_there(entry):
    assert set(entry) in ({"section", "proof", kind} for kind in ("equation", "statement", "number"))
    assert entry["section"] in SECTIONS
    assert proved(entry["proof"]) not in ("True", "1")


def test_the_counts_are_the_articles():
    found = Counter(entry["section"] for entry in LIST if "equation" in entry)
    assert found == EQUATIONS and sum(found.values()) == 99


@pytest.mark.parametrize("proof", ["chapters/0x01-permutation.ipynb: words that nobody wrote", "chapters/none.ipynb: x",
                                   "tests/notebooks/test_equations.py::test_that_is_not_there"])
def test_a_proof_that_is_not_there_is_noticed(proof):
    with pytest.raises(AssertionError):
        proved(proof)
