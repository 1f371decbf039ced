"""A release of a position table on disk: whatever happens to the process that writes, the old release or the new one is there, whole.

    FOLDER/release.json                  the manifest: states passed, the names of the old and the new table, the receipt, a revision
    FOLDER/table-SHA256.safetensors      one table each (:mod:`positionlib.checkpoints.table_file`), named by what it holds
    FOLDER/release.lock                  held by the one process that writes; the system lets go of it when the process ends
    FOLDER/writing.tmp                   what a process was writing when it was killed; never read, and replaced by the next write

    stored = load_release(folder)                                      every digest, every identity, every rule of a release
    release = stored.release.table_migrated(new)
    save_release(folder, release, replaces=stored.revision)            0 for a folder without a release

A save writes the tables that are not there yet, then the manifest. Each file is written under a temporary name in the same folder, flushed to
the disk, renamed to its own name, and the folder is flushed too. The rename of the manifest is the one moment at which the release changes:
before it the old manifest names old files, after it the new one names files that were on the disk before. No table is ever written over or
removed, so rolling back is a save of ``stored.release.rolled_back()``: the old table's file is the one that was served. Files that no manifest
names any more are yours to remove.

Two processes cannot write at once, and neither can the second one write over what the first decided: ``replaces`` is the revision it has read.

Nothing that is read is executed, and nothing is believed: names are plain, texts are bounded, digests and identities are compared, and a
release is walked again as far as its files prove it. That the model held what was saved (CHECKPOINT_RECONCILED) and that the base range kept
its outputs was seen by those who entered these states; the manifest repeats it. A digest finds damage, not a forger, who can compute one.

Each step of a write raises the audit event ``positionlib.checkpoints.store`` with one of ``POINTS`` and the file's path (``sys.addaudithook``).

Sources: the article's section 0x07; rename(2), fsync(2) and flock(2) of POSIX and Linux, which this needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from positionlib.checkpoints.container import read_object
from positionlib.checkpoints.migration import PositionTable
from positionlib.checkpoints.release import SKIPPABLE, OutsideReceipt, Release
from positionlib.checkpoints.table_file import identity_record, read_identity, read_table, require_fields, table_file
from positionlib.errors import PositionContractError, require, require_count

SCHEMA = "positionlib.release.v1"
MANIFEST, LOCK, TEMPORARY = "release.json", "release.lock", "writing.tmp"
TABLE = re.compile(r"table-([0-9a-f]{64})\.safetensors")
FIELDS = {"schema", "revision", "passed", "old", "new", "receipt", "sha256"}
MANIFEST_LIMIT = 2**20  # bytes; one holds about a thousand
TABLE_LIMIT = 2**30  # bytes of a table with its moments: 65,536 rows of 1,024 in float32, three times, and more
POINTS = ("locked", *(f"{kind} {act}" for kind in ("table", "manifest") for act in ("opened", "begun", "written", "synced", "named", "kept")))


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """A release as it was read, and the revision that a save of what follows it replaces."""

    release: Release
    revision: int


def load_release(folder: str | Path, *, limit: int = TABLE_LIMIT) -> StoredRelease:
    """The release in a folder. Readers need no lock, and may read while another process writes.

    Parameters
    ----------
    limit : bytes of tensors that one table may hold.

    Raises
    ------
    PositionContractError
        a folder without a release; a manifest or a table that is damaged, hostile, of an unknown schema, or at odds with itself or with the other.
    """
    folder = _place(folder)
    told = _manifest(folder)
    require(told is not None, "folder", str(folder), f"a folder with {MANIFEST}", "Save a release there first, or check the path.")
    tables = {name: _table(folder, name, told[name], limit) for name in ("old", "new") if told[name] is not None}
    return StoredRelease(_walked(tables["old"], tables.get("new"), tuple(told["passed"]), _receipt(told["receipt"])), told["revision"])


def save_release(folder: str | Path, release: Release, *, replaces: int) -> int:
    """Save a release in a folder, which is made when it is missing (its parent is not), and return its revision.

    Parameters
    ----------
    replaces : the revision that was loaded; 0 where there is none.

    Raises
    ------
    PositionContractError
        another process is writing, or has written since; a manifest that cannot be read; a disk that is full or refuses. What was in the
        folder before is there still, unless the refusal came from the last flush: then it is one of the two, and loading tells which.
    """
    folder = _place(folder)
    require(isinstance(release, Release), "release", release, "a Release", "Walk one from Release.draft.")
    require_count("replaces", replaces, 0)
    try:
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)
        with _locked(folder):
            told = _manifest(folder)
            revision = told["revision"] if told else 0
            require(replaces == revision, "replaces", replaces, f"{revision}, the revision that is there",
                    "Somebody saved since you loaded: load again, and decide again.")
            names = {name: table and _kept(folder, table) for name, table in (("old", release.old), ("new", release.new))}
            receipt = release.receipt and asdict(release.receipt) | {"identity": identity_record("receipt.identity", release.receipt.identity)}
            told = {"schema": SCHEMA, "revision": revision + 1, "passed": list(release.passed), **names, "receipt": receipt}
            text = json.dumps(told | {"sha256": _digest(told)}, indent=1, allow_nan=False)
            _put(folder, MANIFEST, "manifest", (line.encode() for line in text.splitlines(keepends=True)))
    except OSError as error:
        raise PositionContractError("folder", f"{error.strerror}: {folder}", "a folder on a disk that takes the whole release",
                                    "Mend the disk and save again; load_release says what is served meanwhile.") from error
    return revision + 1


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The only writer of the folder; a lock ends with its process, however that ends."""
    with open(folder / LOCK, "ab", opener=_no_pipe_no_link) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PositionContractError("folder", str(folder), "no other writer",
                                        "Another process is saving: let it end, load again, and decide again.") from None
        _audit("locked", folder)
        yield


def _no_pipe_no_link(path: str, flags: int) -> int:
    """A lock is a file of this folder: a pipe would wait for its reader, and a link would make a file elsewhere."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def _place(folder: str | Path) -> Path:
    require(isinstance(folder, (str, Path)) and "\0" not in str(folder), "folder", folder, "a path", "Name the folder of the release.")
    return Path(folder)


def _kept(folder: Path, table: PositionTable) -> str:
    """The name of the table's file, which is written unless it is there, whole."""
    digest, parts = table_file(table)
    name = f"table-{digest}.safetensors"
    try:
        _table(folder, "table", name, sys.maxsize)
    except PositionContractError:  # not there, or damaged: this very table mends it
        _put(folder, name, "table", parts)
    return name


def _put(folder: Path, name: str, kind: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write one file whole or not at all."""
    temporary = folder / TEMPORARY
    temporary.unlink(missing_ok=True)  # of a writer that was killed: the lock says that none is alive
    try:
        with temporary.open("xb") as stream:
            _audit(f"{kind} opened", temporary)
            for number, part in enumerate(parts):
                stream.write(part)
                if number == 0:
                    stream.flush()
                    _audit(f"{kind} begun", temporary)
            stream.flush()
            _audit(f"{kind} written", temporary)
            os.fsync(stream.fileno())
            _audit(f"{kind} synced", temporary)
        os.replace(temporary, folder / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _audit(f"{kind} named", folder / name)
    _sync(folder)
    _audit(f"{kind} kept", folder / name)


def _sync(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _audit(point: str, path: Path) -> None:
    sys.audit("positionlib.checkpoints.store", point, str(path))


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What the manifest says, its own form checked; None where there is none."""
    path = folder / MANIFEST
    try:
        if not path.exists():
            return None
        require(path.is_file(), "file", str(path), "a regular file", "A folder or a pipe holds no manifest: move it away.")
        with path.open("rb") as stream:
            text = stream.read(MANIFEST_LIMIT + 1)
    except OSError as error:
        raise PositionContractError("file", str(path), "a readable file", f"{error.strerror}.") from None
    require(len(text) <= MANIFEST_LIMIT, "file", f"more than {MANIFEST_LIMIT} bytes: {path}", f"at most {MANIFEST_LIMIT} bytes",
            "A manifest names files and holds none.")
    told = read_object("manifest", text)
    schema = told.get("schema")
    require(schema == SCHEMA, "schema", schema, f"the supported schema {SCHEMA!r}",
            "A newer manifest is read by the library that wrote it: versions are not guessed.")
    require_fields("manifest", told, FIELDS)
    found = _digest({name: value for name, value in told.items() if name != "sha256"})
    require(told["sha256"] == found, "sha256", told["sha256"], f"{found}, of what it says",
            "The manifest has changed since it was written: restore it from a copy.")
    require(require_count("revision", told["revision"]) < 2**62, "revision", told["revision"], "fewer than 2^62 saves", "Restore the manifest from a copy.")
    texts = isinstance(told["passed"], list) and all(isinstance(state, str) for state in told["passed"])
    require(texts, "passed", told["passed"], "names of states", "Save the release again.")
    for name in ("old", "new"):
        plain = isinstance(told[name], str) and TABLE.fullmatch(told[name]) is not None
        require(plain or name == "new" and told[name] is None, name, told[name], "table-SHA256.safetensors, a file of this folder", "Save the release again.")
    return told


def _table(folder: Path, name: str, file: str, limit: int) -> PositionTable:
    """The table of that file, which must hold what its name says."""
    try:
        table, digest = read_table(folder / file, limit=limit)
        require(digest == TABLE.fullmatch(file)[1], "digest", digest, "the digest in the file's name", "Its header has changed: restore the file from a copy.")
    except PositionContractError as error:
        raise PositionContractError(f"{name}.{error.field}", error.value, error.expected, error.remedy) from None
    return table


def _receipt(told: Any) -> OutsideReceipt | None:
    if told is None:
        return None
    require_fields("receipt", told, {"issuer", "identity", "first", "last", "result"})
    require(type(told["first"]) is type(told["last"]) is int, "receipt.positions", (told["first"], told["last"]), "whole numbers", "Save the release again.")
    return OutsideReceipt(**told | {"identity": read_identity("receipt.identity", told["identity"])})


def _walked(old: PositionTable, new: PositionTable | None, passed: tuple[str, ...], receipt: OutsideReceipt | None) -> Release:
    """The release, walked again: what its files prove is proved again."""
    claimed = Release(old=old, new=new, passed=passed, receipt=receipt)
    if "CHECKPOINT_RECONCILED" in passed:  # the rows may have been trained since, and the moments with them
        require(SKIPPABLE in passed or not new.moments, "passed", passed, f"{SKIPPABLE}, for the table carries moments", "Save the release again.")
        walked = Release(old=old, new=new, passed=passed[: len(passed) - (receipt is not None) - (claimed.state == "RELEASED")])
    else:
        walked = Release.draft(old) if new is None else Release.draft(old).table_migrated(new)
        walked = walked.optimizer_migrated() if SKIPPABLE in passed else walked
    if receipt is not None:
        walked = walked.extended_range_evaluated(receipt)
    return walked.released() if claimed.state == "RELEASED" else walked


def _digest(told: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
