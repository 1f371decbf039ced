"""Hostile folders: what was cut, forged, or made to explode is refused in words, nothing of it is executed, and no memory is asked for in vain."""

import hashlib
import io
import json
import pickle
import resource
import time

import pytest
import torch

from positionlib.checkpoints import Release
from positionlib.checkpoints.container import container_header, container_parts, open_container
from positionlib.checkpoints.store import MANIFEST, MANIFEST_LIMIT, load_release, save_release
from tests.checkpoints.test_container import Bomb
from tests.checkpoints.test_release import OLD, outside, served, walk
from tests.checkpoints.test_store import child, facts
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """A release that has all there is: two tables, moments, a receipt."""
    save_release(tmp_path / "r", walk(), replaces=0)
    return tmp_path / "r"


def digest(told) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def forged(folder, **changes):
    """The manifest with other fields and the digest that belongs to them; None takes a field away."""
    told = json.loads((folder / MANIFEST).read_text()) | changes
    told = {name: value for name, value in told.items() if value is not ... and name != "sha256"}
    (folder / MANIFEST).write_text(json.dumps(told | {"sha256": digest(told)}))


def forged_table(folder, name="new", schema=None, record=None, tensors=None, digests=True):
    """The table with another record or other tensors, under its own right name, in a manifest that names it."""
    told = json.loads((folder / MANIFEST).read_text())
    with open_container(folder / told[name]) as file:
        state, metadata = file.state(), dict(file.metadata)
    state |= tensors or {}
    fields = json.loads(metadata["record"]) | (record or {})
    if digests:
        fields["digests"] = {name: hashlib.sha256(bytes(t.reshape(-1).view(torch.uint8).numpy())).hexdigest() for name, t in state.items()}
    metadata = {"schema": schema or metadata["schema"], "record": json.dumps(fields)}
    path = f"table-{hashlib.sha256(container_header(state, metadata)).hexdigest()}.safetensors"
    (folder / path).write_bytes(b"".join(container_parts(state, metadata)))
    forged(folder, **{name: path})


def test_the_forgers_of_these_tests_change_nothing_by_themselves(folder):
    before = load_release(folder).release
    forged(folder)
    forged_table(folder)
    assert facts(load_release(folder).release.new) == facts(before.new)


def test_a_manifest_that_is_cut_anywhere_is_refused(folder):
    text = (folder / MANIFEST).read_bytes()
    for end in range(len(text)):
        (folder / MANIFEST).write_bytes(text[:end])
        refused(lambda: load_release(folder), "manifest")


def test_a_table_that_is_cut_anywhere_is_refused(folder):
    path = folder / json.loads((folder / MANIFEST).read_text())["new"]
    content = path.read_bytes()
    with open_container(path) as file:
        ends = {name: file.data_starts + entry.end for name, entry in file.entries.items()}
        data = file.data_starts
    for end in range(len(content)):
        path.write_bytes(content[:end])
        refused(lambda: load_release(folder), "new.file" if end < data else f"new.{next(name for name in ends if ends[name] > end)}.data_offsets")


@pytest.mark.parametrize("name", ["manifest", "new"])
def test_no_byte_can_change_unnoticed(folder, name):
    """Every byte of the manifest and of a table, one bit of each."""
    before = load_release(folder).release
    path = folder / (MANIFEST if name == "manifest" else json.loads((folder / MANIFEST).read_text())[name])
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        try:
            load_release(folder)
        except ValueError as error:
            assert error.field and error.remedy
        else:
            pytest.fail(f"byte {place}, {content[place]}")
    path.write_bytes(content)
    assert facts(load_release(folder).release.new) == facts(before.new)


def archive(value) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


@pytest.mark.parametrize("content, field, says", [
    (pickle.dumps(Bomb()), "manifest", "one JSON object"), (archive(Bomb()), "manifest", "one JSON object"), (b"", "manifest", "one JSON object"),
    (b"[1]", "manifest", "one JSON object"), (b"[" * 10**5, "manifest", "one JSON object"), (b" " * (MANIFEST_LIMIT + 1), "file", "holds none"),
    (b'{"schema": "positionlib.release.v1", "schema": "x"}', "manifest", "each key once"), (b'{"revision": NaN}', "manifest", "one JSON object"),
    (b"{}", "schema", "'positionlib.release.v1'"), (b'{"schema": "positionlib.release.v2"}', "schema", "versions are not guessed"),
    (b'{"schema": ["positionlib.release.v1"]}', "schema", "versions are not guessed"), (b'{"schema": "positionlib.release.v1"}', "manifest", "the fields"),
])
def test_hostile_manifests_are_refused_in_words(folder, content, field, says):
    (folder / MANIFEST).write_bytes(content)
    start = time.process_time()
    assert says in str(refused(lambda: load_release(folder), field)) and time.process_time() - start < 2.0
    refused(lambda: save_release(folder, walk("DRAFT"), replaces=0), field)
    assert (folder / MANIFEST).read_bytes() == content, "what cannot be read is not written over"


RECEIPT = {"issuer": "i", "identity": {**OLD._asdict(), "position_method": ["learned_absolute"]}, "first": 4, "last": 5, "result": "x"}


@pytest.mark.parametrize("changes, field", [
    ({"code": "x"}, "manifest"), ({"receipt": ...}, "manifest"), *(({"revision": value}, "revision") for value in (0, 1.0, True, None)),
    ({"passed": "DRAFT"}, "passed"), ({"passed": []}, "passed"), ({"passed": [["DRAFT"]]}, "passed"), ({"passed": ["DRAFT", "RELEASED"]}, "passed"),
    ({"passed": ["DRAFT", "TABLE_MIGRATED", "CHECKPOINT_RECONCILED"], "receipt": None}, "passed"), ({"passed": ["DRAFT"]}, "new"), ({"new": None}, "new"),
    ({"receipt": None}, "receipt"), ({"receipt": {}}, "receipt"), ({"receipt": RECEIPT}, "receipt.identity"),
    ({"receipt": RECEIPT | {"first": 4.0}}, "receipt.positions"), ({"receipt": RECEIPT | {"issuer": ""}}, "issuer"),
    ({"receipt": RECEIPT | {"identity": []}}, "receipt.identity"), ({"receipt": RECEIPT | {"issuer": ["i"]}}, "issuer"),
    ({"receipt": RECEIPT | {"identity": RECEIPT["identity"] | {"table_rows": "4"}}}, "receipt.identity.table_rows"),
    ({"old": None}, "old"), ({"old": 3}, "old"), ({"old": "table.safetensors"}, "old"), ({"new": "../table-" + "0" * 64 + ".safetensors"}, "new"),
    ({"new": "table-" + "0" * 64 + ".safetensors"}, "new.file"), ({"new": "table-" + "0" * 64 + ".safetensors\n"}, "new"),
])
def test_a_forged_manifest_is_refused(folder, changes, field):
    forged(folder, **changes)
    refused(lambda: load_release(folder), field)


def test_a_release_is_not_made_of_other_tables(folder):
    told = json.loads((folder / MANIFEST).read_text())
    for changes, field in (({"old": told["new"]}, "weight"), ({"new": told["old"]}, "weight"), ({"old": told["new"], "new": told["old"]}, "weight")):
        forged(folder, **told | changes)
        refused(lambda: load_release(folder), field)
    (folder / told["new"]).write_bytes((folder / told["old"]).read_bytes())
    forged(folder, **told)
    assert "the digest in the file's name" in str(refused(lambda: load_release(folder), "new.digest"))


def record(**changes):
    return {"record": changes}


NEW = {**RECEIPT["identity"], "release_id": "r2", "checkpoint_id": "c2", "table_rows": 6, "config_max_position_embeddings": 6}


@pytest.mark.parametrize("changes, field", [
    ({"schema": "positionlib.position-table.v2"}, "new.schema"), ({"schema": "pickle"}, "new.schema"), (record(code="x"), "new.record"),
    (record(identity=NEW | {"release_id": "r1"}), "identity.release_id"), (record(identity=NEW | {"position_method": ["rotary"]}), "identity.position_method"),
    (record(identity=NEW | {"table_rows": 4}), "new.identity.table_rows"), (record(identity=NEW | {"release_id": 3}), "new.record.identity.release_id"),
    (record(identity=NEW | {"position_method": [["a"]]}), "new.record.identity.position_method"), (record(identity=[]), "new.record.identity"),
    (record(identity={**NEW, "code": "x"}), "new.record.identity"), (record(identity=NEW | {"release_id": "r3"}), "receipt.identity"),
    (record(config={"max_position_embeddings": 4}), "new.record.config"), (record(config=6), "new.record.config"),
    (record(admission_limit=4), "new.record.admission_limit"), (record(admission_limit=10**9), "new.record.admission_limit"),
    (record(row_offset=1), "new.record.admission_limit"), (record(row_offset=-1), "new.row_offset"), (record(row_offset="0"), "new.row_offset"),
    (record(provenance=[["trained", 10**12]]), "new.record.provenance"), (record(provenance=[["trained", 5]]), "new.record.provenance"),
    (record(provenance=[["trained", 4], ["fine", 2]]), "new.provenance"), (record(provenance=[[["trained"], 6]]), "new.provenance"),
    (record(provenance={}), "new.record.provenance"), (record(provenance=[["trained", 6.0]]), "new.record.provenance"),
    (record(shards={"count": 1, "rows": [[0, 4]]}), "new.record.shards"), (record(shards={"count": 10**9, "rows": [[0, 6]]}), "new.record.shards.count"),
    (record(shards={"count": 2, "rows": [[0, 2], [2, 6]]}), "new.record.shards"), (record(shards=1), "new.record.shards"),
    (record(shards={"count": 7, "rows": [[0, 1]] * 7}), "new.shards"), (record(shards={"count": 0, "rows": []}), "new.shards"),
    ({"record": {"digests": {}}, "digests": False}, "new.record.digests"), ({"record": {"digests": 3}, "digests": False}, "new.record.digests"),
    ({"tensors": {"weight": torch.ones(6, 3)}, "digests": False}, "new.weight"), ({"tensors": {"weight": torch.ones(6, 3).long()}}, "new.weight"),
    ({"tensors": {"weight": torch.ones(18)}}, "new.weight"), ({"tensors": {"weight": torch.ones(6, 4)}}, "new.moments.exp_avg"),
    ({"tensors": {"weight": torch.ones(())}}, "new.weight"), ({"tensors": {"weight": torch.ones(0, 3)}}, "new.record.provenance"),
    ({"tensors": {"position_ids": torch.arange(6.0)}}, "new.position_ids"), ({"tensors": {"position_ids": torch.arange(1, 7)}}, "new.position_ids"),
    ({"tensors": {"position_ids": torch.arange(4)}}, "new.position_ids"), ({"tensors": {"moments.exp_avg": torch.ones(4, 3)}}, "new.moments.exp_avg"),
    ({"tensors": {"code": torch.ones(1)}}, "new.file"),
])
def test_a_forged_table_is_refused(folder, changes, field):
    forged_table(folder, **changes)
    refused(lambda: load_release(folder), field)


def test_migrated_rows_are_proved_again_while_none_was_trained(tmp_path):
    for until, tensor, field in (("TABLE_MIGRATED", "weight", "weight"), ("OPTIMIZER_MIGRATED", "moments.exp_avg", "moments.exp_avg")):
        save_release(tmp_path / until, walk(until), replaces=0)
        forged_table(tmp_path / until, tensors={tensor: torch.ones(6, 3)})
        refused(lambda: load_release(tmp_path / until), field)


def test_a_release_without_its_optimizer_carries_no_moments(tmp_path):
    save_release(tmp_path / "r", walk("CHECKPOINT_RECONCILED", train=False), replaces=0)
    forged_table(tmp_path / "r", tensors={"moments.exp_avg": torch.ones(6, 3)})
    refused(lambda: load_release(tmp_path / "r"), "passed")


def test_a_pickle_is_never_read_whatever_it_is_called(folder):
    told = json.loads((folder / MANIFEST).read_text())
    for content in (pickle.dumps(Bomb()), archive({"weight": Bomb()})):
        (folder / told["new"]).write_bytes(content)
        assert "Nothing is ever unpickled here" in str(refused(lambda: load_release(folder), "new.file"))


def test_a_hole_of_two_tebibytes_is_refused_within_the_memory_of_a_small_table(folder):
    """The header, the names and the digests agree; what is refused is the size, in a process that could not have held it."""
    size = 2**41
    header = json.dumps({"__metadata__": {"schema": "positionlib.position-table.v1", "record": json.dumps(dict.fromkeys(
        ("identity", "config", "admission_limit", "row_offset", "provenance", "shards", "digests")))},
        "weight": {"dtype": "U8", "shape": [size, 1], "data_offsets": [0, size]}}).encode()
    name = f"table-{hashlib.sha256(header).hexdigest()}.safetensors"
    with (folder / name).open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
    forged(folder, new=name)

    def load():
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))
        load_release(folder)

    assert child(load) == 3
    assert "Pass a larger limit" in str(refused(lambda: load_release(folder), "new.file"))


@pytest.mark.parametrize("changes, field", [({"position_method": ("learned", ("a",))}, "identity.position_method"), ({"release_id": 3}, "identity.release_id"),
                                            ({"position_method": ["learned"]}, "identity"), ({"position_method": (float("nan"),)}, "identity.position_method")])
def test_an_identity_that_json_does_not_give_back_is_not_saved(tmp_path, changes, field):
    refused(lambda: save_release(tmp_path / "r", Release.draft(served(identity=OLD._replace(**changes))), replaces=0), field)
    assert not (tmp_path / "r" / MANIFEST).exists()


def test_a_receipt_is_kept_word_for_word(tmp_path):
    release = walk("BASE-RANGE_REGRESSION_PASS")
    receipt = outside(release.new, result="perplexity 12.5 at 4..5 – “worse”")
    save_release(tmp_path / "r", release.extended_range_evaluated(receipt), replaces=0)
    assert load_release(tmp_path / "r").release.receipt == receipt
