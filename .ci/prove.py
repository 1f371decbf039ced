"""Prove the project: run every step, go on after a failure, and say at the end what was seen.

The exit status is 0 only if every step's was. `--all` adds the slow tests, more examples of the properties, the mutation run, and a sample
of the perturbed equations (`python -m tests.notebooks.perturb` takes all of them).
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed)\b")


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    limit: int = 1800  # seconds; a step that hangs must not eat the night


def pytest(*args: str) -> list[str]:
    return [PYTHON, "-m", "pytest", "-q", *args]


STEPS = [
    Step("library and project tests", pytest("-n", "2", "--dist", "loadfile", "--durations", "8")),
    Step("golden fixtures", [PYTHON, "-m", "tests.oracles", "tests/fixtures"]),
    Step("public-report cases", [PYTHON, "-m", "tests.cases", "tests/fixtures/open_cases.json"]),
    Step("chapters, outputs (nbval)", pytest(
        "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120", "-n", "2", "--dist", "loadfile", "chapters")),
    Step("chapters, re-executed twice", [PYTHON, "book/tools/execute.py", "--check", "chapters"]),
    Step("book", ["make", "--no-print-directory", "book"]),
    Step("links of the built pages", [PYTHON, "book/tools/links.py", "_build/html"]),
    Step("built pages in a browser", pytest("-m", "browser", "-n", "2", "--dist", "loadfile", "tests/browser")),
]
MORE = [
    Step("slow tests", pytest("-m", "slow", "-n", "2", "--dist", "loadfile"), limit=3600),
    Step("properties, ten times the examples", pytest("--hypothesis-profile=thorough", "-n", "2", "tests/properties"), limit=1800),
    Step("mutation run", [PYTHON, "-m", "tests.mutations"], limit=3600),
    Step("equations, perturbed", [PYTHON, "-m", "tests.notebooks.perturb", "--sample", "60"]),
]


def run(step: Step) -> tuple[int, str]:
    """Run one step, show its output as it comes, and return its exit status with all that it said."""
    process = subprocess.Popen(step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    # The clock stands beside the reading loop, since a step that hangs says nothing that could wake it.
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(step.limit)
    said = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        said.append(line)
    status = process.wait()
    signal.alarm(0)
    if status == -signal.SIGKILL:
        said.append(f"ended after {step.limit} s, or for lack of memory\n")
        sys.stdout.write(said[-1])
    return status, "".join(said)


def counts(status: int, said: str) -> dict[str, int]:
    """The step's own closing counts where it prints some, else the step counts as one."""
    lines = [line for line in said.splitlines() if COUNT.search(line)]
    found = {"passed": 0, "failed": 0, "skipped": 0}
    for number, word in COUNT.findall(lines[-1]) if lines else []:
        kind = {"error": "failed", "errors": "failed", "xfailed": "skipped"}.get(word, word)
        found[kind] += int(number)
    if not any(found.values()):
        found["passed"] = int(status == 0)
    if status and not found["failed"]:
        found["failed"] = 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also the slow tests, more examples, the mutation run and perturbed equations")
    steps = STEPS + (MORE if parser.parse_args().all else [])

    if not any(map(shutil.which, BROWSERS)):
        print("The tests of the built pages need Chromium:\n\n    sudo apt-get install -y chromium\n")
        print("0 passed, 1 failed")
        return 1

    shutil.rmtree(ROOT / "_build", ignore_errors=True)  # the pages that are tested are built now
    started, rows, total = time.monotonic(), [], {"passed": 0, "failed": 0, "skipped": 0}
    for step in steps:
        print(f"\n=== {step.name}", flush=True)
        begun = time.monotonic()
        status, said = run(step)
        found = counts(status, said)
        total = {kind: total[kind] + found[kind] for kind in total}
        rows.append((step.name, "ok" if status == 0 else "FAILED", found, time.monotonic() - begun))

    print("\n=== what was proved")
    for name, verdict, found, seconds in rows:
        detail = ", ".join(f"{n} {kind}" for kind, n in found.items() if n)
        print(f"{verdict:7} {name:30} {seconds:6.0f} s   {detail}")
    print(f"\n{time.monotonic() - started:.0f} s in all")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return int(any(verdict != "ok" for _, verdict, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
