"""The library's functions that a proof runs, and how one of them is given perturbed code."""
from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from types import CodeType

from tests.notebooks.mutants import Site, sites
from tests.notebooks.rules import ROOT

PACKAGE = ROOT / "positionlib"


@dataclass(frozen=True, order=True)
class Function:
    """A function of the library, by its file and its qualified name; `number` is one of its sites, `inputs` with those of data and sizes."""

    file: str
    name: str
    number: int = 0
    inputs: bool = False

    def sites(self) -> tuple[ast.Module, list[Site]]:
        """The file's syntax tree, and the sites in this function's body."""
        found = tree = ast.parse((PACKAGE / self.file).read_text("utf-8"))
        for name in self.name.split("."):
            found = next(node for node in ast.walk(found) if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
        return tree, sites(ast.Module(found.body, []), self.inputs)

    def apply(self) -> None:
        """Give the function the code of its perturbed source, by which all who hold it run it."""
        module = importlib.import_module("positionlib." + self.file.removesuffix(".py").replace("/", "."))
        tree, places = self.sites()
        places[self.number].apply()
        codes = [compile(tree, str(PACKAGE / self.file), "exec")]
        for code in codes:
            codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        new = next(code for code in codes if code.co_qualname == self.name)
        held = reduce(lambda owner, name: vars(owner)[name], self.name.split("."), module)
        held = getattr(held, "fget", None) or getattr(held, "__func__", None) or getattr(held, "func", held)  # of a property, a method
        inspect.unwrap(held).__code__ = new  # the function itself, so that whoever holds it has the new one

    def __str__(self) -> str:
        return f"{self.file} {self.sites()[1][self.number]}"


@contextmanager
def watched() -> Iterator[set[Function]]:
    """The library's functions that run inside the block, without its checks of arguments: no equation stands there."""
    seen = set()

    def see(frame, event: str, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/") and not code.co_filename.endswith(("contract.py", "errors.py")):
            name = code.co_qualname.partition(".<locals>")[0]
            if not re.match(r"<|_?require", name):
                seen.add(Function(str(Path(code.co_filename).relative_to(PACKAGE)), name))

    sys.setprofile(see)
    try:
        yield seen
    finally:
        sys.setprofile(None)


@cache
def _changes(function: Function) -> list[Function]:
    return [replace(function, number=n) for n in range(len(function.sites()[1]))]


def changes(functions: set[Function], inputs: bool = False) -> list[Function]:
    """Every change of these functions, with `inputs` also those of their data and sizes."""
    return [change for function in sorted(functions) for change in _changes(replace(function, inputs=inputs))]
