"""Change one number or sign of the library and see that a test notices. Run: python -m tests.mutations [-k WORD]

Each mutation replaces one piece of source text in a copy of the package and runs the tests named beside it. A mutation that
no test catches, or whose text is no longer there, fails the run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tests.mutations import checker, core, mechanisms, runtime, surroundings
from tests.mutations.fault import Mutation

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTATIONS = [*checker.MUTATIONS, *core.MUTATIONS, *mechanisms.MUTATIONS, *runtime.MUTATIONS, *surroundings.MUTATIONS]


def failing_test(tests: list[str], workspace: pathlib.Path, name: str) -> str | None:
    """The first test that fails in the workspace, or None."""
    environment = os.environ | {"PYTHONPATH": str(workspace), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return None
    if done.returncode != 1:  # pytest itself could not run: that proves nothing about the mutation
        raise SystemExit(f"{name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1]


def run(mutation: Mutation, workspace: pathlib.Path) -> str | None:
    """The first test that notices, or None."""
    target = workspace / mutation.file
    source = target.read_text("utf-8")
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: its text occurs {source.count(mutation.old)} times in {mutation.file}; update the mutation.")
    target.write_text(source.replace(mutation.old, mutation.new), "utf-8")
    try:
        return failing_test(mutation.tests.split(), workspace, mutation.name)
    finally:
        target.write_text(source, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only mutations whose name holds this word")
    chosen = [m for m in MUTATIONS if parser.parse_args().k in m.name]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        workspace = pathlib.Path(folder)
        for part in ("positionlib", "tests"):
            shutil.copytree(ROOT / part, workspace / part, ignore=shutil.ignore_patterns("__pycache__", "browser"))
        shutil.copy(ROOT / "pyproject.toml", workspace)
        untouched = failing_test(sorted({t for m in chosen for t in m.tests.split()}), workspace, "unmutated")
        if untouched:
            raise SystemExit(f"without any mutation {untouched} already fails")
        for mutation in chosen:
            caught = run(mutation, workspace)
            missed += caught is None
            print(f"{'caught' if caught else 'MISSED':7} {mutation.name}: {caught or 'no test failed'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
