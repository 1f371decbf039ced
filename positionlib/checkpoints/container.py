"""Named tensors in one file, and nothing else: the safetensors format, read as hostile and written plain.

    8 bytes  N, little-endian        N bytes  a JSON object        the tensors' bytes, little-endian, without a hole or an overlap

The object names each tensor's ``dtype``, ``shape`` and ``data_offsets`` [start, end), counted from behind the header; ``__metadata__`` holds
texts by name. No byte of it is ever executed: a pickle is refused by its first bytes, and a header is plain JSON with each key once.

Whoever writes a file can lie in its header, so every number in it is compared with the bytes that are there before memory is asked for:
what a reader allocates is bounded by ``HEADER_LIMIT`` and by the size of the tensors that it asks for, each of which the file really holds.

Source: huggingface/safetensors 000a16f, safetensors/src/tensor.rs. Stricter here: keys that repeat, a header above 4 MiB (there 100 MB).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from positionlib.errors import PositionContractError, require

HEADER_LIMIT = 4 * 2**20  # bytes; some 40,000 tensors. Parsed, a hostile header takes about 30 times as much.
DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
          "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
# What else a file may begin with. Read as a length, the eight bytes of each are far beyond the limit.
OTHERS = {b"PK\x03\x04": "a zip archive, as torch.save writes", b"\x80": "a pickle", b"\x93NUMPY": "a NumPy array", b"GGUF": "a GGUF file"}


@dataclass(frozen=True)
class Entry:
    """Where one tensor stands: its bytes are ``start``..``end`` behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Container:
    """A container that is open; make it with :func:`open_container`.

    Attributes
    ----------
    entries : every tensor's place, by name, in the order of the header.
    metadata : the texts beside the tensors.
    digest : SHA-256 of the header, in hexadecimal.
    """

    stream: BinaryIO
    data_starts: int
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    digest: str

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, in memory of its own; nothing else of the file is read.

        Raises
        ------
        PositionContractError
            a name that is not there, a boolean that is neither 0 nor 1, or bytes that have gone since the file was opened.
        """
        entry = self.entries.get(name)
        if entry is None:  # asked first: the names are listed once, not for each tensor that is there
            raise PositionContractError(name, None, f"a tensor of this file, one of {', '.join(self.entries) or 'none'}"[:400], "Read the file that holds it.")
        data = bytearray(entry.end - entry.start)
        self.stream.seek(self.data_starts + entry.start)
        got = self.stream.readinto(data)
        require(got == len(data), name, f"{got} bytes", f"{len(data)} bytes, as when the file was opened",
                "Nobody may write a file that is read: replace it as a whole.")
        if not data:
            return torch.empty(entry.shape, dtype=entry.dtype)
        # A byte of 2 is no boolean that torch knows, and no digest would be that of the tensor.
        require(entry.dtype != torch.bool or not data.translate(None, b"\x00\x01"), name, "a byte above 1", "0 or 1, as BOOL", "Write it again as safetensors.")
        return torch.frombuffer(data, dtype=entry.dtype).reshape(entry.shape)

    def state(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix``, named by what follows it."""
        return {name.removeprefix(prefix): self.tensor(name) for name in self.entries if name.startswith(prefix)}


@contextmanager
def open_container(path: str | Path) -> Iterator[Container]:
    """The container at ``path``, while the block runs. Its header is checked here, before any tensor is read.

    Raises
    ------
    PositionContractError
        ``file``: what is no regular file, cannot be read, is a pickle, is truncated, or whose header is too long, no plain JSON object, or
        at odds with the bytes that follow it. A tensor's name: an entry of an unknown dtype, shape or place.
    """
    require(isinstance(path, (str, Path)), "file", path, "a path", "Name the file.")
    try:
        # Before it is opened: opening a pipe would wait for its writer.
        require(Path(path).is_file(), "file", str(path), "a file", "Check the path: a folder, a pipe or a device holds no tensors.")
        stream = Path(path).open("rb")
    except PositionContractError:
        raise
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise PositionContractError("file", str(path), "a readable file", f"{getattr(error, 'strerror', None) or error}.") from None
    with stream:
        yield _opened(stream, os.fstat(stream.fileno()).st_size, str(path))


def _opened(stream: BinaryIO, size: int, path: str) -> Container:
    first = stream.read(8)
    length = int.from_bytes(first, "little")
    if not (len(first) == 8 and 2 <= length <= min(size - 8, HEADER_LIMIT)):
        other = next((what for start, what in OTHERS.items() if length > HEADER_LIMIT and first.startswith(start)), None)
        require(other is None, "file", f"{other}: {path}", "a safetensors file", "Nothing is ever unpickled here. Load it where you trust it, with "
                "torch.load(weights_only=True), and write it with safetensors.torch.save_file.")
        raise PositionContractError("file", f"a header of {length} bytes in a file of {size}: {path}", f"one that fits the file and {HEADER_LIMIT} bytes",
                                    "It is truncated, no safetensors file, or has so many tensors that it should be split.")
    header = stream.read(length)
    require(len(header) == length, "file", f"{len(header)} bytes of a header: {path}", f"{length} bytes", "The file was cut while it was read: fetch it again.")
    require(header.startswith(b"{"), "file", path, "a header of one JSON object", "Write it again as safetensors.")
    described = read_object("file", header)
    metadata = described.pop(METADATA, {})
    texts = isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    require(texts, METADATA, metadata, "texts by name", "Write numbers and lists as text.")
    entries = {name: _entry(name, told, size - 8 - length) for name, told in described.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        require(entry.start == end, name, f"bytes {entry.start}..{entry.end}", f"bytes from {end} on",
                "Tensors follow one another without a hole or an overlap.")
        end = entry.end
    require(end == size - 8 - length, "file", f"{size - 8 - length} bytes behind the header: {path}", f"{end}, as the header says",
            "It is truncated, or something was appended: fetch it again.")
    return Container(stream, 8 + length, entries, metadata, hashlib.sha256(header).hexdigest())


def _entry(name: str, told: Any, room: int) -> Entry:
    require(isinstance(told, dict) and set(told) == {"dtype", "shape", "data_offsets"}, name, told, "dtype, shape and data_offsets",
            "Write it again as safetensors.")
    dtype, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    require(isinstance(dtype, str) and dtype in DTYPES, f"{name}.dtype", dtype, f"one of {', '.join(DTYPES)}", "Convert it where it was made.")
    require(_counts(shape) and len(shape) <= 16, f"{name}.shape", shape, "a list of at most 16 whole numbers, none below 0", "Write it again as safetensors.")
    require(_counts(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1] <= room, f"{name}.data_offsets", offsets,
            f"[start, end] within the {room} bytes behind the header", "It is truncated, or was written by hand: fetch it again.")
    # An empty tensor has no bytes to be compared with, and its strides must be numbers all the same.
    require(math.prod(max(n, 1) for n in shape) * DTYPES[dtype].itemsize < 2**63, f"{name}.shape", shape, "fewer than 2^63 bytes",
            "Write it again as safetensors.")
    size = math.prod(shape) * DTYPES[dtype].itemsize
    require(offsets[1] - offsets[0] == size, f"{name}.data_offsets", offsets, f"two places {size} bytes apart, the size of {shape} in {dtype}",
            "The header contradicts itself: fetch the file again.")
    return Entry(DTYPES[dtype], tuple(shape), *offsets)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def container_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The header of a container of these tensors, in this order, filled with blanks so that the data begins at a multiple of 8.

    Raises
    ------
    PositionContractError
        a tensor without bytes of its own (sparse, on the meta device), of a dtype that the format lacks, or named ``__metadata__``.
    """
    described: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta and tensor.dtype in NAMES
        require(name != METADATA and plain, name, tensor, f"a dense tensor of {', '.join(NAMES.values())}", "Convert it first.")
        start, end = end, end + tensor.numel() * tensor.itemsize
        described[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(described, separators=(",", ":"), allow_nan=False).encode()
    require(len(header) + 8 <= HEADER_LIMIT, "header", f"{len(header)} bytes", f"at most {HEADER_LIMIT} bytes", "Split the tensors over several files.")
    return header + b" " * (-len(header) % 8)


def container_parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a container of these tensors, in this order, part by part: one is made when the one before it has been taken.

    Raises
    ------
    PositionContractError
        as :func:`container_header`, before the first part.
    """
    header = container_header(tensors, metadata)
    yield len(header).to_bytes(8, "little") + header
    yield from map(tensor_bytes, tensors.values())


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a dense tensor, row by row; without a copy where it lies so on the CPU."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def read_object(field: str, text: str | bytes) -> dict[str, Any]:
    """One JSON object, each key of it once, on every level.

    Raises
    ------
    PositionContractError
        by the name ``field``: what is no UTF-8, no JSON, or no object; a key that repeats, NaN or an infinity, nesting beyond Python's.
    """
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            require(key not in found, field, f"the key {key[:80]!r} twice in one object", "each key once", "Neither of two values is believed: write it again.")
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8"), object_pairs_hook=once, parse_constant=constant)
    except PositionContractError:
        raise
    except (ValueError, RecursionError) as error:
        raise PositionContractError(field, " ".join(str(error).split())[:200], "one JSON object",
                                    "The file is damaged or of another kind: write it again.") from None
    require(isinstance(value, dict), field, type(value).__name__, "one JSON object", "The file is of another kind.")
    return value
