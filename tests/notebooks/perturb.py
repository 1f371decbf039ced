"""Perturb each equation of the course and see that the assert which proves it fails. Run: python -m tests.notebooks.perturb [-k WORD]

A proof of book/pages/equations.yml is one assert of a chapter, or a test. One sign, term, factor, index, bound, function or convention
changes at a time, in the statements that the assert depends on and in the library's functions that they call; then only the named assert
decides, every other one is left out. Some changes change nothing (they are told), so a proof holds when some are noticed: one that notices
none, of some and then of all, proves nothing and fails the run. `--sample N --seed S` takes N proofs, each up to the first change that it notices.
What every run imports (torch above all) is imported once: each run is a fork.
"""
from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import anywidget  # noqa: F401 - imported here, once, for the runs
import matplotlib.pyplot  # noqa: F401
import pytest

import positionlib  # noqa: F401
from tests.notebooks.equations import LIST
from tests.notebooks.library import Function, changes, watched
from tests.notebooks.rules import ROOT
from tests.notebooks.trial import ALL, FEW, MANY, Most, Verdict, forked, of_chapter, some


# --- a test ---------------------------------------------------------------------------------------------------------

class Failure:
    """A plugin of pytest that keeps what a test raised."""

    kind: type | None = None

    def pytest_exception_interact(self, call: pytest.CallInfo) -> None:
        self.kind = call.excinfo.type


def of_test(proofs: list[str], most: Most, seed: int) -> list[Verdict]:
    """Change the library's functions that a test runs, most of them in the file that bears its name."""
    proof, = proofs
    verdict = Verdict(proof)
    outcome, functions = forked(tested, proof, None) or ("no answer", set())
    if outcome != "missed":
        return [replace(verdict, wrong=f"without any change: {outcome}")]
    places, chance = changes(functions, most.inputs), random.Random(f"{seed} {proof}")
    name = Path(proof.partition("::")[0]).name.removeprefix("test_")
    own = [change for change in places if Path(change.file).name == name]
    others = [change for change in places if change not in own]
    drawn = some(own, most.near, chance) + some(others, most.library, chance)
    for change in some(drawn, len(drawn), chance):
        if not (most.first and verdict.noticed):
            verdict.add((forked(tested, proof, change) or ("ended",))[0], str(change))
    return [verdict]


def tested(node: str, change: Function | None) -> tuple[str, set[Function]]:
    """(outcome, the library's functions that ran) of one test."""
    os.chdir(ROOT)
    if change:
        change.apply()
    failure = Failure()
    with watched() as functions:
        status = pytest.main(["-x", "-q", node], plugins=[failure])
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
    if not proofs:
        parser.error(f"no proof holds {arguments.k!r}")
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
