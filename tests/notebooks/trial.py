"""One assert of a chapter, and the changes that it is put to."""
from __future__ import annotations

import ast
import gc
import os
import pickle
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.notebooks.equations import sources, told
from tests.notebooks.library import Function, changes, watched
from tests.notebooks.mutants import Site, decisive, sites
from tests.notebooks.rules import ROOT
from tests.notebooks.slices import feeding

LIMIT = 60  # seconds of one run, on the processor: how busy the machine is decides nothing


class Noticed(BaseException):
    """The named assert failed."""


class Most(NamedTuple):
    """At most so many changes in the assert's cell, in earlier cells, in the library, up to the first that is noticed or all of them.

    `inputs`: also changes of data and sizes, and of library functions that ran for the assert in any cell.
    """

    near: int
    earlier: int
    library: int
    first: bool
    inputs: bool = False


FEW, MANY, ALL = Most(6, 4, 3, first=True), Most(30, 12, 6, first=False), Most(300, 300, 300, first=True, inputs=True)


@dataclass
class Verdict:
    """What became of a proof's changes: how many its assert noticed, which it did not, how many ended before it was reached."""

    proof: str
    noticed: int = 0
    missed: list[str] = field(default_factory=list)
    ended: int = 0
    wrong: str = ""

    def add(self, outcome: str | None, change: str) -> None:
        self.noticed += outcome == "noticed"
        self.ended += outcome not in ("noticed", "missed")
        self.missed += [change] if outcome == "missed" else []

    def __str__(self) -> str:
        told = self.wrong or f"{self.noticed} noticed, {len(self.missed)} missed, {self.ended} ended before"
        return "\n".join([f"{'proved' if self.holds else 'SILENT'}  {self.proof}: {told}", *(f"        missed {change}" for change in self.missed)])

    @property
    def holds(self) -> bool:
        return self.noticed > 0 and not self.wrong


# --- runs -----------------------------------------------------------------------------------------------------------

def forked(task: Callable, *arguments, limit: int = LIMIT):
    """What `task` returns in a silent fork of this process, or None where that ends without an answer."""
    read, write = os.pipe()
    gc.freeze()  # a collection in the fork would copy every page that it looks at
    if (child := os.fork()) == 0:
        try:
            signal.setitimer(signal.ITIMER_PROF, limit)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            with os.fdopen(write, "wb") as out:
                pickle.dump(task(*arguments), out)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return pickle.loads(said) if said else None


def some(changes: list, most: int, chance: random.Random) -> list:
    """At most so many of the changes."""
    return chance.sample(changes, min(most, len(changes)))


# --- an assert of a chapter -----------------------------------------------------------------------------------------

class Deciding(ast.NodeTransformer):
    """Leaves one assert of a cell, the one at a line, and makes it decisive."""

    def __init__(self, line: int | None):
        self.line = line

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return decisive(node) if node.lineno == self.line else ast.copy_location(ast.Pass(), node)


class Trial:
    """One assert of a chapter, and the changes that it is put to, each in a fork that begins where the changed cell begins."""

    def __init__(self, proof: str, most: Most, seed: int):
        self.verdict, self.most, self.chance = Verdict(proof), most, random.Random(f"{seed} {proof}")
        path, _, words = proof.partition(": ")
        self.cell, node = told(path, words)[0]
        self.trees = [Deciding(node.lineno if n == self.cell else None).visit(ast.parse(source)) for n, source in enumerate(sources(path))]
        named = next(part for part in ast.walk(self.trees[self.cell]) if getattr(part, "decisive", False))
        self.feeding = feeding(self.trees, self.cell, named)
        begin = next(cell for cell, statement in self.feeding if not isinstance(statement, ast.Import | ast.ImportFrom))
        self.whole, self.trees = self.trees, [  # an assert in a function waits for the cell that calls it, whichever of the next ones that is
            tree if cell > self.cell else ast.Module([s for s in tree.body if self.fed(cell, s)], []) for cell, tree in enumerate(self.trees)]
        self.cells = [cell for cell, tree in enumerate(self.trees) if begin <= cell <= self.cell and tree.body]
        self.changes: list[tuple[int, Site | Function]] = []

    def fed(self, cell: int, statement: ast.stmt) -> bool:
        """Whether a statement of a cell's own level is, or holds, one that the assert depends on. What is random begins as in the chapter."""
        return "manual_seed(" in ast.unparse(statement) or any(
            c == cell and statement.lineno <= s.lineno <= statement.end_lineno for c, s in self.feeding)

    def at(self, cell: int, namespace: dict) -> None:
        """Do what is due before a cell of the chapter runs."""
        if cell == self.cells[0]:
            self.plan(namespace)
        for where, change in self.changes:
            if where == cell and not (self.most.first and self.verdict.noticed):
                self.verdict.add(forked(self.outcome, cell, namespace, change), f"cell {cell}, {change}")

    def plan(self, namespace: dict) -> None:
        answer = forked(self.unchanged, namespace)
        if answer is None or answer[0] is not None:  # something that it depends on was overlooked: whole cells, all of them
            self.trees, self.cells = self.whole, [*range(self.cells[0], self.cell + 1)]
            answer = forked(self.unchanged, namespace)
        if answer is None or answer[0] is not None:
            self.verdict.wrong = "without any change: " + (answer[0] if answer else "no answer")
            return
        _, self.cells, functions = answer
        places = [(cell, site) for cell in self.cells for site in sites(self.trees[cell], self.most.inputs)
                  if any(c == cell and s.lineno <= site.old.lineno <= s.end_lineno for c, s in self.feeding)]
        for near, most in ((True, self.most.near), (False, self.most.earlier)):
            self.changes += some([place for place in places if (place[0] == self.cell) == near], most, self.chance)
        # What runs in the assert's own cell; where nothing does, or where all is asked for, in the cells before too.
        first = {function: cell for cell in reversed(self.cells) for function in functions[cell]}
        own = not self.most.inputs and functions[self.cell] or set(first)
        self.changes += [(first[replace(change, number=0, inputs=False)], change)
                         for change in some(changes(own, self.most.inputs), self.most.library, self.chance)]

    def unchanged(self, namespace: dict) -> tuple[str | None, list[int], dict[int, set[Function]]]:
        """(what went wrong, the cells that ran, the library's functions that ran in each). Cells run until the assert is reached."""
        reached, functions = [], {}
        namespace |= {"_Noticed_": Noticed, "_reached_": lambda condition: reached.append(1) or condition}
        try:
            for cell in [*self.cells, *range(self.cell + 1, len(self.trees))]:
                if reached:
                    break
                with watched() as functions[cell]:
                    self.run(cell, namespace)
        except BaseException as error:  # noqa: BLE001 - told in the verdict
            return repr(error), [], {}
        return None if reached else "the assert is never reached", list(functions), functions

    def outcome(self, start: int, namespace: dict, change: Site | Function) -> str:
        reached = []
        namespace |= {"_Noticed_": Noticed, "_reached_": lambda condition: reached.append(1) or condition}
        try:
            change.apply()
            for cell in self.cells[self.cells.index(start):]:
                self.run(cell, namespace)
        except Noticed:
            return "noticed"
        except BaseException:  # noqa: BLE001 - the assert had no say
            return "ended"
        return "missed" if reached else "ended"

    def run(self, cell: int, namespace: dict) -> None:
        exec(compile(self.trees[cell], f"<cell {cell}>", "exec"), namespace)


def of_chapter(proofs: list[str], most: Most, seed: int) -> list[Verdict]:
    """Run a chapter's cells in order, up to the last assert, each after the trials that begin there."""
    os.chdir(ROOT / "chapters")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as when the chapters are executed
    trials, namespace = [Trial(proof, most, seed) for proof in proofs], {"__name__": "__main__"}
    last = max(trial.cell for trial in trials)
    for cell, source in enumerate(sources(proofs[0].partition(": ")[0])[: last + 1]):
        for trial in trials:
            trial.at(cell, namespace)
        if cell < last:
            exec(compile(source, f"<cell {cell}>", "exec"), namespace)
    return [trial.verdict for trial in trials]
