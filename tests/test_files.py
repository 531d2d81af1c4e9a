"""Files are written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from checkmate_tf.errors import CheckmateError
from checkmate_tf.files import check_outputs, write_file


@pytest.fixture
def full_disk(monkeypatch):
    """A disk with no room for what is written: it fails when that is to reach it."""

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_a_file_is_replaced_and_its_folder_made(tmp_path):
    path = tmp_path / "new" / "folder" / "graph.json"
    write_file(path, "first")
    path.chmod(0o640)
    write_file(path, b"second")
    assert path.read_text() == "second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_on_a_full_disk_the_file_stays_as_it_was(tmp_path, full_disk):
    path = tmp_path / "graph.json"
    path.write_text("whole")
    with pytest.raises(OSError, match=r"No space left on device: '.*graph\.json'"):
        write_file(path, "other")
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "new.json", "other")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.touch()
    link.symlink_to(kept)
    write_file(link, "new")
    assert link.is_symlink()
    assert kept.read_text() == "new"


def test_devices_are_written_as_they_are(tmp_path):
    write_file("/dev/null", "gone")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_file("/dev/full", "gone")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    check_outputs(["/dev/null", "/dev/null"])


def test_a_file_of_the_longest_name_is_written(tmp_path):
    path = tmp_path / ("n" * 255)
    write_file(path, "whole")
    assert path.read_text() == "whole"


@pytest.mark.parametrize(
    ("outputs", "inputs", "why"),
    [
        ([""], [], "'' names no file"),
        (["a\0b"], [], "names no file"),
        (["graph.json"], ["graph.json"], "graph.json is read in the same command"),
        (["folder/../link.json"], ["graph.json"], "graph.json is read"),
        (["a.json", None, "./a.json"], [], "a.json is written in the same command"),
        (["folder"], [], "Is a directory"),
        (["graph.json/a.json"], [], "Not a directory"),
        (["/sys/kernel/a.json"], [], "cannot write /sys/kernel/a.json"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before(tmp_path, monkeypatch, outputs, inputs, why):
    monkeypatch.chdir(tmp_path)
    Path("graph.json").touch()
    Path("link.json").symlink_to("graph.json")
    Path("folder").mkdir()
    before = set(tmp_path.iterdir())
    with pytest.raises(CheckmateError, match=why):
        check_outputs(outputs, inputs=inputs)
    check_outputs([None, "new.json", "missing/folder/new.json"], inputs=["graph.json"])
    assert set(tmp_path.iterdir()) == before
