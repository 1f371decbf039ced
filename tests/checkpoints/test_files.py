"""Safetensors files: what they hold is read exactly, and what is wrong with one is named, without executing or allocating anything."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from positionlib.checkpoints import PositionCheckpointContract, contract, convert, read_checkpoint, read_safetensors
from positionlib.checkpoints.__main__ import main
from positionlib.checkpoints.container import DTYPES, HEADER_LIMIT
from positionlib.errors import PositionContractError
from tests.checkpoints.peers import FIXTURES
from tests.refusals import refused

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}}
BODY = torch.arange(6, dtype=torch.float32).numpy().tobytes() + torch.tensor([7]).numpy().tobytes()


def packed(header: object, body: bytes = BODY) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(name: str = "a", **changes) -> dict:
    return GOOD | {name: GOOD[name] | changes}


@pytest.fixture
def file(tmp_path):
    def write(content: bytes) -> Path:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return path
    return write


def test_every_dtype_is_read_to_the_bit(file):
    header, body, want = {}, b"", {}
    for name, dtype in DTYPES.items():
        bits = torch.randint(0, 2, (24,), dtype=torch.uint8) if dtype == torch.bool else torch.randint(0, 100, (24 * dtype.itemsize,), dtype=torch.uint8)
        want[name] = bits.view(dtype).reshape(4, 2, 3)
        header[name] = {"dtype": name, "shape": [4, 2, 3], "data_offsets": [len(body), len(body) + len(bits)]}
        body += bits.numpy().tobytes()
    header["empty"] = {"dtype": "F16", "shape": [0, 5], "data_offsets": [len(body)] * 2}
    header["scalar"] = {"dtype": "U8", "shape": [], "data_offsets": [len(body), len(body) + 1]}
    found = read_safetensors(file(packed({"__metadata__": {"format": "pt"}, **header}, body + b"\x09")))
    assert found.pop("empty").shape == (0, 5) and found.pop("scalar").tolist() == 9
    assert found.keys() == want.keys() and all(torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in want.items())


def test_a_header_may_be_padded_and_a_tensor_has_memory_of_its_own(file):
    path = file(packed(json.dumps(GOOD).encode() + b"   "))
    found = read_safetensors(path)
    found["a"].zero_()
    assert found["b"].tolist() == [7] and read_safetensors(path)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("content, field, says", [
    (b"", "file", "0 bytes in a file of 0"), (b"\x02\x00\x00", "file", "truncated"), (packed(GOOD)[:40], "file", "in a file of 40"),
    (packed(GOOD)[:-1], "b.data_offsets", "truncated"), (packed(GOOD) + b"\x00", "file", "appended"),
    ((2**62).to_bytes(8, "little") + b"{}", "file", "header of 46"),
    ((HEADER_LIMIT + 1).to_bytes(8, "little") + b"{}", "file", "fits the file"), (packed(b"[1, 2]"), "file", "one JSON object"),
    (packed(b" {}", b""), "file", "one JSON object"), (packed(b"{   "), "file", "one JSON object"), (packed(b'{"a": NaN}'), "file", "NaN is no JSON"),
    (packed(b"\xff\xfe{}"), "file", "one JSON object"), (packed(b'{"a": ' + b"[" * 100_000 + b"}"), "file", "one JSON object"),
    (packed(b'{"a": ' + b"9" * 5_000 + b"}"), "file", "one JSON object"),
    (packed(b'{"a": {"dtype": "F32", "dtype": "F64"}}'), "file", "'dtype' twice"),
    (packed(b'{"a": {}, "a": {}}'), "file", "'a' twice"),
    (packed({"__metadata__": {"n": 3}, **GOOD}), "__metadata__", "texts"), (packed({"__metadata__": "x", **GOOD}), "__metadata__", "texts")])
def test_a_damaged_file_is_refused_by_what_is_wrong(file, content, field, says):
    assert says in str(refused(lambda: read_safetensors(file(content)), field))


@pytest.mark.parametrize("header, field", [
    (entry(dtype="F8_E4M3"), "a.dtype"), (entry(dtype="object"), "a.dtype"), (entry(dtype=["F32"]), "a.dtype"), (entry(dtype="F64"), "a.data_offsets"),
    (entry(shape=[3, 3]), "a.data_offsets"), (entry(shape=[-2, -3]), "a.shape"), (entry(shape=[2.0, 3]), "a.shape"), (entry(shape="23"), "a.shape"),
    (entry(shape=[True, 6]), "a.shape"),
    (entry(shape=[2**62, 2**62]), "a.shape"), (entry(shape=[2**40, 2**40, 0]), "a.shape"), (entry(dtype="BOOL", shape=[24]), "a"),
    (entry(shape=[1] * 65), "a.shape"), (entry(shape=[2**64, 0]), "a.shape"),
    (entry(data_offsets=[0, 2**40]), "a.data_offsets"), (entry(data_offsets=[24, 0]), "a.data_offsets"), (entry(data_offsets=[0, 24, 24]), "a.data_offsets"),
    (entry(data_offsets=[-24, 0]), "a.data_offsets"), (entry("b", data_offsets=[16, 24]), "b"), (entry("b", data_offsets=[0, 8]), "a"),
    ({"a": GOOD["a"]}, "file"), ({"b": GOOD["b"]}, "b"), (GOOD | {"a": GOOD["a"] | {"extra": 1}}, "a"), (GOOD | {"a": {"dtype": "F32"}}, "a"),
    (GOOD | {"a": [1]}, "a"), (GOOD | {"c": GOOD["a"]}, "c")])
def test_a_tensor_that_does_not_fit_its_bytes_is_refused_by_name(file, header, field):
    refused(lambda: read_safetensors(file(packed(header))), field)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_a_pickle_is_named_and_never_executed(file, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "weights.pt")
    for path in (file(pickle.dumps(Trap())), tmp_path / "weights.pt"):
        assert "weights_only=True" in refused(lambda: read_safetensors(path), "file").remedy
    assert "a pickle" in str(refused(lambda: read_safetensors(file(pickle.dumps(Trap()))), "file"))
    assert "as torch.save writes" in str(refused(lambda: read_safetensors(tmp_path / "weights.pt"), "file"))
    with zipfile.ZipFile(tmp_path / "inside.safetensors", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Trap()))
    refused(lambda: read_safetensors(tmp_path / "inside.safetensors"), "file")
    hidden = pickle.dumps(Trap())  # inside a sound file it is bytes of a tensor and nothing else
    header = {"x": {"dtype": "U8", "shape": [len(hidden)], "data_offsets": [0, len(hidden)]}}
    assert bytes(read_safetensors(file(packed(header, hidden)))["x"].tolist()) == hidden
    for length in (640, 19280):  # sound headers whose length begins as a pickle or a zip does
        assert length.to_bytes(8, "little")[0] in b"\x80P"
        assert read_safetensors(file(packed(json.dumps(GOOD).encode().ljust(length))))["b"].tolist() == [7]


def test_a_claimed_size_takes_no_memory(file):
    wide = {"x": {"dtype": "F64", "shape": [2**30], "data_offsets": [0, 2**33]}}
    path = file(packed(wide))
    tracemalloc.start()
    try:
        refused(lambda: read_safetensors(path), "x.data_offsets")
        refused(lambda: read_safetensors(file((HEADER_LIMIT).to_bytes(8, "little"))), "file")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_what_is_no_readable_file_is_refused(tmp_path):
    refused(lambda: read_safetensors(tmp_path / "absent"), "file")
    refused(lambda: read_safetensors(tmp_path), "file")
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    refused(lambda: read_safetensors(tmp_path / "pipe"), "file")


@given(st.integers(0, len(packed(GOOD)) - 1), st.integers(0, 255))
def test_any_byte_may_be_wrong(tmp_path_factory, at, value):
    content = bytearray(packed(GOOD))
    content[at] = value
    path = tmp_path_factory.mktemp("bytes") / "model.safetensors"
    path.write_bytes(bytes(content))
    try:
        found = read_safetensors(path)
    except PositionContractError:
        return
    assert sum(tensor.nelement() * tensor.element_size() for tensor in found.values()) == len(BODY)


@pytest.fixture
def shards(tmp_path):
    """The recorded GPT-2 in two files and an index, as large checkpoints are published."""
    state, config = read_checkpoint(FIXTURES / "gpt2")
    names = sorted(state)
    index = {"metadata": {"total_size": 1}, "weight_map": {}}
    for number, part in enumerate((names[:9], names[9:]), 1):
        header, body = {}, b""
        for name in part:
            data = state[name].numpy().tobytes()
            header[name] = {"dtype": "F64", "shape": list(state[name].shape), "data_offsets": [len(body), len(body) + len(data)]}
            body += data
            index["weight_map"][name] = f"model-0000{number}-of-00002.safetensors"
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(packed(header, body))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path, index


def test_a_folder_of_shards_is_one_checkpoint(shards):
    (state, config), (whole, same) = read_checkpoint(shards[0]), read_checkpoint(FIXTURES / "gpt2")
    assert config == same and state.keys() == whole.keys() and all(torch.equal(state[name], whole[name]) for name in state)
    assert convert(state, config, family="gpt2").contract == contract(same, family="gpt2")


@pytest.mark.parametrize("change, field", [
    (lambda m: m.pop("transformer.wpe.weight"), "weight_map, model-00002-of-00002.safetensors"),
    (lambda m: m.update({"lora": "model-00001-of-00002.safetensors"}), "weight_map, model-00001-of-00002.safetensors"),
    (lambda m: m.update({"lora": "model-00003-of-00003.safetensors"}), "file"), (lambda m: m.update({"lora": "../model.safetensors"}), "weight_map"),
    (lambda m: m.update({"lora": 3}), "weight_map")])
def test_an_index_that_is_not_its_shards_is_refused(shards, change, field):
    folder, index = shards
    change(index["weight_map"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(lambda: read_checkpoint(folder), field)


@pytest.mark.parametrize("text", ["[1]", '{"n_embd": 1, "n_embd": 2}', "{", '{"a": Infinity}', " " * (HEADER_LIMIT + 1)])
def test_a_configuration_that_is_no_sound_object_is_refused(shards, text):
    (shards[0] / "config.json").write_text(text)
    refused(lambda: read_checkpoint(shards[0]), "file")
    (shards[0] / "config.json").unlink()
    refused(lambda: read_checkpoint(shards[0]), "file")


def test_the_command_prints_the_contract_or_refuses(shards, capsys):
    assert main(["--family", "gpt2", str(shards[0])]) == 0
    said = capsys.readouterr().out
    assert said.startswith("10 read, 18 elsewhere, 0 generated, 0 head") and "position_id_offset       0" in said and "attention.1" in said
    assert main(["--family", "gpt2", "--json", str(shards[0])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert PositionCheckpointContract.from_dict(document) == contract(read_checkpoint(shards[0])[1], family="gpt2")
    assert main(["--family", "opt", str(shards[0])]) == 2
    assert capsys.readouterr().err.startswith("refused: config = ")
