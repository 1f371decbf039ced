"""The list of the article's equations (book/pages/equations.yml), and how an entry's proof is found."""
import ast
from functools import cache

import nbformat
import yaml

from tests.notebooks.rules import ROOT

LIST = yaml.safe_load((ROOT / "book/pages/equations.yml").read_text("utf-8"))


@cache
def sources(path: str) -> tuple[str, ...]:
    """The code cells of a chapter, in order."""
    return tuple(cell.source for cell in nbformat.read(ROOT / path, as_version=4).cells if cell.cell_type == "code")


def told(path: str, words: str) -> list[tuple[int, ast.Assert]]:
    """(number of the code cell, assert) of a chapter's asserts whose message is these words or, where none is, holds them."""
    found = [(number, node, _said(node.msg)) for number, source in enumerate(sources(path)) for node in ast.walk(ast.parse(source))
             if isinstance(node, ast.Assert) and node.msg is not None]
    exact = [(number, node) for number, node, said in found if said == words]
    return exact or [(number, node) for number, node, said in found if words in said]


def _said(message: ast.expr) -> str:
    return "".join(str(part.value) for part in ast.walk(message) if isinstance(part, ast.Constant))
