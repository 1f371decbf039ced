"""A position table as one file: every part that a migration changes, each checked against the others when it is read back.

    tensors     weight [P, D], position_ids [R], moments.NAME of the optimizer
    schema      positionlib.position-table.v1
    record      identity          the admission tuple: release and checkpoint id, method, rows, configured positions, policy, adapter, backend
                config            max_position_embeddings
                admission_limit   positions that have a row
                row_offset        rows before position 0
                provenance        [[word, rows], ...], first row first
                shards            count, and rows: [first, behind the last] of every shard
                digests           SHA-256 of every tensor's bytes

The file is a container (:mod:`positionlib.checkpoints.container`), so that any reader of safetensors can look into it. What two fields say
twice they must say alike: a weight with more rows than its configuration, or the shard offsets of the old table, is refused as it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from positionlib.checkpoints.container import Container, container_header, container_parts, open_container, read_object, tensor_bytes
from positionlib.checkpoints.migration import PositionTable
from positionlib.contract import is_finite_number
from positionlib.errors import require
from positionlib.identity import AdmissionTuple

SCHEMA = "positionlib.position-table.v1"
FIELDS = {"identity", "config", "admission_limit", "row_offset", "provenance", "shards", "digests"}
MOMENTS = "moments."


def table_file(table: PositionTable) -> tuple[str, Iterator[bytes | memoryview]]:
    """The digest of a table and the bytes of its file, part by part. SHA-256 of the header names all: it holds every tensor's own.

    Raises
    ------
    PositionContractError
        an identity that JSON does not give back as it was, or a moment that a container cannot hold.
    """
    tensors = {"weight": table.weight, "position_ids": table.position_ids} | {MOMENTS + name: moment for name, moment in table.moments.items()}
    container_header(tensors, {})  # refuses what has no bytes, before any are read
    record = _record(table) | {"digests": {name: _digest(tensor) for name, tensor in tensors.items()}}
    metadata = {"schema": SCHEMA, "record": json.dumps(record, separators=(",", ":"), allow_nan=False)}
    return hashlib.sha256(container_header(tensors, metadata)).hexdigest(), container_parts(tensors, metadata)


def read_table(path: str | Path, *, limit: int) -> tuple[PositionTable, str]:
    """The table in a file, and its digest. It may hold ``limit`` bytes of tensors; more are refused before any is read.

    Raises
    ------
    PositionContractError
        what is no container; another schema; a record that lacks a field, has one too many, or is at odds with its tensors or with itself;
        a tensor whose bytes are not those that were written.
    """
    with open_container(path) as file:
        schema = file.metadata.get("schema")
        require(schema == SCHEMA, "schema", schema, f"the supported schema {SCHEMA!r}",
                "A newer file is read by the library that wrote it: versions are not guessed.")
        require(set(file.metadata) == {"schema", "record"}, "record", sorted(file.metadata), "schema and record beside the tensors", "Write the table again.")
        record = read_object("record", file.metadata["record"])
        require_fields("record", record, FIELDS)
        size = sum(entry.end - entry.start for entry in file.entries.values())
        require(size <= limit, "file", f"{size} bytes of tensors: {path}", f"at most {limit} bytes", "Pass a larger limit, if you know this table.")
        tensors = _tensors(file, record["digests"])
        moments = {name.removeprefix(MOMENTS): tensor for name, tensor in tensors.items() if name.startswith(MOMENTS)}
        table = PositionTable(weight=tensors["weight"], identity=read_identity("record.identity", record["identity"]), row_offset=record["row_offset"],
                              provenance=_words(record["provenance"], len(tensors["weight"])), moments=moments, position_ids=tensors["position_ids"],
                              shards=_shards(record["shards"]))
        for name, want in _record(table).items():
            require(record[name] == want, f"record.{name}", record[name], f"{want}, as the tensors and the identity have it",
                    "Half of a migration is none: write the table again from one PositionTable.")
        return table, file.digest


def identity_record(name: str, identity: AdmissionTuple) -> dict[str, Any]:
    """An admission tuple for JSON; what would not come back as it was is refused."""
    told = identity._asdict()
    told |= {"position_method": list(identity.position_method) if isinstance(identity.position_method, tuple) else identity.position_method}
    require(read_identity(name, told) == identity, name, identity, "a tuple of texts, numbers and None", "Take it from identity(call, ...).admission_tuple.")
    return told


def read_identity(name: str, told: Any) -> AdmissionTuple:
    """The admission tuple that JSON gave.

    Raises
    ------
    PositionContractError
        by ``name`` and field: one that is missing, unknown, or of another type.
    """
    require_fields(name, told, set(AdmissionTuple._fields))
    for field, value in told.items():
        if field == "position_method":
            fits, expected = isinstance(value, list) and all(map(_is_plain, value)), "texts, numbers and None, as identity(call) makes it"
        elif field in ("table_rows", "config_max_position_embeddings"):
            fits, expected = type(value) is int, "a whole number"
        else:
            optional = field in ("adapter_id", "position_id_policy")
            fits, expected = isinstance(value, str) and value != "" or optional and value is None, "a text" + " or None" * optional
        require(fits, f"{name}.{field}", value, expected, "Take the identity from identity(call, ...).admission_tuple.")
    return AdmissionTuple(**told | {"position_method": tuple(told["position_method"])})


def require_fields(name: str, told: Any, fields: set[str]) -> None:
    """Refuse what is no object of exactly these fields."""
    require(isinstance(told, dict) and set(told) == fields, name, sorted(told) if isinstance(told, dict) else told, f"the fields {', '.join(sorted(fields))}",
            "No field is guessed and none is skipped: write it again.")


def _record(table: PositionTable) -> dict[str, Any]:
    """Everything of the table but its tensors, as JSON gives it back."""
    runs: list[list[Any]] = []
    for word in table.provenance:
        if runs and runs[-1][0] == word:
            runs[-1][1] += 1
        else:
            runs.append([word, 1])
    return {"identity": identity_record("identity", table.identity), "config": {"max_position_embeddings": table.identity.config_max_position_embeddings},
            "admission_limit": table.capacity, "row_offset": table.row_offset, "provenance": runs,
            "shards": {"count": table.shards, "rows": [list(rows) for rows in table.shard_rows]}}


def _tensors(file: Container, digests: Any) -> dict[str, Tensor]:
    """Every tensor of the file, its bytes compared with what was written."""
    names = set(file.entries)
    known = {"weight", "position_ids"} <= names and all(name in ("weight", "position_ids") or name.startswith(MOMENTS) for name in names)
    require(known, "file", sorted(names), f"weight, position_ids, and {MOMENTS}NAME", "Write the table again.")
    require(len(file.entries["weight"].shape) == 2, "weight", file.entries["weight"].shape, "a table [rows, width]", "Write the table again.")
    require_fields("record.digests", digests, names)
    tensors = {}
    for name in file.entries:
        tensors[name] = file.tensor(name)
        found = _digest(tensors[name])
        require(found == digests[name], name, f"SHA-256 {found}", f"SHA-256 {digests[name]}, as written",
                "Its bytes have changed: restore the file from a copy.")
    return tensors


def _words(runs: Any, rows: int) -> tuple[str, ...]:
    """One word a row. The runs are counted before they are written out."""
    fits = isinstance(runs, list) and all(isinstance(run, list) and len(run) == 2 and type(run[1]) is int and run[1] > 0 for run in runs)
    require(fits and sum(run[1] for run in runs) == rows, "record.provenance", runs, f"[word, rows] for {rows} rows in all", "Write the table again.")
    return tuple(word for word, count in runs for _ in range(count))


def _shards(told: Any) -> Any:
    """How many there are: no more than offsets are listed, so that a number alone asks for nothing."""
    require_fields("record.shards", told, {"count", "rows"})
    require(isinstance(told["rows"], list) and told["count"] == len(told["rows"]), "record.shards.count", told["count"], "one pair of rows a shard",
            "Write the table again.")
    return told["count"]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool)) or is_finite_number(value)


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()
