"""Safetensors files, read here and nowhere executed: eight bytes of length, a JSON header, and one buffer.

    state, config = read_checkpoint("gpt2")         a folder as it is published: config.json, and one file of weights or several
    state = read_safetensors("model.safetensors")

What is read is hostile until proven otherwise. The header is bounded and has to fit the file; every tensor's bytes have to be the bytes
that its shape and dtype need; the tensors have to cover the buffer without a gap or an overlap. Memory is the file's own size and no more.
A pickle (.bin, .pt, .pth, .ckpt) is named and refused: unpickling it runs what it says.

Source: the format's description in huggingface/safetensors at ead9d7b, README.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from positionlib.errors import PositionContractError, require, whole_number

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
HEADER_LIMIT = 4 * 2**20  # bytes; a tensor takes about 100, and a checkpoint of 10,000 tensors is split into many files
DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
          "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
# What else a file may begin with. Read as a length, the eight bytes of each are far beyond the limit.
OTHERS = {b"PK\x03\x04": "a zip archive, as torch.save writes", b"\x80": "a pickle", b"\x93NUMPY": "a NumPy array", b"GGUF": "a GGUF file"}


@dataclass(frozen=True)
class _Entry:
    """Where one tensor lies: bytes begin..end−1 of the buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_checkpoint(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(the tensors by name, the configuration) of a folder with config.json and model.safetensors, or the shards that an index names.

    Raises
    ------
    PositionContractError
        as :func:`read_safetensors`; a JSON file that is no sound object; an index that names a file outside the folder, or tensors that
        are not those of its shards.
    """
    require(isinstance(folder, (str, Path)), "folder", folder, "a path", "Name the folder of the checkpoint.")
    place = Path(folder)
    config = _json(place / CONFIG)
    try:
        whole = (place / WEIGHTS).is_file()
    except ValueError:  # a name with a null byte
        whole = False
    if whole:
        return read_safetensors(place / WEIGHTS), config
    shard_of = _json(place / INDEX).get("weight_map")
    require(isinstance(shard_of, dict) and all(isinstance(name, str) and Path(name).name == name for name in shard_of.values()), "weight_map", shard_of,
            "plain file names by tensor", "An index names files of its own folder.")
    state = {}
    for shard in sorted(set(shard_of.values())):
        held = read_safetensors(place / shard)
        wanted = {name for name, file in shard_of.items() if file == shard}
        require(held.keys() == wanted, f"weight_map, {shard}", sorted(held.keys() ^ wanted), "no tensor but those that the index has in this file",
                "Shards of two checkpoints were mixed: fetch them again.")
        state |= held
    return state, config


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content = stream.read(HEADER_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise PositionContractError("file", str(path), "a readable file", f"{getattr(error, 'strerror', None) or error}.") from None
    require(len(content) <= HEADER_LIMIT, "file", str(path), f"at most {HEADER_LIMIT} bytes", "No configuration is so long.")
    return _object(content)


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, on the CPU, each with memory of its own.

    Raises
    ------
    PositionContractError
        ``file``: unreadable, a pickle, truncated or longer than its header says, or a header that is no sound JSON object.
        A tensor's name: an unknown dtype, a shape that its bytes do not fit, bytes outside the buffer or another tensor's.
    """
    require(isinstance(path, (str, Path)), "file", path, "a path", "Name the file.")
    try:
        require(Path(path).is_file(), "file", str(path), "a file", "Check the path.")
        with Path(path).open("rb") as stream:
            return _tensors(stream, Path(path))
    except PositionContractError:
        raise
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise PositionContractError("file", str(path), "a readable file", f"{getattr(error, 'strerror', None) or error}.") from None


def _tensors(stream: BinaryIO, path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    start, entries = _entries(stream, str(path), size)
    found = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        data = bytearray(entry.end - entry.begin)
        stream.seek(start + entry.begin)
        require(stream.readinto(data) == len(data), "file", str(path), f"{size} bytes", "It became shorter while it was read: copy it first.")
        require(entry.dtype != torch.bool or not data.translate(None, b"\x00\x01"), name, "a byte above 1", "0 or 1, as BOOL", "Write the file again.")
        flat = torch.frombuffer(data, dtype=entry.dtype) if data else torch.empty(0, dtype=entry.dtype)
        found[name] = flat.reshape(entry.shape)
    return found


def _entries(stream: BinaryIO, path: str, size: int) -> tuple[int, dict[str, _Entry]]:
    """(where the buffer starts, the entries), all of them sound."""
    head = stream.read(8)
    length = int.from_bytes(head, "little")
    if not (len(head) == 8 and 2 <= length <= min(size - 8, HEADER_LIMIT)):
        known = next((what for magic, what in OTHERS.items() if length > HEADER_LIMIT and head.startswith(magic)), None)
        require(known is None, "file", f"{known}: {path}", "a safetensors file", "Nothing is unpickled here. Load it where you trust it, with "
                "torch.load(weights_only=True), and write it with safetensors.torch.save_file.")
        raise PositionContractError("file", f"a header of {length} bytes in a file of {size}: {path}", f"one that fits the file and {HEADER_LIMIT} bytes",
                                    "It is truncated, no safetensors file, or has so many tensors that it should be split.")
    content = stream.read(length)
    require(content[:1] == b"{", "file", path, "a header of one JSON object", "Write the file with save_file.")
    header = _object(content)
    notes = header.pop("__metadata__", {})
    require(isinstance(notes, dict) and all(isinstance(value, str) for value in notes.values()), "__metadata__", notes, "texts by name",
            "Write the file with save_file.")
    entries = {name: _entry(name, fields, size - 8 - length) for name, fields in header.items()}
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        require(entry.begin == reached, name, (entry.begin, entry.end), f"bytes from {reached} on, where the tensor before it ends",
                "Tensors neither overlap nor leave a gap: write the file again.")
        reached = entry.end
    require(reached == size - 8 - length, "file", f"{size - 8 - length} bytes behind the header: {path}", f"{reached}, as the header says",
            "It is truncated, or something was appended.")
    return 8 + length, entries


def _object(content: bytes) -> dict[str, Any]:
    """The one JSON object of these bytes, each name in it once."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            require(name not in found, "file", f"the name {name[:80]!r} twice in one object", "each name once", "One of the two would be read: write it again.")
            found[name] = value
        return found

    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        held = json.loads(content.decode("utf-8"), object_pairs_hook=unique, parse_constant=refused)
    except PositionContractError:
        raise
    except (ValueError, RecursionError) as error:
        raise PositionContractError("file", " ".join(str(error).split())[:120], "one JSON object", "Write the file again.") from None
    require(isinstance(held, dict), "file", type(held).__name__, "one JSON object", "Write the file again.")
    return held


def _entry(name: str, fields: Any, room: int) -> _Entry:
    require(isinstance(fields, Mapping) and set(fields) == {"dtype", "shape", "data_offsets"}, name, fields, "dtype, shape and data_offsets, no more",
            "Another schema's fields may mean something else.")
    dtype = DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    require(dtype is not None, f"{name}.dtype", fields["dtype"], f"one of {', '.join(DTYPES)}", "Convert the weights to a dtype that has arithmetic.")
    shape, offsets = fields["shape"], fields["data_offsets"]
    for part, numbers in (("shape", shape), ("data_offsets", offsets)):
        whole = isinstance(numbers, list) and len(numbers) <= 64 and all(whole_number(n) is not None and n >= 0 for n in numbers)
        require(whole, f"{name}.{part}", numbers, "whole numbers of at least 0", "Write the file again.")
    require(len(offsets) == 2 and offsets[0] <= offsets[1] <= room, f"{name}.data_offsets", offsets, f"begin and end within the {room} bytes behind the header",
            "It is truncated, or was written by hand.")
    # Also of an empty tensor, whose other lengths torch multiplies.
    require(math.prod(max(n, 1) for n in shape) < 2**62, f"{name}.shape", shape, "fewer than 2^62 numbers", "Write the file again.")
    needed = math.prod(shape) * dtype.itemsize
    require(offsets[1] - offsets[0] == needed, f"{name}.data_offsets", offsets, f"{needed} bytes, as shape {shape} of {fields['dtype']} needs",
            "Shape, dtype or offsets are wrong: write the file again.")
    return _Entry(dtype, tuple(shape), *offsets)
