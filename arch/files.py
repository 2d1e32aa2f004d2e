"""Reading and writing that is whole or not at all."""

import ctypes
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arch.errors import ModelError


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a file by way of a temporary sibling, a flush to the disk, and one rename.

    Raises:
        OSError: the disk is full or the place cannot be written; nothing is left behind, and a file
            that was there stays as it was.
    """
    make_directory(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _flush(path.parent)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, and flushes their names to the disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        _flush(each.parent)


def sweep(folder: Path) -> None:
    """Removes what writers that were killed left in a folder: hidden siblings ending in `.tmp`.

    Only for a folder that nobody else is writing in. A directory that was being replaced, and is
    called `.NAME.old` for the moment, gets its name back if nothing took it.
    """
    for path in folder.glob(".*.old"):
        name = path.with_name(path.name[1 : -len(".old")])
        if not name.exists():
            path.rename(name)
        else:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Makes `directory` by `write(temporary sibling)`, a flush to the disk, and one rename.

    A process killed at any moment leaves the old directory or the new one, whole; beside it may
    stay a hidden sibling that ends in `.tmp`. (A file system that cannot swap two directories has
    a moment between two renames when the old one is called `.NAME.old`.)

    Raises:
        ModelError: what is there is not empty and not a model directory, ours or transformers'.
        OSError: the disk is full or the place cannot be written; all is as it was.
    """
    directory = directory.resolve()
    if os.path.lexists(directory) and not _replaceable(directory):
        raise ModelError(f"{directory} is there and is not a model directory; give another place")
    make_directory(directory.parent)
    temporary = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent)
    )
    try:
        write(temporary)
        temporary.chmod(0o777 & ~_umask())
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
        if directory.exists():
            _exchange(temporary, directory)
        else:
            os.rename(temporary, directory)
        _flush(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the failed attempt, or what was replaced


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ModelError: not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not a text file in UTF-8") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ModelError: not UTF-8, not JSON, or not an object.
    """
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is not a JSON object")
    return found


def _replaceable(directory: Path) -> bool:
    return directory.is_dir() and (
        (directory / "config.json").is_file() or not any(directory.iterdir())
    )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _exchange(new: Path, old: Path) -> None:
    """Swaps two directories: in one system call where there is one, else by two renames."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0:
            return
        if (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code), str(old))
    aside = old.with_name(f".{old.name}.old")
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)
