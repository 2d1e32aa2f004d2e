"""Files and directories that are whole or not there.

Both are written under a temporary name beside their place, forced to disk, then renamed. They are
entered before the work starts, so that a place that cannot be written is found out at once.

A directory that replaces another takes two renames: for the moment between them the old one is
called `.NAME.old`. What a process that was killed leaves, `recover` puts right.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizer.errors import CorpusError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, it becomes `path`.

    Raises:
        CorpusError: The place cannot be written, or its disk is full.
    """
    if path.is_dir():
        raise CorpusError(f"--out {path}: is a directory; give the name of a file")
    with no_place(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with no_space(path):
            yield temporary
            temporary.chmod(0o644)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty temporary directory; when the block ends without an error, it becomes `path`.

    Args:
        path: Where the directory goes.
        replace: Whether a directory that is there gives way, once the new one is complete.

    Raises:
        CorpusError: The place cannot be written, or its disk is full.
    """
    with no_place(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with no_space(path), _locked(temporary):
            yield temporary
            commit_directory(temporary, path, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit_directory(temporary: Path, path: Path, replace: bool = False) -> None:
    """Force a directory of files to disk, and give it its name; the last step of writing it.

    Args:
        temporary: The directory, beside its place.
        path: Its place.
        replace: Whether a directory that is there gives way.
    """
    old = path.with_name(f".{path.name}.old")
    temporary.chmod(0o755)
    for file in temporary.iterdir():
        sync(file)
    sync(temporary)
    if not (replace and path.exists()):
        temporary.rename(path)
        sync(path.parent)
        return
    with _locked(path):
        try:
            path.rename(old)
            temporary.rename(path)
            sync(path.parent)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)


def recover(path: Path) -> None:
    """Put right what processes that were killed left beside the place of a directory.

    A directory that was giving way gets its name back if no other took it; half a one goes. Those
    of a living process are locked, and stay as they are.

    Raises:
        CorpusError: The place cannot be written.
    """
    old = path.with_name(f".{path.name}.old")
    halves = path.parent.glob(f".{glob.escape(path.name)}.*.tmp")
    with no_place(path):
        for left in filter(Path.is_dir, (old, *halves)):
            with _locked(left) as ours:
                if ours and left == old and not path.exists():
                    old.rename(path)
                elif ours:
                    shutil.rmtree(left)


def sync(path: Path) -> None:
    """Force what a file or directory holds to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def no_place(path: Path) -> Iterator[None]:
    """Say of an error inside that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CorpusError(
            f"--out {path}: cannot be written ({reason}); choose a place that can"
        ) from error


@contextmanager
def no_space(path: Path, left: Callable[[], str] = lambda: "nothing was written") -> Iterator[None]:
    """Say of a full disk that it is one, and what it leaves."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise CorpusError(
            f"--out {path}: the disk is full, {left()}; free space or choose another"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a directory, if nobody else has; yield whether it is locked. It may be renamed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except OSError:  # another has, or the file system has no locks
        locked = False
    try:
        yield locked
    finally:
        os.close(handle)
