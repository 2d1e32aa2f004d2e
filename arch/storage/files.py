"""Files and directories that are written completely or not at all."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from arch.config import parse_object
from arch.errors import ModelError, printable

UNWRITTEN = re.compile(
    r"__pycache__|\.DS_Store|\._.*|\.ipynb_checkpoints|\..*\.sw[a-p]|\.nfs\w+|\..*\.tmp"
)
"""What Python, macOS, Jupyter, vim and NFS leave where they only read, and an interrupted write."""
POINTER = b"version https://git-lfs.github.com/spec/"


def write_file(path: Path, content: bytes | memoryview, flush: bool = True) -> None:
    """Writes a file by way of a temporary sibling, a flush to the disk, and one rename.

    A pipe or a device is written into. Without the flush, which takes milliseconds, a crash of the
    machine may lose the file.

    Raises:
        OSError: the disk is full or the place cannot be written; nothing is left behind, and a file
            that was there stays as it was. Its `filename` is the path.
    """
    name = None
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
        make_directory(path.parent)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        with suppress(OSError):  # a file system without permissions
            os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        name = None
        if flush:
            _flush(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        if name:
            os.unlink(name)


def write_text(path: str | Path, text: str) -> None:
    """Writes UTF-8 as `write_file` does, or the file that a link leads to.

    Lone surrogates are spelt out.
    """
    path = Path(path)
    special = path.exists() and not path.is_file()  # a pipe may have no other name
    target = Path(os.path.realpath(path)) if path.is_symlink() and not special else path
    write_file(target, text.encode("utf-8", errors="backslashreplace"))


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, and flushes their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        _flush(folder.parent)


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that were killed left in a folder: hidden siblings ending in `.tmp`.

    Only for a folder that nobody else is writing in. A directory that was being replaced, and is
    called `.NAME.old` for the moment, gets its name back if nothing took it.
    """
    for path in folder.glob(".*.old"):
        name = path.with_name(path.name[1 : -len(".old")])
        if not name.exists():
            path.rename(name)
        else:
            _discard(path)
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    """Makes a directory of files beside its place, the last file last, and renames it.

    A process killed at any moment leaves the old directory or the new one, whole; beside it may
    stay a hidden sibling that ends in `.tmp`. A directory that is replaced is called `.NAME.old`
    between two renames: see `remove_leftovers`.

    A directory that is there is replaced if it has these files and no others, so that nothing is
    lost but what was written the same way; an empty one is replaced too.

    Raises:
        ModelError: what is there is something else.
        OSError: the disk is full or the place cannot be written; all is as it was.
    """
    directory = directory.resolve()
    if os.path.lexists(directory):
        _check_replaceable(directory, files)
    make_directory(directory.parent)
    temporary = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent)
    )
    aside = directory.with_name(f".{directory.name}.old")
    try:
        for name, content in files.items():
            write_file(temporary / name, content)
        with suppress(OSError):
            temporary.chmod(0o777 & ~_umask())
        if directory.exists():
            _discard(aside)
            os.rename(directory, aside)
        os.rename(temporary, directory)
        _flush(directory.parent)
        _discard(aside)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the failed attempt


def _discard(directory: Path) -> None:
    """Removes a directory, if it is there, and frees its name also where a part of it stays.

    NFS keeps a file that a process has open; `remove_leftovers` knows what it then lies in.
    """
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        last = tempfile.mkdtemp(prefix=f"{directory.name}.", suffix=".tmp", dir=directory.parent)
        os.rename(directory, Path(last, directory.name))


def refuse_pointer(path: Path) -> None:
    """Refuses the few lines that git keeps of a large file, and leaves where its LFS is missing.

    Raises:
        ModelError: the file holds them.
    """
    if path.is_file():  # a pipe can be read once
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise ModelError(
                    f"{path} is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"
                )


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ModelError: not UTF-8, or as `refuse_pointer`.
    """
    refuse_pointer(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not a text file in UTF-8") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ModelError: as `read_text` and `parse_object`.
    """
    return parse_object(read_text(path), str(path))


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _check_replaceable(directory: Path, files: Mapping[str, bytes]) -> None:
    """Refuses to replace what has other files than those that are written.

    Raises:
        ModelError: naming one of them.
    """
    seen, written = "is a file", set(files)
    if directory.is_dir():
        names = {path.name for path in directory.iterdir()}
        held = {name for name in names if not UNWRITTEN.fullmatch(name)}
        if not held or held == written:
            return
        others = sorted(held - written)
        seen = f"has {printable(others[0], 80)}" if others else f"lacks {min(written - held)}"
    raise ModelError(
        f"{directory} is there and is not a model directory with the files to be written and no "
        f"others: it {seen}; give another place"
    )


def _flush(path: Path) -> None:
    """Forces the names in a directory to the disk, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
