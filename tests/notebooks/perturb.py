"""Perturb each equation of the course and see that the assert which proves it fails. Run: python -m tests.notebooks.perturb [-k WORD]

A proof of book/pages/equations.yml is one assert of a chapter, or a test. One sign, term, factor, index, bound, function or convention
changes at a time, in the statements that the assert depends on and in the library's functions that they call; then only the named assert
decides, every other one is left out. Some changes change nothing (they are told), so a proof holds when some are noticed: one that notices
none, of some and then of all, proves nothing and fails the run. `--sample N --seed S` takes N proofs and begins with fewer changes of each.
What every run imports (torch above all) is imported once: each run is a fork.
"""
from __future__ import annotations

import argparse
import ast
import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

os.environ |= {"MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": ""}

import anywidget  # noqa: F401 - imported here, once, for the runs
import matplotlib.pyplot  # noqa: F401
import pytest

import positionlib  # noqa: F401
from tests.notebooks.equations import LIST, sources, told
from tests.notebooks.library import Function, changes, watched
from tests.notebooks.mutants import Site, decisive, sites
from tests.notebooks.rules import ROOT
from tests.notebooks.slices import feeding

LIMIT = 60  # seconds of one run


class Noticed(BaseException):
    """The named assert failed."""


class Most(NamedTuple):
    """At most so many changes in the assert's cell, in earlier cells, in the library; `inputs`: also of data and sizes."""

    near: int
    earlier: int
    library: int
    inputs: bool = False


FEW, MANY, ALL = Most(4, 2, 2), Most(30, 12, 6), Most(300, 300, 300, inputs=True)


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
            signal.alarm(limit)
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
        self.cells = sorted({cell for cell, _ in self.feeding if cell >= begin})
        self.changes: list[tuple[int, Site | Function]] = []

    def at(self, cell: int, namespace: dict) -> None:
        """Do what is due before a cell of the chapter runs."""
        if cell == self.cells[0]:
            self.plan(namespace)
        for where, change in self.changes:
            if where == cell:
                self.verdict.add(forked(self.outcome, cell, namespace, change), f"cell {cell}, {change}")

    def plan(self, namespace: dict) -> None:
        answer = forked(self.unchanged, namespace)
        if answer is None or answer[0] is not None:
            self.verdict.wrong = "without any change: " + (answer[0] if answer else "no answer")
            return
        _, self.cells, functions = answer
        places = [(cell, site) for cell in self.cells for site in sites(self.trees[cell], self.most.inputs)
                  if any(c == cell and s.lineno <= site.old.lineno <= s.end_lineno for c, s in self.feeding)]
        for near, most in ((True, self.most.near), (False, self.most.earlier)):
            self.changes += some([place for place in places if (place[0] == self.cell) == near], most, self.chance)
        # What runs in the assert's own cell, or where nothing does, in the cells before.
        first = {function: cell for cell in reversed(self.cells) for function in functions[cell]}
        own = functions[self.cell] or set(first)
        self.changes += [(first[replace(change, number=0)], change) for change in some(changes(own), self.most.library, self.chance)]

    def unchanged(self, namespace: dict) -> tuple[str | None, list[int], dict[int, set[Function]]]:
        """(what went wrong, the cells that ran, the library's functions that ran in each). Cells run until the assert is reached."""
        reached, functions = [], {}
        namespace |= {"Noticed": Noticed, "reached": lambda condition: reached.append(1) or condition}
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
        namespace |= {"Noticed": Noticed, "reached": lambda condition: reached.append(1) or condition}
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
    """Run those of a chapter's cells that some assert depends on, in order, each after the trials that begin there."""
    os.chdir(ROOT / "chapters")
    trials, namespace = [Trial(proof, most, seed) for proof in proofs], {"__name__": "__main__"}
    cells = sorted({cell for trial in trials for cell, _ in trial.feeding})
    for cell in cells:
        for trial in trials:
            trial.at(cell, namespace)
        if cell < cells[-1]:
            exec(compile(sources(proofs[0].partition(": ")[0])[cell], f"<cell {cell}>", "exec"), namespace)
    return [trial.verdict for trial in trials]


# --- a test ---------------------------------------------------------------------------------------------------------

class Failure:
    """A plugin of pytest that keeps what a test raised."""

    kind: type | None = None

    def pytest_exception_interact(self, call: pytest.CallInfo) -> None:
        self.kind = call.excinfo.type


def of_test(proofs: list[str], most: Most, seed: int) -> list[Verdict]:
    """Change the library's functions that a test runs."""
    proof, = proofs
    verdict = Verdict(proof)
    outcome, functions = forked(tested, proof, None) or ("no answer", set())
    if outcome != "missed":
        return [replace(verdict, wrong=f"without any change: {outcome}")]
    for change in some(changes(functions), sum(most[:3]), random.Random(f"{seed} {proof}")):
        verdict.add((forked(tested, proof, change) or ("ended",))[0], str(change))
    return [verdict]


def tested(node: str, change: Function | None) -> tuple[str, set[Function]]:
    """(outcome, the library's functions that ran) of one test."""
    os.chdir(ROOT)
    if change:
        change.apply()
    failure = Failure()
    with watched() as functions:
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", node], plugins=[failure])
    met = failure.kind is not None and issubclass(failure.kind, AssertionError | pytest.fail.Exception)
    return ("missed" if status == 0 else "noticed" if met else "ended"), functions


# --- command --------------------------------------------------------------------------------------------------------

def work(groups: list[list[str]], most: Most, seed: int, report) -> None:
    for proofs in groups:
        task = of_chapter if ".ipynb" in proofs[0] else of_test
        report.put(forked(task, proofs, most, seed, limit=0) or [Verdict(proof, wrong="its chapter ended") for proof in proofs])


def verdicts(proofs: list[str], most: Most, seed: int, jobs: int) -> Iterator[Verdict]:
    """The verdict of every proof, as they come: the chapters side by side, one fork each."""
    groups = [list(group) for _, group in groupby(sorted(proofs), key=lambda proof: proof.partition(": ")[0])]
    fork = multiprocessing.get_context("fork")
    report = fork.SimpleQueue()
    workers = [fork.Process(target=work, args=(groups[n::jobs], most, seed, report)) for n in range(jobs)]
    for worker in workers:
        worker.start()
    for _ in groups:
        yield from report.get()
    for worker in workers:
        worker.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only proofs that hold this word")
    parser.add_argument("--sample", type=int, help="so many proofs, and a few changes of each")
    parser.add_argument("--seed", type=int, default=0, help="which proofs and which changes")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="chapters at a time")
    arguments = parser.parse_args()
    begun = time.monotonic()
    proofs = sorted({entry["proof"] for entry in LIST if arguments.k in entry["proof"]})
    if arguments.sample:
        proofs = some(proofs, arguments.sample, random.Random(arguments.seed))
    found, left = [], proofs
    for most in (FEW if arguments.sample else MANY, ALL):
        silent = []
        for verdict in verdicts(left, most, arguments.seed, arguments.jobs):
            if most is not ALL and not verdict.noticed:
                silent.append(verdict.proof)
                continue
            print(verdict, flush=True)
            found.append(verdict)
        left = silent
    held, noticed, missed, ended = (sum(counts) for counts in zip(*((v.holds, v.noticed, len(v.missed), v.ended) for v in found)))
    print(f"{held} of {len(found)} proofs notice a change; {noticed} changes noticed, {missed} missed, {ended} ended before; "
          f"{time.monotonic() - begun:.0f} s")
    return int(held < len(found))


if __name__ == "__main__":
    sys.exit(main())
