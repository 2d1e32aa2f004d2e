"""Files and directories that are complete or not there, and what `meta.json` of packed data says.

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
from pathlib import Path
from typing import Any

from tokenizer.bpe import CorpusError

SPLITS: tuple[str, ...] = ("train", "valid")
SCHEMA = 1
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

    What a link leads to is written, and the link stays. Of a pipe or a device `path` is yielded.

    Raises:
        CorpusError: The place cannot be written, or its disk is full.
    """
    if path.is_dir():
        raise CorpusError(f"--out {path}: is a directory; give the name of a file")
    if path.exists() and not path.is_file():
        with _reported(path, only_full=True):
            yield path
        return
    with _reported(path):
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".{target.name}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    try:
        with _reported(path, only_full=True):
            yield temporary
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
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


def read_meta(directory: Path) -> dict[str, Any]:
    """Return what `meta.json` of packed data says, each entry that is read checked.

    Raises:
        CorpusError: There is none, or an entry is missing, or is not what packing writes.
    """
    file = directory / "meta.json"
    advice = "make one with: python -m tokenizer pack SOURCE --tokenizer FILE --out DIR"
    if not directory.is_dir():
        text = directory.suffix in (".txt", ".jsonl", ".json", ".csv", ".parquet")
        kind = "file" if text else "directory of packed data"
        raise CorpusError(f"{directory}: no such {kind}; {advice}")
    if not file.is_file():
        raise CorpusError(f"{directory}: not a directory of packed data (no meta.json); {advice}")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{file}: not JSON ({error}); pack the data again") from error
    if not isinstance(meta, dict) or "splits" not in meta:
        raise CorpusError(f"{directory}: not a directory of packed data (no splits in meta.json)")
    if meta.get("schema") != SCHEMA:
        raise CorpusError(f"{file}: schema {meta.get('schema')!r}, known is {SCHEMA}; pack again")
    _check_meta(file, meta)
    return meta


def _check_meta(file: Path, meta: dict[str, Any]) -> None:
    """Check each entry that is read.

    Raises:
        CorpusError: One is missing, or is not what packing writes.
    """

    def need(allowed: bool, name: str, value: Any, what: str) -> None:
        if not allowed:
            raise CorpusError(f"{file}: {name} {value!r:.80}: must be {what}; pack the data again")

    rows, context = meta.get("layout") == "rows", meta.get("context")
    need(rows or meta.get("layout") == "packed", "layout", meta.get("layout"), "packed or rows")
    need(_counts(context, 2) if rows else context is None, "context", context,
         "2 or more in rows, null when packed")  # fmt: skip
    sides = ("left", "right") if rows else (None,)
    need(meta.get("pad_side") in sides, "pad_side", meta.get("pad_side"),
         "left or right in rows, null when packed")  # fmt: skip
    size, source = meta.get("vocab_size"), meta.get("source")
    need(_counts(size, 1), "vocab_size", size, "a number of entries")
    need(isinstance(source, str), "source", source, "a text")
    field, fraction = meta.get("field", "text"), meta.get("valid_fraction")
    need(isinstance(field, str), "field", field, "the name of a column")
    between = isinstance(fraction, int | float) and 0 < fraction < 1
    need(fraction is None or between, "valid_fraction", fraction, "null or between 0 and 1")
    files = meta.get("source_files", {})
    named = isinstance(files, dict) and all(split in SPLITS for split in files.values())
    need(named, "source_files", files, "train or valid by hash")
    need(isinstance(meta["splits"], dict), "splits", meta["splits"], "an object")
    counted = ("stories", "tokens", "bytes", *(("rows", "cut") if rows else ()))
    for split in SPLITS:
        about = meta["splits"].get(split)
        listed = about.get("shards") if isinstance(about, dict) else None
        shards: list[Any] = listed if isinstance(listed, list) else []
        need(shards != [], f"splits.{split}", about, "an object with shards")
        for number, part in enumerate([about, *shards]):
            name = f"splits.{split}" + (f".shards[{number - 1}]" if number else "")
            need(isinstance(part, dict), name, part, "an object")
            for key in counted:
                value = part.get(key)
                need(_counts(value, 0), f"{name}.{key}", value, "a whole number")
            digest, own = part.get("sha256"), part.get("file", "")
            need(isinstance(digest, str), f"{name}.sha256", digest, "a SHA-256")
            right = f"{split}-{number - 1:05d}.bin"
            need(own == right or number == 0, f"{name}.file", own, right)
        for key in counted:
            total = sum(part[key] for part in shards)
            need(about[key] == total, f"splits.{split}.{key}", about[key], f"{total}, as in shards")
        alone = shards[0]["sha256"] if len(shards) == 1 else about["sha256"]
        need(about["sha256"] == alone, f"splits.{split}.sha256", about["sha256"], f"{alone:.80}")
        need(about["tokens"] > 0, f"splits.{split}.tokens", about["tokens"], "1 or more")


def _counts(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 53


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
