"""Files for the checker: manifests (YAML, JSON) and raw arrays (JSON, NPZ). What is read is hostile until proven otherwise.

An NPZ is unpacked by hand: its members and their headers are bounded and compared with the bytes that are there before an array is
built, only booleans and integers are taken, and nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from positionlib.check.arrays import check_arrays, check_calls
from positionlib.check.feed import ARRAYS, NUMBERS
from positionlib.check.findings import Report
from positionlib.errors import PositionContractError, require, require_count

FILE_LIMIT = 64 * 2**20  # bytes of a file, and of all its members unpacked
SETTINGS = ("prompts", "pad_token_id", "regimes", "tolerance")
HEADER_LIMIT = 1_000  # characters of one array's header; numpy writes about 100


def check_file(path: str | Path, name: str | None) -> Report:
    """What the file at ``path`` feeds to a model of the family ``name``.

    Manifests are the documents of :class:`positionlib.call.PositionCall`, and the one kind that needs no family; arrays are the fields of
    :func:`positionlib.check.feed.feed`; a JSON file may also hold ``{"calls": [...]}``, a prefill and what follows it.

    Raises
    ------
    PositionContractError
        a file that cannot be read, is none of these, or breaks their bounds; an unknown family, or none for arrays.
    """
    content = _bytes(Path(path))
    if content.startswith(b"PK"):
        return check_arrays(read_npz(content), _named(name))
    require(not content.startswith((b"\x80", b"\x93NUMPY")), "file", str(path), "YAML, JSON or NPZ",
            "Save the named arrays with numpy.savez; a pickle is never read.")
    documents = _documents(path)
    if Path(path).suffix.lower() in (".yaml", ".yml"):
        return _manifest(documents.read_yaml(content), name)
    document = documents.read_json_value(content)
    require(isinstance(document, dict), "document", type(document).__name__, "one JSON object", f"Name the arrays, or put a manifest under {documents.ROOT}.")
    if documents.ROOT in document:
        return _manifest(documents.root(document), name)
    if "calls" in document:
        require(len(document) == 1, "document", sorted(document), "calls and nothing else", "Repeat what the calls share in each of them.")
        return check_calls(document["calls"], _named(name))
    return check_arrays(document, _named(name))


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings of a probe in a JSON file, for :func:`positionlib.check.probe.probe`: it has the last word on their values.

    Raises
    ------
    PositionContractError
        a file that cannot be read, is no JSON object, names another setting, or holds one of another form.
    """
    settings = _documents(path).read_json_value(_bytes(Path(path)))
    known = isinstance(settings, dict) and set(settings) <= set(SETTINGS)
    require(known, "settings", sorted(settings) if isinstance(settings, dict) else type(settings).__name__, f"some of {', '.join(SETTINGS)}",
            "Name each setting once, in one JSON object.")
    prompts, regimes = settings.get("prompts", []), settings.get("regimes", [])
    whole = isinstance(prompts, list) and all(isinstance(p, list) and all(type(token) is int and 0 <= token < 2**31 for token in p) for p in prompts)
    require(whole, "prompts", prompts, "lists of token ids below 2^31", "Tokenise the prompts: the model is fed ids.")
    require(isinstance(regimes, list), "regimes", regimes, "a list of names", "Leave it out to run all.")
    require_count("pad_token_id", settings.get("pad_token_id", 0), 0)
    return settings


def _documents(path: str | Path) -> ModuleType:
    """The reader of documents, where it is installed."""
    try:
        return import_module("positionlib.manifest_io")
    except ImportError as error:
        raise PositionContractError("file", str(path), "an NPZ archive, where the extra 'manifest' is not installed",
                                    f"JSON and YAML are read with it: {error}.") from None


def _manifest(fields: dict[str, Any], name: str | None) -> Report:
    from positionlib.check.manifest import check_manifest

    return check_manifest(fields, name)


def _named(name: str | None) -> str:
    require(name is not None, "family", name, "the family that is fed", "Raw arrays say nothing about the model: pass --family.")
    return name


def _bytes(path: Path) -> bytes:
    try:
        require(path.is_file(), "file", str(path), "a file", "Check the path.")
        with path.open("rb") as stream:
            content = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise PositionContractError("file", str(path), "a readable file", f"{error.strerror}.") from None
    require(len(content) <= FILE_LIMIT, "file", f"{path}, more than {FILE_LIMIT} bytes", f"at most {FILE_LIMIT} bytes", "Check a part of the batch.")
    return content


def read_npz(content: bytes) -> dict[str, np.ndarray]:
    """The named arrays of an NPZ archive, booleans and integers only.

    Raises
    ------
    PositionContractError
        a truncated or damaged archive, a name twice or unknown, a header that is too long, names another size than the data has, or
        another dtype.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            require(len(members) <= len(ARRAYS) + len(NUMBERS), "file", f"{len(members)} members", "one member an array", "Save only what the checker reads.")
            left = FILE_LIMIT
            for member in members:
                name = member.filename.removesuffix(".npy")
                require(name in ARRAYS + NUMBERS, "file", member.filename, f"a known array, one of {', '.join(ARRAYS + NUMBERS)}",
                        "Name it so in numpy.savez.")
                plain = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                require(plain, name, f"compression {member.compress_type}", "stored or deflated, as numpy writes it", "Write it again with numpy.savez.")
                require(name not in arrays, name, member.filename, "each array once", "Two values for one array: keep the one that is meant.")
                with archive.open(member) as stream:
                    data = stream.read(left + 1)
                require(len(data) <= left, name, f"more than {left} bytes", f"at most {FILE_LIMIT} bytes unpacked", "Check a part of the batch.")
                left -= len(data)
                arrays[name] = _array(name, data)
    except PositionContractError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError, KeyError) as error:
        raise PositionContractError("file", " ".join(str(error).split()), "an undamaged NPZ archive", "Write it again with numpy.savez.") from None
    return arrays


def _array(name: str, data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        require(version in ((1, 0), (2, 0)), name, version, "array format 1.0 or 2.0", "Save it with numpy.savez.")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream, max_header_size=HEADER_LIMIT)
    except PositionContractError:
        raise
    except Exception as error:  # a hostile header fails in the parser of Python literals, in more ways than it documents
        raise PositionContractError(name, " ".join(str(error).split())[:200], "a short NPY header", "Save it with numpy.savez.") from None
    require(dtype.kind in "biu", name, str(dtype), "booleans or integers; objects are pickles and are never read",
            "Convert it: ids, masks and positions are whole.")
    size, here = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    counted = all(type(n) is int and n >= 0 for n in shape)
    require(counted and size == here, name, f"shape {shape} of {dtype}, {here} bytes", f"{size} bytes, as the header says",
            "The file is damaged: write it again.")
    array = np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    require(dtype.kind != "u" or array.size == 0 or int(array.max()) < 2**63, name, str(dtype), "entries below 2^63", "Positions fit an int64.")
    require(dtype.kind != "b" or int(array.view(np.uint8).max(initial=0)) < 2, name, "a byte above 1", "0 or 1, as bool", "Write it again with numpy.savez.")
    return array.astype(np.bool_ if dtype.kind == "b" else np.int64)
