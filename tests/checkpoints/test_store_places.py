"""Folders that are none, and files of a folder that are pipes or links: refused in words, without waiting and without a file elsewhere."""

import os
from dataclasses import replace

import pytest

from positionlib.checkpoints import Release, read_checkpoint
from positionlib.checkpoints.store import LOCK, MANIFEST, load_release, save_release
from positionlib.checkpoints.table_file import table_file
from tests.checkpoints.test_release import served, walk
from tests.checkpoints.test_store_hostile import forged
from tests.refusals import refused


@pytest.mark.parametrize("folder", [None, 5, b"r", "a\0b", ["r"]])
def test_what_is_no_path_is_refused(folder):
    refused(lambda: load_release(folder), "folder")
    refused(lambda: save_release(folder, Release.draft(served()), replaces=0), "folder")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_lock_is_a_file_of_the_folder(tmp_path, kind):
    place, elsewhere = tmp_path / "r", tmp_path / "elsewhere"
    save_release(place, Release.draft(served()), replaces=0)
    (place / LOCK).unlink()
    {"pipe": lambda: os.mkfifo(place / LOCK), "link": lambda: (place / LOCK).symlink_to(elsewhere), "folder": (place / LOCK).mkdir}[kind]()
    refused(lambda: save_release(place, walk(), replaces=1), "folder")
    assert not elsewhere.exists() and load_release(place).release.state == "DRAFT"


def test_a_revision_that_cannot_grow_is_refused(tmp_path):
    save_release(tmp_path / "r", Release.draft(served()), replaces=0)
    before = (tmp_path / "r" / MANIFEST).read_bytes()
    for revision in (2**62, 2**63 - 1):
        forged(tmp_path / "r", revision=revision)
        refused(lambda: load_release(tmp_path / "r"), "revision")
        refused(lambda: save_release(tmp_path / "r", Release.draft(served()), replaces=revision), "revision")
    (tmp_path / "r" / MANIFEST).write_bytes(before)
    assert save_release(tmp_path / "r", Release.draft(served()), replaces=1) == 2


def test_a_table_without_values_makes_no_file():
    refused(lambda: table_file(replace(served(), weight=served().weight.to("meta"), position_ids=None)), "weight")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself"])
def test_a_checkpoint_is_read_from_files_alone(tmp_path, name, kind):
    if name != "config.json":
        (tmp_path / "config.json").write_text("{}")
    path = tmp_path / name
    {"pipe": lambda: os.mkfifo(path), "folder": path.mkdir, "link to itself": lambda: path.symlink_to(path)}[kind]()
    error = refused(lambda: read_checkpoint(tmp_path), "file")
    assert name in str(error)
