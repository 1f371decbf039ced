"""Files and arrays of odd kinds for the checker: YAML tags, archives that numpy does not write, and dtypes that torch cannot compare."""

import io
import zipfile

import numpy as np
import pytest
import torch

from positionlib.check import check_arrays, check_file
from positionlib.manifest_io import read_yaml
from tests.refusals import refused

IDS = np.array([[5, 6, 7]])


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def npz(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


@pytest.fixture
def check(tmp_path):
    def run(content: bytes):
        (tmp_path / "call.npz").write_bytes(content)
        return check_file(tmp_path / "call.npz", "gpt2")
    return run


@pytest.mark.parametrize("value", ["!!timestamp now", "!!bool maybe", "!!int ''", "!!int '-'", "!!float ''", "!!str 5", "!!python/name:os.system", "!mine x",
                                   "! 5", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]", "!!map {a: 1}", "!!seq [1]", "!!null ''", "!!merge x"])
def test_a_yaml_tag_is_refused_wherever_it_stands(value):
    for text in (f"positional_call:\n  a: {value}\n", f"{value}\n", f"? {value}\n: 3\n", f"positional_call: [{value}]\n"):
        refused(lambda: read_yaml(text), "document")


def test_a_yaml_document_without_tags_is_read_as_it_was():
    assert read_yaml("positional_call: {a: 1, b: [true, null, 'x', 1.5], c: {d: -3}}") == {"a": 1, "b": [True, None, "x", 1.5], "c": {"d": -3}}


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, 1, 93])
def test_an_archive_is_stored_or_deflated(check, method):
    """Others fail in errors of their own, and one asks for as much memory as its header says."""
    content = bytearray(npz(input_ids=npy(IDS)))
    for at in (8, content.index(b"PK\x01\x02") + 10):  # of the member, and of the directory
        content[at : at + 2] = method.to_bytes(2, "little")
    refused(lambda: check(bytes(content)), "input_ids")
    assert check(npz(zipfile.ZIP_DEFLATED, input_ids=npy(IDS))).status == check(npz(input_ids=npy(IDS))).status == 0


def test_a_length_is_no_boolean(check):
    header = b"{'descr':'<i8','fortran_order':False,'shape':(True,)}"
    refused(lambda: check(npz(input_ids=b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))), "input_ids")


@pytest.mark.parametrize("byte", [2, 255])
def test_a_boolean_is_zero_or_one(check, byte):
    mask = npy(np.ones((1, 3), dtype=bool))
    assert check(npz(input_ids=npy(IDS), attention_mask=mask)).status == 0
    refused(lambda: check(npz(input_ids=npy(IDS), attention_mask=mask[:-1] + bytes([byte]))), "attention_mask")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"])
def test_ids_may_have_any_integer_dtype(dtype):
    """Tokenised files hold them as uint16."""
    want = check_arrays({"input_ids": [[5, 6, 7]], "position_ids": [[0, 1, 3]]}, "gpt2")
    for kind in (np.array, torch.tensor):
        ids, places = (kind(values, dtype=getattr(np if kind is np.array else torch, dtype)) for values in ([[5, 6, 7]], [[0, 1, 3]]))
        assert check_arrays({"input_ids": ids, "position_ids": places}, "gpt2") == want and want.status == 1


@pytest.mark.parametrize("array", [np.array([[2**63]], dtype=np.uint64), torch.zeros(1, 3, dtype=torch.int64, device="meta"), torch.eye(3).long().to_sparse(),
                                   torch.zeros(1, 3, dtype=torch.uint16, device="meta"), torch.zeros(1, 3, dtype=torch.float8_e4m3fn)])
def test_an_array_without_whole_numbers_is_refused(array):
    refused(lambda: check_arrays({"input_ids": array}, "gpt2"), "input_ids")


@pytest.mark.parametrize("fields", [None, [1], "input_ids", 3])
def test_fields_are_arrays_by_name(fields):
    refused(lambda: check_arrays(fields, "gpt2"), "fields")
