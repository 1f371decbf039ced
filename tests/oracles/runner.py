"""Read a manifest, run each case, print a line for it, and the totals."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from positionlib import PositionContractError
from tests.oracles import (
    alibi, deberta, graphormer, learned, multiaxis, music_transformer, position_ids, rope_handoff, shaw, sinusoidal, t5, time2vec,
    transformer_xl, tupe,
)
from tests.oracles.case import Case, NotCovered, Unreadable

Handler = Callable[[Case], None]
# mechanism -> (end of the source's file, start of its function, handler)
SOURCES: dict[str, list[tuple[str, str, Handler]]] = {
    "sinusoidal": sinusoidal.SOURCES,
    "t5": t5.SOURCES,
    "alibi": alibi.SOURCES,
    "learned_absolute": learned.SOURCES,
    "position_ids": position_ids.SOURCES,
    "shaw": shaw.SOURCES,
    "music_transformer": music_transformer.SOURCES,
    "transformer_xl": transformer_xl.SOURCES,
    "deberta": deberta.SOURCES,
    "tupe": tupe.SOURCES,
    "graphormer": graphormer.SOURCES,
    "multiaxis": multiaxis.SOURCES,
    "time2vec": time2vec.SOURCES,
    "rope_handoff": rope_handoff.SOURCES,
}
REFUSED = {"dynamic_bias": "a bias that a small network computes from the distance: the library's biases are tables and slopes"}


class CorruptManifest(Exception):
    """The folder holds no manifest that can be read."""


@dataclass(frozen=True)
class Verdict:
    """``pass``, ``FAIL``, ``refused`` (out of the library's scope) or ``not covered``; the reason of the last three; the case, when its arrays could be read."""

    status: str
    reason: str = ""
    case: Case | None = None

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status


def run(folder: str | Path, *, verbose: bool = False, out: TextIO | None = None) -> int:
    """Print a line a case and the totals; 1 when a case fails, else 0."""
    out, folder = out or sys.stdout, Path(folder)
    counts = {"pass": 0, "FAIL": 0, "refused": 0, "not covered": 0}
    for entry in read_manifest(folder):
        verdict = run_case(folder, entry)
        counts[verdict.status] += 1
        print(f"{entry['mechanism']}/{entry['case']} {verdict}", file=out)
        if verbose and verdict.case is not None:
            for name, error in sorted(verdict.case.errors.items()):
                print(f"    {name}: largest error {error:.3g}", file=out)
            print(f"    read: {', '.join(sorted(verdict.case.taken)) or 'nothing'}", file=out)
    print(f"{sum(counts.values())} cases: {', '.join(f'{n} {status}' for status, n in counts.items())}", file=out)
    return 1 if counts["FAIL"] else 0


def read_manifest(folder: Path) -> list[dict]:
    """The entries of ``manifest.json``, each with the fields that a run needs."""
    path = folder / "manifest.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptManifest(f"{path}: {error}") from None
    entries = document.get("entries") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not entries:
        raise CorruptManifest(f"{path}: expected a list of entries, or an object with a list \"entries\"")
    for number, entry in enumerate(entries):
        fields = {"mechanism": str, "case": str, "file": str, "source": dict}
        wrong = [name for name, kind in fields.items() if not isinstance(entry, dict) or not isinstance(entry.get(name), kind)]
        if wrong:
            raise CorruptManifest(f"{path}: entry {number} lacks {', '.join(wrong)}, or has it in another form")
    return [{**entry, "inputs": shared} if (shared := same_inputs(entry, entries)) else entry for entry in entries]


def same_inputs(entry: dict, entries: list[dict]) -> dict | None:
    """The entry whose file the settings name by "inputs": "identical to FILE"."""
    stem = str((entry.get("settings") or {}).get("inputs", "")).removeprefix("identical to ")
    return next((other for other in entries if stem and other["mechanism"] == entry["mechanism"] and Path(other["file"]).stem == stem), None)


def run_case(folder: Path, entry: dict) -> Verdict:
    """Run one case. Its name takes no part in the decision what to run."""
    if entry["mechanism"] in REFUSED:
        return Verdict("refused", REFUSED[entry["mechanism"]])
    case = None
    try:
        inputs = entry.get("inputs")
        case = Case(entry, read_arrays(folder, entry), inputs and Case(inputs, read_arrays(folder, inputs)))
        handler_for(case)(case)
    except NotCovered as reason:
        if not case.problems:
            return Verdict("not covered", str(reason), case)
    except Unreadable as error:
        return Verdict("FAIL", str(error), case)
    except PositionContractError as refusal:
        return Verdict("FAIL", f"the library refused: {refusal}", case)
    except Exception as error:  # a case that its handler cannot compute has failed, whatever went wrong
        return Verdict("FAIL", f"{type(error).__name__}: {error}", case)
    if case.problems:
        return Verdict("FAIL", "; ".join(case.problems), case)
    unknown = case.unknown()
    if unknown:
        return Verdict("not covered", f"unknown array {', '.join(unknown)}", case)
    if not case.errors:
        return Verdict("FAIL", "no array was compared", case)
    return Verdict("pass", case=case)


def read_arrays(folder: Path, entry: dict) -> dict[str, np.ndarray]:
    """The arrays of a case, after its checksum, names, shapes and dtypes were compared with the manifest."""
    path = (folder / entry["file"]).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Unreadable(f"{entry['file']} lies outside the folder")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{entry['file']} cannot be read: {error.strerror}") from None
    if entry.get("sha256") not in (None, hashlib.sha256(data).hexdigest()):
        raise Unreadable(f"{entry['file']} has another sha256 than the manifest states")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise Unreadable(f"{entry['file']} is no archive of plain arrays: {error}") from None
    described = entry.get("arrays")
    if described is not None:
        if set(described) != set(arrays):
            raise Unreadable(f"manifest and file differ in the arrays {', '.join(sorted(set(described) ^ set(arrays)))}")
        for name, fields in described.items():
            stated = (fields.get("shape", list(arrays[name].shape)), fields.get("dtype", str(arrays[name].dtype)))
            if stated != (list(arrays[name].shape), str(arrays[name].dtype)):
                raise Unreadable(f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, the manifest states {stated[1]}{stated[0]}")
    return arrays


def handler_for(case: Case) -> Handler:
    """The handler of the case's source. Only the mechanism, the source's file and its function are looked at."""
    mechanism, file, function = case.entry["mechanism"], case.source.get("file", ""), case.source.get("function", "")
    if mechanism not in SOURCES:
        raise NotCovered(f"the library has no {mechanism} yet")
    for end, start, handler in SOURCES[mechanism]:
        if file.endswith(end) and function.startswith(start):
            return handler
    raise NotCovered(f"no library call is known for {function or 'an unnamed function'} of {file or 'an unnamed file'}")
