"""What the tests of the tokenizer share."""

import errno
import os

import pytest


@pytest.fixture(scope="session")
def tokenizer(small_tokenizer, tmp_path_factory):
    """The file of a tokenizer of 400 entries."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(small_tokenizer.to_str(pretty=True), encoding="utf-8")
    return path


@pytest.fixture
def full_disk(monkeypatch):
    """Has the disk be full after so many files or directories were forced to it."""
    fsync = os.fsync

    def fill(after=0):
        count = iter(range(after))

        def full(handle):
            if next(count, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", full)

    return fill


def contents(folder):
    """The bytes of a directory's files by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
