"""One container of tensors: its bytes are those of the format, what was written is read, and a hostile header is refused before memory is asked for."""

import importlib.util
import io
import json
import pickle
import struct
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from positionlib.checkpoints.container import DTYPES, HEADER_LIMIT, container_header, container_parts, open_container, read_object
from positionlib.errors import PositionContractError
from tests.refusals import refused

VALUES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}


def raw(header, data=b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def file(tmp_path):
    def write(content: bytes):
        path = tmp_path / "x.safetensors"
        path.write_bytes(content)
        return path
    return write


def read(path):
    with open_container(path) as opened:
        return opened.state(), dict(opened.metadata)


def packed(tensors, metadata=()) -> bytes:
    return b"".join(container_parts(tensors, dict(metadata)))


@pytest.mark.parametrize("dtype", VALUES)
def test_the_bytes_are_the_format_s(file, dtype):
    """Against Python's own packing of the same numbers."""
    numbers = [1, 0, 1, 1, 0, 1]
    data = struct.pack(f"<6{VALUES[dtype]}", *numbers)
    path = file(raw({"x": entry(dtype, (2, 3), (0, len(data))), "__metadata__": {"a": "b"}}, data))
    state, metadata = read(path)
    assert state["x"].dtype == DTYPES[dtype] and state["x"].tolist() == [[1, 0, 1], [1, 0, 1]] and metadata == {"a": "b"}
    written = packed(state, metadata)
    length = int.from_bytes(written[:8], "little")
    assert length % 8 == 0 and written[8 + length:] == data
    assert json.loads(written[8 : 8 + length]) == {"__metadata__": {"a": "b"}, "x": entry(dtype, (2, 3), (0, len(data)))}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_what_was_written_is_read(file, dtype):
    flat = torch.arange(-6, 6).to(dtype)
    tensors = {"strided": flat.reshape(3, 4).mT, "scalar": flat[0].clone(), "empty": flat[:0].reshape(0, 7), "": flat}
    state, _ = read(file(packed(tensors)))
    for name, tensor in tensors.items():
        assert state[name].dtype == dtype and state[name].shape == tensor.shape
        assert torch.equal(state[name].double(), tensor.double()), name


def test_no_bit_of_a_float_is_lost(file):
    bits = torch.randint(-(2**62), 2**62, (64,))
    assert torch.equal(read(file(packed({"x": bits.view(torch.float64)})))[0]["x"].view(torch.int64), bits)


def test_a_tensor_is_read_alone_and_by_prefix(file):
    path = file(packed({"h.0.w": torch.tensor([1.0]), "h.0.b": torch.tensor([2.0]), "h.1.w": torch.full((2**16,), 3.0)}))
    with open_container(path) as opened:
        assert opened.tensor("h.1.w").eq(3).all() and {k: v.item() for k, v in opened.state("h.0.").items()} == {"w": 1.0, "b": 2.0}
        refused(lambda: opened.tensor("h.2.w"), "h.2.w")
        path.write_bytes(path.read_bytes()[:-8])
        assert refused(lambda: opened.tensor("h.1.w"), "h.1.w").value == f"{2**18 - 8} bytes"


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="not run: safetensors is not installed")
def test_the_format_s_own_reader_and_writer_agree(file):
    import safetensors.torch as released

    tensors = {"w": torch.randn(3, 4), "i": torch.arange(5), "h": torch.randn(2).bfloat16(), "t": torch.tensor([True, False])}
    ours, theirs = packed(tensors, {"a": "b"}), released.save(tensors, {"a": "b"})
    for state in (released.load(ours), read(file(theirs))[0]):
        assert set(state) == set(tensors) and all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    assert read(file(theirs))[1] == {"a": "b"}


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def saved() -> bytes:
    out = io.BytesIO()
    torch.save({"x": Bomb()}, out)
    return out.getvalue()


GOOD = raw({"x": entry()}, bytes(8))


@pytest.mark.parametrize(("content", "field", "says"), [
    (b"", "file", "truncated"), (GOOD[:7], "file", "truncated"), ((2**63).to_bytes(8, "little") + b"{}", "file", "truncated"), (raw(b" "), "file", "truncated"),
    (pickle.dumps(Bomb()), "file", "a pickle"), (saved(), "file", "as torch.save writes"), (pickle.dumps(Bomb(), protocol=0), "file", "no safetensors file"),
    (b"GGUF" + bytes(20), "file", "a GGUF file"), (b"\x93NUMPY" + bytes(20), "file", "a NumPy array"),
    (raw(b"[]"), "file", "one JSON object"), (raw(b"{'x': 1}"), "file", "one JSON object"), (raw(b"\xff\xff"), "file", "one JSON object"),
    (raw(b'{"x": NaN}'), "file", "one JSON object"), (raw(b"[" * 10**5), "file", "one JSON object"), (raw(b'{"a":' * 10**5), "file", "one JSON object"),
    (raw(b'{"x": ' + b"9" * 5000 + b"}"), "file", "one JSON object"), (raw(b'{"x": 1, "x": 2}'), "file", "each key once"),
    (raw(b'{"x": {"dtype": "F32", "dtype": "F64"}}'), "file", "'dtype' twice"),
    (raw(b"{" + b" " * HEADER_LIMIT + b"}"), "file", "fits the file and 4194304 bytes"),
    (raw({"__metadata__": []}), "__metadata__", "texts by name"), (raw({"__metadata__": {"a": 1}}), "__metadata__", "texts by name"),
    (raw({"x": []}), "x", "dtype, shape and data_offsets"), (raw({"x": {**entry(), "code": "x"}}, bytes(8)), "x", "dtype, shape and data_offsets"),
    (raw({"x": entry("F31")}, bytes(8)), "x.dtype", "one of BOOL"), (raw({"x": entry(["F32"])}, bytes(8)), "x.dtype", "one of BOOL"),
    (raw({"x": entry("F64")}, bytes(8)), "x.data_offsets", "16 bytes apart"), (raw({"x": entry(shape=(-1, -2))}, bytes(8)), "x.shape", "none below 0"),
    (raw({"x": entry(shape=(2.0,))}, bytes(8)), "x.shape", "whole numbers"), (raw({"x": entry(shape=(True, 2))}, bytes(8)), "x.shape", "whole numbers"),
    (raw({"x": entry(shape=[1] * 17, offsets=(0, 4))}, bytes(4)), "x.shape", "at most 16"),
    (raw({"x": entry(shape=(2**40,), offsets=(0, 2**42))}, bytes(8)), "x.data_offsets", "within the 8 bytes"),
    (GOOD[:-1], "x.data_offsets", "truncated"),
    (raw({"x": entry(shape=(2**62, 2**62))}, bytes(8)), "x.shape", "fewer than 2^63 bytes"), (raw({"x": entry(shape=(2**63, 0))}), "x.shape", "whole numbers"),
    (raw({"x": entry(shape=(0, 2**62), offsets=(0, 0))}), "x.shape", "2^63"), (raw({"x": entry(offsets=(4, 12))}, bytes(12)), "x", "bytes from 0 on"),
    *((raw({"x": entry(offsets=offsets)}, bytes(8)), "x.data_offsets", "within the 8 bytes") for offsets in ((8, 0), (0, 8, 8), (-8, 0), (0.0, 8.0))),
    (raw({"x": entry(), "y": entry(offsets=(4, 12))}, bytes(12)), "y", "bytes from 8 on"),
    (raw({"x": entry(), "y": entry()}, bytes(8)), "y", "bytes from 8 on"),
    (GOOD + b"\0", "file", "as the header says"), (raw(b" {}"), "file", "a header of one JSON object"),
    (raw({"x": entry("F8_E4M3")}), "x.dtype", "one of BOOL"),
])
def test_hostile_files_are_refused_in_words(file, content, field, says):
    path, start = file(content), time.process_time()
    assert says in str(refused(lambda: read(path), field)) and time.process_time() - start < 2.0


def test_a_file_that_is_cut_anywhere_is_refused(file):
    for end in range(len(GOOD)):
        refused(lambda: read(file(GOOD[:end])), "file" if end < len(GOOD) - 8 else "x.data_offsets")


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_no_damaged_byte_escapes_as_another_error(tmp_path_factory, place, value):
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(GOOD[:place] + bytes([value]) + GOOD[place + 1:])
    try:
        read(path)
    except PositionContractError as error:
        assert error.field is not None and error.remedy


def test_a_number_larger_than_the_file_asks_for_no_memory(tmp_path):
    """The file is a hole of 2 TiB: its header agrees with its size, and still nothing is read before a tensor is asked for."""
    path, size = tmp_path / "hole.safetensors", 2**41
    header = raw({"x": entry("U8", (size,), (0, size))})
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + size)
    with open_container(path) as opened:
        assert opened.entries["x"].end == size


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none", "a\0b", 3, "/dev/zero"):
        refused(lambda: read(path), "file")


def test_what_the_format_cannot_hold_is_not_written():
    for name, tensor in (("x", torch.zeros(2, dtype=torch.complex64)), ("x", torch.eye(2).to_sparse()), ("x", torch.zeros(2, device="meta")), ("x", [1.0]),
                         ("__metadata__", torch.zeros(2))):
        refused(lambda: container_header({name: tensor}, {}), name)
    refused(lambda: container_header({"x": torch.zeros(1)}, {"a": "b" * HEADER_LIMIT}), "header")


def test_texts_and_bytes_are_read_alike():
    assert read_object("x", '{"ä": [1, {"b": null}]}') == read_object("x", '{"ä": [1, {"b": null}]}'.encode()) == {"ä": [1, {"b": None}]}
    assert refused(lambda: read_object("record", '{"\\ud800": 1, "\\ud800": 2}'), "record").value == "the key '\\ud800' twice in one object"
