"""Change one number or sign of the library and see that a test notices. Run: python -m tests.mutations [-k WORD] [--jobs N]

Each mutation replaces one piece of source text in a copy of the package and runs the tests named beside it. A mutation that
no test catches, or whose text is no longer there, fails the run. What every run imports (torch above all) is imported once: each
run is a fork of this process, in which nothing of the project has been imported but this list.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import traceback

import hypothesis  # noqa: F401 - imported here, once, for the runs
import jaxtyping  # noqa: F401
import pytest
import torch  # noqa: F401

from tests.mutations import checker, core, mechanisms, runtime, surroundings
from tests.mutations.fault import Mutation

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTATIONS = [*checker.MUTATIONS, *core.MUTATIONS, *mechanisms.MUTATIONS, *runtime.MUTATIONS, *surroundings.MUTATIONS]
LIMIT = 600  # seconds of one run


def in_fork(tests: list[str], workspace: pathlib.Path) -> tuple[int, str]:
    """pytest's exit status for the tests of a workspace, and what it said. The fork imports the workspace's code, not this one's."""
    said = workspace / "said"
    if (child := os.fork()) == 0:
        status = 3
        try:
            signal.alarm(LIMIT)
            with said.open("w") as out:
                for stream in (1, 2):
                    os.dup2(out.fileno(), stream)
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "positionlib")]:
                del sys.modules[name]
            os.chdir(workspace)
            os.environ |= {"PYTHONPATH": str(workspace), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.dont_write_bytecode, sys.path[:] = True, [str(workspace), *(p for p in sys.path if p not in ("", str(ROOT)))]
            status = int(pytest.main(["-x", "-q", "-m", "not slow", *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), said.read_text("utf-8", "replace")


def failing_test(tests: list[str], workspace: pathlib.Path) -> str | None:
    """The first test that fails in the workspace, or None. Raises RuntimeError where pytest could not run: that proves nothing."""
    status, said = in_fork(tests, workspace)
    if status == 0:
        return None
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if status == -signal.SIGALRM:
        return f"no end after {LIMIT} s"
    if status != 1 or not failed:
        raise RuntimeError(f"pytest ended with {status}\n{said[-2000:]}")
    return failed[0].split(" - ")[0].split(" ", 1)[1]


def copied(folder: str) -> pathlib.Path:
    """A workspace: the package and its tests."""
    workspace = pathlib.Path(tempfile.mkdtemp(dir=folder))
    for part in ("positionlib", "tests"):
        shutil.copytree(ROOT / part, workspace / part, ignore=shutil.ignore_patterns("__pycache__", "browser"))
    for file in ("pyproject.toml", "README.md"):  # tests read both
        shutil.copy(ROOT / file, workspace)
    return workspace


def run(mutation: Mutation, workspace: pathlib.Path) -> str | None:
    """The first test that notices, or None."""
    target = workspace / mutation.file
    source = target.read_text("utf-8")
    if source.count(mutation.old) != 1:
        raise RuntimeError(f"its text occurs {source.count(mutation.old)} times in {mutation.file}: update the mutation")
    target.write_text(source.replace(mutation.old, mutation.new), "utf-8")
    try:
        return failing_test(mutation.tests.split(), workspace)
    finally:
        target.write_text(source, "utf-8")


def work(mutations: list[Mutation], folder: str, report) -> None:
    """Run some mutations one after the other; each result is (name, the test that noticed or None, what went wrong or None)."""
    workspace = copied(folder)
    for mutation in mutations:
        try:
            report.put((mutation.name, run(mutation, workspace), None))
        except Exception as error:  # noqa: BLE001 - told in the report; the others still run
            report.put((mutation.name, None, str(error)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only mutations whose name holds this word")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    arguments = parser.parse_args()
    chosen, missed = [m for m in MUTATIONS if arguments.k in m.name], 0
    with tempfile.TemporaryDirectory() as folder:
        if untouched := failing_test(sorted({t for m in chosen for t in m.tests.split()}), copied(folder)):
            raise SystemExit(f"without any mutation {untouched} already fails")
        fork = multiprocessing.get_context("fork")
        report = fork.SimpleQueue()
        workers = [fork.Process(target=work, args=(chosen[n :: arguments.jobs], folder, report)) for n in range(arguments.jobs)]
        for worker in workers:
            worker.start()
        for _ in chosen:
            name, caught, wrong = report.get()
            missed += caught is None
            print(f"{'caught' if caught else 'MISSED':7} {name}: {caught or wrong or 'no test failed'}", flush=True)
        for worker in workers:
            worker.join()
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
