"""Execute chapters and write them in one normal form; `--check` compares instead of writing.

    python book/tools/execute.py chapters/*.ipynb           execute and write
    python book/tools/execute.py --check chapters           execute twice, compare

The normal form makes a re-execution give the same bytes: cell ids come from the cells, widget ids from the order in
which the widgets were made, metadata from a whitelist. `--check` wants two executions equal byte for byte, and
equal by value to what is committed: text, HTML, SVG, JSON and widget states are the same, pictures may have other bytes
(another processor draws them otherwise). An execution that hangs is tried once more; a comparison that fails never is.
"""
import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
STATE = "application/vnd.jupyter.widget-state+json"
CELL_METADATA = {"tags", "nbgrader", "mystnb"}
NOTEBOOK_METADATA = {"widgets", "mystnb"}
PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
CELL_SECONDS = 120
NOTEBOOK_SECONDS = 600
TIMED_OUT = 75  # exit status of a child whose kernel gave no answer in time

STEADY = {  # what a notebook prints must not depend on cores, GPU, hash seed or a user's own settings
    "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "", "JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}


class NotebookTimeout(TimeoutError):
    """An execution gave no answer in time."""


class NotebookError(RuntimeError):
    """A cell raised; the message is the traceback."""


# --- one execution --------------------------------------------------------------------------------------------------

def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run every cell in a new kernel with `folder` as working directory; old outputs and widget states are dropped."""
    from nbclient import NotebookClient

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata.pop("widgets", None)
    NotebookClient(notebook, timeout=CELL_SECONDS, startup_timeout=60, kernel_name="python3", record_timing=False,
                   coalesce_streams=True, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def run_apart(path: Path, limit: float = NOTEBOOK_SECONDS) -> str:
    """Execute `path` in a process of its own and return its normal form.

    Raises NotebookTimeout when a cell or the whole notebook is late, NotebookError when a cell raises.
    """
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "executed.ipynb"
        # A profile of its own: no start-up files of the user, no history database shared with another kernel.
        environment = os.environ | STEADY | {"IPYTHONDIR": scratch}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, str(Path(__file__).resolve()), "--once", str(written), str(path.resolve())]
        complaint = Path(scratch) / "stderr"  # a file: a kernel that outlives its client would keep a pipe open
        try:
            with complaint.open("w") as stderr:
                done = subprocess.run(command, env=environment, stdout=stderr, stderr=stderr, timeout=limit)
        except subprocess.TimeoutExpired:
            raise NotebookTimeout(f"{path.name}: no end after {limit:.0f} s") from None
        if done.returncode == TIMED_OUT:
            raise NotebookTimeout(f"{path.name}: a cell gave no answer in {CELL_SECONDS} s")
        if done.returncode:
            raise NotebookError(f"{path.name}:\n{complaint.read_text('utf-8', 'replace')[-4000:]}")
        return written.read_text("utf-8")


def with_one_retry(run: Callable[[Path], str], path: Path) -> str:
    """`run(path)`, and once more if it timed out: a kernel now and then never answers, whatever the notebook."""
    try:
        return run(path)
    except NotebookTimeout as late:
        print(f"late    {late}; trying once more", flush=True)
        return run(path)


def _once(path: Path, written: Path) -> int:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    try:
        notebook = execute(nbformat.read(path, as_version=4), path.parent)
    except CellTimeoutError:
        return TIMED_OUT
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    written.write_text(normal_form(notebook, path.stem), "utf-8")
    return 0


# --- the normal form ------------------------------------------------------------------------------------------------

def cell_ids(notebook: nbformat.NotebookNode) -> list[str]:
    """One id a cell, from its kind and source, so that inserting a cell leaves the others' ids alone."""
    ids, seen = [], {}
    for cell in notebook.cells:
        stem = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[stem] = seen.get(stem, 0) + 1
        ids.append(stem if seen[stem] == 1 else f"{stem}-{seen[stem]}")
    return ids


def normal_form(notebook: nbformat.NotebookNode, stem: str) -> str:
    """The text of `notebook` in normal form; `stem` (the file's name) keeps widget ids apart between chapters."""
    notebook = nbformat.from_dict(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {name: value for name, value in notebook.metadata.items() if name in NOTEBOOK_METADATA} | {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        })
    for cell, name in zip(notebook.cells, cell_ids(notebook), strict=True):
        cell.id = name
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in cell.metadata if key in CELL_METADATA})
    # The client keeps the states in the order in which their widgets were made; the ids themselves are random.
    states = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    renamed = {old: hashlib.sha256(f"{stem}/{n}".encode()).hexdigest()[:32] for n, old in enumerate(states)}
    if set(states) == set(renamed.values()):
        renamed = {}  # already renamed (and then sorted), the order of making is gone
    text = nbformat.writes(notebook) + "\n"
    if renamed:
        text = re.sub("|".join(map(re.escape, renamed)), lambda match: renamed[match[0]], text)
        text = nbformat.writes(nbformat.reads(text, as_version=4)) + "\n"  # keys sorted by the new names
    return text


# --- comparison -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Difference:
    where: str  # "cell 3, output 0, text/plain"
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Comparison:
    differences: list[Difference] = field(default_factory=list)
    repainted: list[str] = field(default_factory=list)  # pictures whose bytes alone differ

    def note(self, where: str, ours, theirs) -> None:
        if ours != theirs:
            self.differences.append(Difference(where, first_difference(ours, theirs)))


def first_difference(ours, theirs) -> str:
    """Where two JSON values part, in words: the path to the place, then both values around it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(set(ours) | set(theirs)):
            if key not in ours or key not in theirs:
                return f"{key!r} is only in {'the committed one' if key in ours else 'the new one'}"
            if ours[key] != theirs[key]:
                return f"{key} > {first_difference(ours[key], theirs[key])}"
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        at = next(i for i in range(len(ours)) if ours[i] != theirs[i])
        return f"[{at}] > {first_difference(ours[at], theirs[at])}"
    if isinstance(ours, str) and isinstance(theirs, str):
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        start = max(0, at - 20)
        return f"at character {at}: {ours[start:at + 40]!r} became {theirs[start:at + 40]!r}"
    return f"{ours!r:.80} became {theirs!r:.80}"


def compare(committed: str, fresh: str) -> Comparison:
    """Compare two notebooks in normal form by value: all but the bytes of pictures must agree."""
    ours, theirs = (nbformat.reads(text, as_version=4) for text in (committed, fresh))
    found = Comparison()
    found.note("number of cells", len(ours.cells), len(theirs.cells))
    for index, (old, new) in enumerate(zip(ours.cells, theirs.cells)):
        found.note(f"cell {index}, kind", old.cell_type, new.cell_type)
        found.note(f"cell {index}, source", old.source, new.source)
        _compare_outputs(found, f"cell {index}", old.get("outputs", []), new.get("outputs", []))
    found.note("widget states", *(nb.metadata.get("widgets", {}).get(STATE, {}) for nb in (ours, theirs)))
    return found


def _compare_outputs(found: Comparison, cell: str, ours: list, theirs: list) -> None:
    if [o.output_type for o in ours] != [o.output_type for o in theirs]:
        found.note(f"{cell}, kinds of output", [o.output_type for o in ours], [o.output_type for o in theirs])
        return
    for index, (old, new) in enumerate(zip(ours, theirs)):
        where = f"{cell}, output {index}"
        if old.output_type == "stream":
            found.note(f"{where}, name of the stream", old.name, new.name)
            found.note(f"{where}, {old.name}", old.text, new.text)
        elif old.output_type == "error":
            found.note(f"{where}, error", f"{old.ename}: {old.evalue}", f"{new.ename}: {new.evalue}")
        else:
            found.note(f"{where}, kinds of data", sorted(old.data), sorted(new.data))
            for mime in sorted(set(old.data) & set(new.data)):
                if mime not in PICTURES:
                    found.note(f"{where}, {mime}", old.data[mime], new.data[mime])
                elif old.data[mime] != new.data[mime]:
                    found.repainted.append(f"{where}, {mime}")


def check(path: Path, run: Callable[[Path], str] = run_apart) -> tuple[bool, list[str]]:
    """(all is the same, lines to print) for one chapter; `run` executes it and returns its normal form."""
    committed = path.read_text("utf-8")
    try:
        first, second = with_one_retry(run, path), with_one_retry(run, path)
    except (NotebookTimeout, NotebookError) as error:
        return False, [f"  {error}"]
    lines = []
    if normal_form(nbformat.reads(committed, as_version=4), path.stem) != committed:
        lines.append("  the file is not in normal form: make notebooks")
    if first != second:
        twice = compare(first, second)
        places = [*map(str, twice.differences), *twice.repainted] or ["outside the outputs"]
        lines += [f"  two executions differ: {place}" for place in places[:8]]
    against = compare(committed, first)
    lines += [f"  {difference}" for difference in against.differences[:8]]
    same = not lines
    lines += [f"  (another picture, same text: {place})" for place in against.repainted]
    return same, lines


# --- command --------------------------------------------------------------------------------------------------------

def chapters(paths: Iterable[Path]) -> list[Path]:
    """Notebooks among `paths`, with those inside a folder, in order."""
    return [nb for path in paths for nb in (sorted(path.glob("*.ipynb")) if path.is_dir() else [path])]


def _write(path: Path) -> tuple[bool, str]:
    try:
        path.write_text(with_one_retry(run_apart, path), "utf-8")
        return True, f"wrote   {path}"
    except (NotebookTimeout, NotebookError) as error:
        return False, f"FAILED  {error}"


def _check(path: Path) -> tuple[bool, str]:
    begun = time.monotonic()
    same, lines = check(path)
    head = f"{'same   ' if same else 'DIFFERS'} {path} ({time.monotonic() - begun:.0f} s, two executions)"
    return same, "\n".join([head, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time")
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="+", type=Path)
    args = parser.parse_args()
    if args.once:
        return _once(args.paths[0], args.once)
    notebooks, good = chapters(args.paths), True
    if not notebooks:
        print("no notebook found")
        return 1
    with ThreadPoolExecutor(args.jobs) as pool:
        for fine, line in pool.map(_check if args.check else _write, notebooks):
            good &= fine
            print(line, flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
