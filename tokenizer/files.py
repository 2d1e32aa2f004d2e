"""Files and directories that are complete or not there.

Both are written under another name beside their place, forced to disk, then renamed. The place is
checked before the work starts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizer.bpe import CorpusError
from tokenizer.data import PackedData
from tokenizer.splits import list_files, text_files

REQUEST = "request.json"
FULL = {
    errno.ENOSPC: "the disk is full; free space or choose another",
    errno.EDQUOT: "your quota of this disk is used up; free space or choose another",
    errno.EFBIG: "no file may become so large; raise ulimit -f or choose another disk",
}
"""Why a place has no room for a file, by the number of the error."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, it becomes `path`.

    Raises:
        CorpusError: The place cannot be written, or its disk is full.
    """
    if path.is_dir():
        raise CorpusError(f"--out {path}: is a directory; give the name of a file")
    temporary = path.with_name(f".{path.name}.tmp")
    with _reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    try:
        with _reported(path, only_full=True):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(out: Path, request: dict[str, Any]) -> Iterator[Path]:
    """Yield the directory `.NAME.partial`; when the block ends without an error, it becomes `out`.

    One process at a time has it. After an error it stays if it has complete shards, for the same
    request to continue.

    Args:
        out: Where the complete directory goes.
        request: What is packed, and how.

    Raises:
        CorpusError: The place cannot be written or is taken, its disk is full, another process is
            writing it, or the shards there are of another request; or what the block raised.
    """
    partial = _partial(out)
    with _reported(out):
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise CorpusError(
            f"--out {out}: another packing is writing it; wait for it, or choose another"
        ) from None
    except OSError:  # a file system without locks
        pass
    try:
        if out.exists():
            raise CorpusError(f"--out {out}: already exists; remove it, or choose another")
        _keep_or_clear(partial, out, request)
        try:
            with _reported(out, only_full=True):
                yield partial
        except CorpusError as error:
            if shards := complete_shards(out):
                raise CorpusError(
                    f"{error}; {shards} complete shards are kept: the same command continues, but "
                    f"not after a change of the source or the tokenizer: then remove {partial}"
                ) from error
            raise
        with _reported(out):
            for path in (*partial.iterdir(), partial):
                sync(path)
            partial.rename(out)
            (out / REQUEST).unlink()
            sync(out.parent)
    finally:
        if partial.exists() and not complete_shards(out):
            shutil.rmtree(partial)
        os.close(lock)


def complete_shards(out: Path) -> int:
    """Return how many shards an interrupted packing of `out` has completed."""
    return len(list(_partial(out).glob("*.bin")))


def describe_files(source: str) -> str | None:
    """Return how many files a source has, their size, and when the last was written; or nothing.

    Of a folder the files count that are read; of `hub:FOLDER` and packed data all do. Of a dataset
    of the hub its revision is returned, if the network tells it.
    """
    kind, _, name = source.partition(":")
    root = Path(name.partition(":")[0] if kind == "hub" else source)
    paths = [root]
    if root.is_dir():
        all_count = kind == "hub" or PackedData.stands_in(root)
        paths = chain.from_iterable(list_files(root)) if all_count else text_files(root)
    found = [path for path in paths if path.is_file()]
    if kind == "hub" and not found:
        return _revision(str(root))
    if not found or kind == "toy":
        return None
    stats = [path.stat() for path in found]
    changed = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), timezone.utc)
    size = sum(stat.st_size for stat in stats)
    return f"{len(found):,} of {size:,} bytes, written until {changed.isoformat(' ')}"


def _revision(name: str) -> str | None:
    from huggingface_hub import HfApi

    try:
        return f"of revision {HfApi().dataset_info(name).sha}"
    except Exception:  # of the name, or of the HTTP library; it is said where it is read
        return None


def sync(path: Path) -> None:
    """Force what a file or directory holds to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # file systems of networks and clouds know none of directories
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def _partial(out: Path) -> Path:
    named = out if out.name else out.absolute()  # the working directory
    return named.parent / f".{named.name}.partial"


def _keep_or_clear(partial: Path, out: Path, request: dict[str, Any]) -> None:
    """Keep the shards of the same request; clear what an interruption left before the first."""
    file = partial / REQUEST
    try:
        before = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except ValueError:
        before = {}
    changed = [key for key in request if before.get(key) != request[key]]
    if changed and complete_shards(out):
        changes = "; ".join(f"{key} {before.get(key)}, now {request[key]}" for key in changed)
        raise CorpusError(
            f"--out {out}: a packing that was interrupted had {changes}; ask for the same to"
            f" continue it, or remove {partial}"
        )
    if changed:
        for path in partial.iterdir():
            path.unlink()
        with whole_file(file) as temporary:
            temporary.write_text(json.dumps(request), "utf-8")


@contextmanager
def _reported(path: Path, only_full: bool = False) -> Iterator[None]:
    """Make one line of a place that cannot be written; or only of a disk that is full."""
    try:
        yield
    except ValueError as error:  # a NUL in the name
        if only_full or isinstance(error, CorpusError):
            raise
        raise CorpusError(f"--out {str(path)!a}: {error}; give another name") from None
    except OSError as error:
        if error.errno in FULL:
            problem = FULL[error.errno]
        elif only_full:
            raise
        else:
            problem = f"cannot be written ({error.strerror or error}); choose a place that can"
        raise CorpusError(f"--out {path}: {problem}") from error
