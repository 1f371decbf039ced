"""The kernels on a GPU: whether they are right, and how long they take. Run: make gpu PART=correct, make gpu PART=time.

Each part ends within three minutes: what does not fit is told as not run, by name. It needs torch, triton, numpy, jaxtyping and this
library, of whatever release there is. On a GPU it writes its part of book/receipts/gpu-DATE-DEVICE.json; without one every row says so, the
exit status is 0 and no receipt is made. Otherwise the status is 1 where a row failed.

Compiling takes longer than running and no GPU, so that every mechanism gets a process of its own: in ``correct`` it also does the checks, in
``time`` it fills the compilers' caches before one process measures alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from positionlib.bench import gpu_correct, gpu_time
from positionlib.bench.gpu_bars import BANDWIDTH, DEVICE, check_gpu_receipt, memory_verdicts, verdict
from positionlib.bench.gpu_cases import CALLS, DTYPES, MECHANISMS
from positionlib.bench.gpu_correct import Row

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 165  # of a part, the start of its processes included
NO_GPU = "not run: no GPU"


def names(part: str) -> list[str]:
    """Every row of a part."""
    from positionlib.kernels.compile_rows import ROW_KINDS

    return gpu_correct.names() if part == "correct" else ["machine", *(f"rows {kind}" for kind in ROW_KINDS), *(case.name for case in gpu_time.plan())]


def each_in_a_process(command: str, until: float) -> Iterator[tuple[str, list[str], str]]:
    """(mechanism, lines that its process wrote, what went wrong), as they end; one that is not done in time is ended and keeps its lines."""
    def ask(name: str) -> tuple[str, list[str], str]:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as complaint:
            process = subprocess.Popen([sys.executable, "-m", "positionlib.bench.gpu", command, name], stdout=out, stderr=complaint, cwd=ROOT)
            try:
                status = process.wait(max(until - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = None
            out.seek(0)
            complaint.seek(0)
            said = "out of time" if status is None else "" if status == 0 else (complaint.read().strip().splitlines() or [f"status {status}"])[-1]
            return name, out.read().splitlines(), said

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from (done.result() for done in concurrent.futures.as_completed([pool.submit(ask, name) for name in MECHANISMS]))


def correct(until: float) -> tuple[int, dict[str, Any]]:
    """Print the table of errors and bits; (failures, this part of the receipt)."""
    rows: dict[str, Row] = {}
    for name, lines, trouble in each_in_a_process("check", until):
        found = [Row(**json.loads(line)) for line in lines]
        known = {row.name for row in found}
        status = "not run" if trouble == "out of time" else "FAILED"
        found += [Row(row, status, trouble) for row in gpu_correct.names() if row.startswith(f"{name} ") and row not in known]
        rows |= {row.name: row for row in found}
        print("\n".join(map(str, found)), flush=True)
    for row in (gpu_correct.bucket_edges(), gpu_correct.sanitized() if time.monotonic() < until else Row("compute-sanitizer", "not run", "out of time")):
        rows[row.name] = row
        print(row, flush=True)
    return sum(row.status == "FAILED" for row in rows.values()), {"rows": [asdict(rows[name]) for name in gpu_correct.names()]}


def timed(until: float) -> tuple[int, dict[str, Any]]:
    """Print the table of times; (bars that do not hold, this part of the receipt)."""
    for name, _, trouble in each_in_a_process("warm", until - SECONDS / 2):
        if trouble:
            print(f"{name}: compiling ahead ended with: {trouble}", flush=True)
    told: dict[str, Any] = {"attention": [], "rows": []}
    failed, extra = 0, {}
    for name, row in gpu_time.table(until):
        print(line(name, row), flush=True)
        if name == "machine":
            told["machine"] = row
        elif name.startswith("rows "):
            row["bar"] = verdict(row["share of a copy"], BANDWIDTH if DEVICE in torch.cuda.get_device_name() else None, most=False)
            told["rows"].append(row)
            failed += row["bar"] == "FAIL"
        elif row is not None and "seconds" in row:
            told["attention"].append(row)
            extra.setdefault((row["mechanism"], row["width"]), {})[row["length"]] = row["extra_bytes"]
            failed += sum(cell[bar] == "FAIL" for cell in row["cells"].values() for bar in ("bar", "flex bar"))
    told["memory"] = {f"{name} D={width}": memory_verdicts(bytes_by_length) for (name, width), bytes_by_length in extra.items()}
    failed += sum(said == "FAIL" for verdicts in told["memory"].values() for said in verdicts.values())
    print("memory beyond inputs and outputs, by length: " + "; ".join(f"{name}: {said}" for name, said in told["memory"].items()))
    return failed, told


def line(name: str, row: dict[str, Any] | None) -> str:
    """A row of the table of times as it is printed."""
    if row is None:
        return f"{name:36} not run: out of time"
    if name == "machine":
        return f"{name:36} {row['operations'] / 1e12:.0f} TFLOP/s of bf16 products, {row['bytes'] / 1e12:.2f} TB/s of a copy"
    if "refused" in row:
        return f"{name:36} refused: {row['refused']}"
    if "cells" not in row:
        return f"{name:36} {row['share of a copy']:.0%} of a copy's bandwidth"
    said = []
    for what, cell in row["cells"].items():
        ratios = ", ".join(f"{ratio:.2f}× {who}" for who, ratio in cell["ratios"].items())
        verdicts = " ".join(filter(None, (cell["bar"], cell["flex bar"] and f"flex {cell['flex bar']}")))
        took = f"{what} {1e3 * cell['median']:.3f} ms, {cell['share of floor']:.0%} of the floor"
        said.append(took + (ratios and f", {ratios}") + (verdicts and f" ({verdicts})"))
    said.append(f"{row['extra_bytes'] / 2**20:.0f} MiB more")
    return f"{name:36} {'; '.join(said)}" + "".join(f"; {who} not run: {why}" for who, why in row.get("not run", {}).items())


def write(part: str, found: dict[str, Any]) -> Path:
    """This part of the day's receipt for the device; the other part of it stays."""
    name = torch.cuda.get_device_name()
    target = ROOT / "book" / "receipts" / f"gpu-{datetime.date.today().isoformat()}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    receipt = json.loads(target.read_text("utf-8")) if target.exists() else {}
    major, minor = torch.cuda.get_device_capability()
    receipt |= {"date": datetime.date.today().isoformat(),
                "device": {"name": name, "capability": f"{major}.{minor}", "bytes": torch.cuda.get_device_properties(0).total_memory},
                "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "triton": _triton()}, part: found}
    check_gpu_receipt(receipt, MECHANISMS)
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(receipt, indent=1) + "\n", "utf-8")
    return target


def _triton() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m positionlib.bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("correct", "time", "check", "warm", "small"), help="correct or time; the others are processes of these two")
    parser.add_argument("name", nargs="?", choices=tuple(MECHANISMS), help="the mechanism of a process")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        for name in names("time" if asked.part == "time" else "correct"):
            print(f"{name:40} {NO_GPU}")
        return 0
    if asked.part == "small":
        row = gpu_correct.small()
        print(row)
        return 9 if row.status == "FAILED" else 0
    if asked.part == "warm":
        gpu_time.warm(asked.name)
        return 0
    if asked.part == "check":
        for dtype in DTYPES:
            for call in CALLS:
                row = gpu_correct.check(MECHANISMS[asked.name], DTYPES[dtype], CALLS[call], f"{asked.name} {dtype} {call}")
                print(json.dumps(asdict(row)), flush=True)
        return 0
    until = time.monotonic() + SECONDS
    failed, found = correct(until) if asked.part == "correct" else timed(until)
    print(f"{failed} failed" if failed else "nothing failed")
    print(f"The receipt: {write(asked.part, found).relative_to(ROOT)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
