"""The CPU table: every mechanism with a released peer, timed against it. Run: make bench, or python -m positionlib.bench.cpu [--length N] [--only NAME …]

Each pair runs in processes of its own, in the environment that holds its peer (.venv-bench, .venv-bench-4; `make bench` makes them): one that
checks agreement and times both sides in turn, and a fresh one for each peak. The whole table at full length leaves a receipt in
book/receipts. The exit status is 0 only if every bar holds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import torch

from positionlib.bench.pairs import BATCH, D_HEAD, HEADS, LENGTH, PAIRS, THREADS, Pair
from positionlib.bench.verdict import MODES, SIDES, check_receipt, medians, verdicts
from positionlib.errors import require_count

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {5: ".venv-bench", 4: ".venv-bench-4"}


def interpreter(major: int) -> Path:
    """The Python that has this release of transformers."""
    python = ROOT / ENVIRONMENTS[major] / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{ENVIRONMENTS[major]} is not there: run make bench, which makes it.")
    return python


def ask(python: Path, *command: str) -> str:
    """What a child process says last. Its threads are the benchmark's, whatever the caller's are."""
    threads = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run([python, *command], cwd=ROOT, env=os.environ | threads, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


def measured(pair: Pair, length: int) -> dict:
    """One pair of the receipt."""
    def worker(*command: str) -> dict:
        return json.loads(ask(interpreter(pair.transformers), "-m", "positionlib.bench.worker", pair.name, str(length), *command))

    found = {"name": pair.name, "mechanism": pair.mechanism, "peer": pair.peer, "transformers": release(pair.transformers),
             "bars": {**dict(zip(MODES, (pair.forward, pair.both))), "peak memory": pair.memory}, **worker("times")}
    if "seconds" in found:
        found["peak_bytes"] = {mode: {side: worker("peak", mode, side)["bytes"] for side in SIDES} for mode in MODES}
    return {**found, "verdicts": [vars(verdict) for verdict in verdicts(found)]}


def release(major: int) -> str:
    """The exact release that an environment has."""
    return ask(interpreter(major), "-c", "from importlib import metadata; print(metadata.version('transformers'))")


def processor() -> str:
    """The processor's name, where the system tells it."""
    account = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", account.read_text()) if account.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def lines(pair: dict) -> list[str]:
    """A pair as it is printed: numbers of both sides, then value, bar and verdict."""
    said = [f"{pair['mechanism']}, against {pair['peer']} (transformers {pair['transformers']})"]
    for verdict in verdicts(pair):
        detail = ""
        if verdict.what in MODES:
            seconds = pair["seconds"][verdict.what]
            detail = "  ".join(f"{side} min {1e3 * min(seconds[side]):.0f} median {1e3 * median(seconds[side]):.0f} ms" for side in SIDES)
            detail += f"  {len(seconds['ours'])} rounds  medians {medians(seconds):.2f}×"
        elif verdict.what == "peak memory":
            detail = "; ".join(f"{mode}: " + ", ".join(f"{side} {pair['peak_bytes'][mode][side] / 1e6:.0f} MB" for side in SIDES) for mode in MODES)
        else:
            detail = "  ".join(f"{name} error {part['error']:.1e} of {part['largest']:.1e}" for name, part in pair["agreement"].items())
        said.append(f"  {verdict.what:18} {verdict}  {detail}")
    return said


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("Run:")[0])
    parser.add_argument("--length", type=int, default=LENGTH, help="rows of the call; another length leaves no receipt")
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS), help="some pairs; leaves no receipt")
    asked = parser.parse_args()
    require_count("length", asked.length, 16)

    receipt = {"date": datetime.date.today().isoformat(),
               "device": {"processor": processor(), "cores": os.cpu_count(), "threads": THREADS, "system": platform.system()},
               "versions": {"python": platform.python_version(), "torch": torch.__version__},
               "call": {"batch": BATCH, "heads": HEADS, "length": asked.length, "d_head": D_HEAD, "dtype": "float32"}, "pairs": []}
    print(f"{receipt['date']}, {processor()}, {THREADS} threads of {os.cpu_count()}, torch {torch.__version__}, Python {platform.python_version()}, "
          f"B={BATCH} H={HEADS} N={asked.length} D={D_HEAD} float32", flush=True)
    for name in asked.only:
        receipt["pairs"].append(measured(PAIRS[name], asked.length))
        print("\n".join(lines(receipt["pairs"][-1])), flush=True)

    check_receipt(receipt)
    cells = [verdict for pair in receipt["pairs"] for verdict in pair["verdicts"]]
    held = sum(verdict["holds"] for verdict in cells)
    print(f"{held} of {len(cells)} bars hold")
    if asked.length == LENGTH and set(asked.only) == set(PAIRS):
        target = ROOT / "book" / "receipts" / f"cpu-{receipt['date']}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(receipt, indent=1) + "\n", "utf-8")
        print(f"The receipt: {target.relative_to(ROOT)}")
    else:
        print("No receipt: that takes the whole table at its own length")
    return int(held < len(cells))


if __name__ == "__main__":
    sys.exit(main())
