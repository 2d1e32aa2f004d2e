"""Files and directories that are whole or not there, and what killed writers leave."""

import errno
import os
from pathlib import Path

import pytest

from arch.files import remove_leftovers, write_directory, write_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_cannot_be_flushed_leaves_the_old_one(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_file(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_file_gets_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new" / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o640


def test_names_of_new_folders_reach_the_disk(tmp_path, monkeypatch):
    flushed, opened, fsync, open_ = [], {}, os.fsync, os.open

    def opening(path, *arguments, **named):
        handle = open_(path, *arguments, **named)  # pyright: ignore[reportArgumentType]
        opened[handle] = str(path)
        return handle

    def flushing(handle):
        flushed.append(opened.get(handle))
        fsync(handle)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", flushing)
    write_file(tmp_path / "a" / "b" / "file", b"")
    folders = [str(tmp_path), str(tmp_path / "a")]
    assert flushed[:2] == folders
    assert flushed[-1] == str(tmp_path / "a" / "b")


def test_sweep_removes_what_killed_writers_left(tmp_path):
    write_file(tmp_path / "file", b"whole")
    (tmp_path / ".file.x7.tmp").write_bytes(b"half")
    (tmp_path / ".model.x8.tmp").mkdir()
    (tmp_path / ".model.x8.tmp" / "config.json").touch()
    (tmp_path / ".hidden").touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "file"]
    remove_leftovers(tmp_path / "nowhere")


def test_sweep_gives_a_directory_back_its_name(tmp_path):
    """One that is replaced is called `.NAME.old` between two renames."""
    for name in ("first", "second"):
        write_directory(tmp_path / name, {"config.json": b""})
    (tmp_path / "first").rename(tmp_path / ".first.old")
    (tmp_path / ".second.old").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["first", "second"]
    assert (tmp_path / "first" / "config.json").is_file()
