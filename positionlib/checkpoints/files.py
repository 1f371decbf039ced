"""Released weights as they are published: one safetensors file, or a folder of them with its configuration.

    state, config = read_checkpoint("gpt2")         a folder as it is published: config.json, and one file of weights or several
    state = read_safetensors("model.safetensors")

:mod:`positionlib.checkpoints.container` reads the files, as hostile. A pickle (.bin, .pt, .pth, .ckpt) is named and refused: unpickling it
runs what it says.

Source: the format's description in huggingface/safetensors at ead9d7b, README.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from positionlib.checkpoints.container import HEADER_LIMIT, open_container, read_object
from positionlib.errors import PositionContractError, require

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"


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
        # Before it is opened: opening a pipe would wait for its writer.
        require(path.is_file() or not path.exists(), "file", str(path), "a file", "Check the path: a folder, a pipe or a device holds no configuration.")
        with path.open("rb") as stream:
            content = stream.read(HEADER_LIMIT + 1)
    except PositionContractError:
        raise
    except (OSError, ValueError) as error:
        raise PositionContractError("file", str(path), "a readable file", f"{getattr(error, 'strerror', None) or error}.") from None
    require(len(content) <= HEADER_LIMIT, "file", str(path), f"at most {HEADER_LIMIT} bytes", "No configuration is so long.")
    return read_object("file", content)


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, on the CPU, each with memory of its own.

    Raises
    ------
    PositionContractError
        ``file``: unreadable, a pickle, truncated or longer than its header says, or a header that is no sound JSON object.
        A tensor's name: an unknown dtype, a shape that its bytes do not fit, bytes outside the buffer or another tensor's.
    """
    with open_container(path) as file:
        return file.state()
