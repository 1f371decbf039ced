"""A release in a folder: what was saved is loaded, and whatever ends a write, the old release or the new one is there, whole."""

import contextlib
import errno
import os
import resource
import signal
import sys
from dataclasses import replace

import pytest
import torch

from positionlib.checkpoints import STATES, Release, row_provenance
from positionlib.checkpoints.container import open_container
from positionlib.checkpoints.store import LOCK, MANIFEST, POINTS, TABLE, TEMPORARY, load_release, save_release
from positionlib.checkpoints.table_file import read_table
from positionlib.errors import PositionContractError
from tests.checkpoints.test_release import OLD, enlarged, served, walk
from tests.refusals import refused

COMMIT = POINTS.index("manifest named")  # from here on the new release is the one that is there
WATCHING = []  # what the one audit hook of this process tells the points of a write


def _watch(event, arguments):
    if event == "positionlib.checkpoints.store":
        for told in WATCHING:
            told(*arguments)


sys.addaudithook(_watch)


@contextlib.contextmanager
def watched(told):
    WATCHING.append(told)
    try:
        yield
    finally:
        WATCHING.remove(told)


def child(act) -> int:
    """How a process ends that does it: its exit status (0 done, 3 refused), or minus its signal."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            act()
            status = 0
        except PositionContractError:
            status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying(point, end):
    """What ends this process when a write reaches the point."""
    def told(reached, path):
        if reached == point:
            os._exit(9) if end == "exit" else os.kill(os.getpid(), signal.SIGKILL)

    return told


def facts(table):
    """All of a table, as values that can be compared."""
    tensors = {"weight": table.weight, "position_ids": table.position_ids, **table.moments}
    return (table.identity, table.row_offset, table.provenance, table.shards, table.shard_rows, table.capacity,
            {name: (t.dtype, tuple(t.shape), bytes(t.detach().reshape(-1).contiguous().view(torch.uint8).numpy())) for name, t in tensors.items()})


def same(a: Release, b: Release) -> bool:
    new = (a.new is None) == (b.new is None) and (a.new is None or facts(a.new) == facts(b.new))
    return new and facts(a.old) == facts(b.old) and (a.passed, a.receipt) == (b.passed, b.receipt)


def next_step(release: Release) -> Release:
    """The migrated table, trained on: its save writes one table and the manifest."""
    counts = torch.tensor([5, 5, 0, 0, 2, 0])
    live = replace(release.new, weight=release.new.weight + 1, provenance=row_provenance(counts, release.new.provenance))
    return release.checkpoint_reconciled(live, live, counts)


@pytest.fixture
def stored(tmp_path):
    """A folder with the release before :func:`next_step`."""
    save_release(tmp_path / "r", walk("OPTIMIZER_MIGRATED"), replaces=0)
    return tmp_path / "r"


@pytest.mark.parametrize("until", STATES)
@pytest.mark.parametrize("train", [True, False])
def test_what_was_saved_is_loaded(tmp_path, until, train):
    if until == "OPTIMIZER_MIGRATED" and not train:
        return  # a state that this walk leaves out
    release = walk(until, train=train)
    assert save_release(tmp_path / "r", release, replaces=0) == 1
    stored = load_release(tmp_path / "r")
    assert same(stored.release, release) and stored.revision == 1
    assert facts(stored.release.serving) == facts(release.serving)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_part_of_a_migration_is_in_the_file(tmp_path, dtype):
    weight = torch.tensor([[float("nan"), -0.0], [1.5, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]).to(dtype)
    identity = OLD._replace(table_rows=5, config_max_position_embeddings=3, position_method=("learned_abs", None, 0.5, 7, True), adapter_id="lora")
    old = served(weight=weight, identity=identity, provenance=("trained", "untrained", "trained", "trained", "trained"), row_offset=2, shards=3,
                 moments={"step": torch.tensor(7), "exp_avg": weight.float() + 1, "exp_avg_sq": weight.double() + 2})
    new = enlarged(old)
    assert save_release(tmp_path / "r", Release.draft(old).table_migrated(new), replaces=0) == 1
    told = load_release(tmp_path / "r").release
    assert facts(told.old) == facts(old) and facts(told.new) == facts(new)
    assert told.new.identity == identity._replace(release_id="r2", checkpoint_id="c2", table_rows=6, config_max_position_embeddings=4)
    assert told.new.shard_rows == ((0, 2), (2, 4), (4, 6)) and told.old.shard_rows == ((0, 2), (2, 4), (4, 5))
    assert told.new.capacity == 4 and told.new.position_ids.tolist() == [0, 1, 2, 3] and told.new.provenance[-1] == "new:mean"
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names - {MANIFEST, LOCK} == {name for name in names if TABLE.fullmatch(name)} and len(names) == 4


def test_a_table_s_file_is_named_by_its_header_and_read_by_any_reader(stored):
    for path in stored.glob("table-*"):
        with open_container(path) as file:
            assert path.name == f"table-{file.digest}.safetensors"
            assert set(file.entries) == {"weight", "position_ids", "moments.step", "moments.exp_avg", "moments.exp_avg_sq"}


def test_a_write_passes_every_point_once_and_in_order(stored):
    points = []
    with watched(lambda point, path: points.append(point)):
        save_release(stored, next_step(load_release(stored).release), replaces=1)
    assert tuple(points) == POINTS and len(POINTS) == 13


@pytest.mark.parametrize("end", ["exit", "kill"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_old_or_the_new_release_is_there(stored, point, end):
    before = load_release(stored)
    after = next_step(before.release)

    def write():
        with watched(dying(point, end)):
            save_release(stored, after, replaces=1)

    assert child(write) == (9 if end == "exit" else -signal.SIGKILL)
    found, done = load_release(stored), POINTS.index(point) >= COMMIT
    assert same(found.release, after if done else before.release) and found.revision == 1 + done
    # Whoever comes next is not hindered by what the killed process left, and leaves nothing of it.
    assert save_release(stored, after, replaces=found.revision) == found.revision + 1
    assert same(load_release(stored).release, after) and not (stored / TEMPORARY).exists()


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_the_first_save_there_is_the_release_or_none(tmp_path, point):
    def write():
        with watched(dying(point, "kill")):
            save_release(tmp_path / "r", walk("DRAFT"), replaces=0)

    assert child(write) == -signal.SIGKILL
    if POINTS.index(point) >= COMMIT:
        assert load_release(tmp_path / "r").release.state == "DRAFT"
    else:
        assert "Save a release there first" in str(refused(lambda: load_release(tmp_path / "r"), "folder"))
        save_release(tmp_path / "r", walk("DRAFT"), replaces=0)


@pytest.mark.parametrize("point", POINTS)
def test_a_full_disk_is_refused_and_changes_nothing(stored, point):
    before = load_release(stored)
    after = next_step(before.release)

    def full(reached, path):
        if reached == point:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watched(full):
        error = refused(lambda: save_release(stored, after, replaces=1), "folder")
    assert "No space left on device" in str(error)
    done = POINTS.index(point) >= COMMIT  # the last flush failed: the release is the new one, and loading tells
    assert same(load_release(stored).release, after if done else before.release) and not (stored / TEMPORARY).exists()
    assert save_release(stored, after, replaces=1 + done) == 2 + done


def test_a_write_that_the_system_cuts_short_is_refused(stored):
    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # the first part of the table is longer
        save_release(stored, next_step(load_release(stored).release), replaces=1)

    assert child(write) == 3
    assert load_release(stored).release.state == "OPTIMIZER_MIGRATED" and not (stored / TEMPORARY).exists()


def test_the_folder_is_flushed_after_each_name(stored, monkeypatch):
    flushed, flush = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda place: (flushed.append(os.readlink(f"/proc/self/fd/{place}")), flush(place)))
    with watched(lambda point, path: flushed.append(point)):
        save_release(stored, next_step(load_release(stored).release), replaces=1)
    folder, temporary = str(stored), str(stored / TEMPORARY)
    for kind in ("table", "manifest"):
        at = flushed.index(f"{kind} written")
        assert flushed[at : at + 5] == [f"{kind} written", temporary, f"{kind} synced", f"{kind} named", folder]


def test_two_processes_do_not_write_at_once(stored):
    """The child waits with the lock in hand until it is told to go on."""
    after = next_step(load_release(stored).release)
    held, go = os.pipe(), os.pipe()

    def write():
        def wait(point, path):
            if point == "table written":
                os.write(held[1], b"x")
                os.read(go[0], 1)

        with watched(wait):
            save_release(stored, after, replaces=1)

    if (pid := os.fork()) == 0:
        try:
            write()
        finally:
            os._exit(0)
    os.read(held[0], 1)
    assert "Another process is saving" in str(refused(lambda: save_release(stored, after, replaces=1), "folder"))
    assert load_release(stored).release.state == "OPTIMIZER_MIGRATED", "a reader waits for nobody"
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    error = refused(lambda: save_release(stored, load_release(stored).release.rolled_back(), replaces=1), "replaces")
    assert "2, the revision that is there" in str(error) and load_release(stored).release.state == "CHECKPOINT_RECONCILED"


def test_a_reader_beside_a_writer_always_sees_a_whole_release(stored):
    before = load_release(stored).release
    releases = [before, next_step(before)]
    if (pid := os.fork()) == 0:
        try:
            for revision in range(1, 41):
                save_release(stored, releases[revision % 2], replaces=revision)
        finally:
            os._exit(0)
    seen = []
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        found = load_release(stored)
        assert same(found.release, releases[(found.revision - 1) % 2])
        seen.append(found.revision)
    assert seen == sorted(seen) and load_release(stored).revision == 41


def test_a_stale_temporary_file_is_never_read_and_hinders_nobody(stored):
    before = load_release(stored).release
    (stored / TEMPORARY).write_bytes((stored / MANIFEST).read_bytes()[:50])
    assert same(load_release(stored).release, before)
    (stored / TEMPORARY).unlink()
    (stored / TEMPORARY).symlink_to(stored / MANIFEST)
    text = (stored / MANIFEST).read_bytes()
    with watched(lambda point, path: point == "manifest begun" and seen.append((stored / MANIFEST).read_bytes())):
        seen = []
        save_release(stored, before, replaces=1)
    assert seen == [text], "nothing is written through a link" and not (stored / TEMPORARY).exists()


def test_rolling_back_serves_the_old_table_s_own_file(tmp_path):
    release, folder = walk(), tmp_path / "r"
    revision = save_release(folder, walk("DRAFT"), replaces=0)
    (path,) = folder.glob("table-*")
    before = path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns
    revision = save_release(folder, release, replaces=revision)
    assert facts(load_release(folder).release.serving) == facts(release.new)
    save_release(folder, load_release(folder).release.rolled_back(), replaces=revision)
    back = load_release(folder).release
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before and len(list(folder.glob("table-*"))) == 2
    assert (back.state, back.new, back.receipt) == ("DRAFT", None, None) and facts(back.serving) == facts(release.old)
    back.admit(OLD)
    refused(lambda: back.admit(release.new.identity), "cache.release_id, cache.checkpoint_id, cache.table_rows, cache.config_max_position_embeddings")


def test_a_save_mends_a_table_that_was_damaged(stored):
    release = load_release(stored).release
    for path in stored.glob("table-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    refused(lambda: load_release(stored), "old.moments.exp_avg_sq")
    save_release(stored, release, replaces=1)
    assert same(load_release(stored).release, release)


def test_a_table_beyond_the_limit_is_not_read(stored):
    (path,) = (path for path in stored.glob("table-*") if read_table(path, limit=10**6)[0].identity == OLD)
    size = 3 * 4 * 3 * 4 + 4 + 4 * 8  # three tensors [4, 3] in float32, a step, four ids
    assert read_table(path, limit=size)[0].capacity == 4
    assert f"{size} bytes of tensors" in str(refused(lambda: read_table(path, limit=size - 1), "file"))
    assert "Pass a larger limit" in str(refused(lambda: load_release(stored, limit=size - 1), "old.file"))


@pytest.mark.parametrize("folder, release, replaces, field", [
    ("r", "fine", 0, "release"), ("r", None, -1, "replaces"), ("r", None, 1.0, "replaces"), ("r", None, 1, "replaces"), ("a/b", None, 0, "folder"),
    ("plain/r", None, 0, "folder"), ("plain", None, 0, "folder")])
def test_a_save_that_cannot_be_is_refused(tmp_path, folder, release, replaces, field):
    (tmp_path / "plain").write_text("a file")
    refused(lambda: save_release(tmp_path / folder, release or walk("DRAFT"), replaces=replaces), field)
