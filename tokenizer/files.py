"""Files and directories that are complete or not there.

Both are written under another name beside their place, forced to disk, then renamed. They are
entered before the work starts, so that a place that cannot be written is reported at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizer.bpe import CorpusError

REQUEST = "request.json"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, it becomes `path`.

    Raises:
        CorpusError: The place cannot be written, or its disk is full.
    """
    if path.is_dir():
        raise CorpusError(f"--out {path}: is a directory; give the name of a file")
    with _place(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _space(path):
            yield temporary
            temporary.chmod(0o644)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class Partial:
    """The directory `.NAME.partial` of packed data that is not complete; locked while entered.

    It stays after an error if a complete shard is in it. A directory that it replaces takes two
    renames: between them the old one is called `.NAME.old`, and a packing that is killed there
    leaves it to the next one, which gives it its name back.

    Args:
        out: Where the complete directory goes.
        force: Whether packed data that is there, or what another packing left, is replaced.
    """

    def __init__(self, out: Path, force: bool = False) -> None:
        self.out, self._force = out, force
        self.path = out.with_name(f".{out.name}.partial")
        self._old = out.with_name(f".{out.name}.old")

    def __enter__(self) -> Partial:
        """Make the directory, or take the one that an interrupted packing left.

        Raises:
            CorpusError: The place cannot be written, is taken, or another packing is writing it.
        """
        with _place(self.out):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CorpusError(
                    f"--out {self.out}: another packing is writing it; wait for it, or choose"
                    " another"
                ) from None
            if self._old.exists() and not self.out.exists():
                self._old.rename(self.out)
            self._check_free()
        except CorpusError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.exists() and not self.shards():
            shutil.rmtree(self.path)
        os.close(self._lock)

    def shards(self) -> int:
        """Return how many complete shards there are."""
        return len(list(self.path.glob("*.bin")))

    def agree(self, request: dict[str, Any]) -> None:
        """Note what is packed, and how; what an interrupted packing left must be of the same.

        Raises:
            CorpusError: It is of another, and is not to be replaced.
        """
        file = self.path / REQUEST
        before = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        changed = [key for key in request if before.get(key) != request[key]]
        if changed and self.shards() and not self._force:
            changes = "; ".join(f"{key} {before.get(key)}, now {request[key]}" for key in changed)
            raise CorpusError(
                f"--out {self.out}: a packing that was interrupted had {changes}; ask for the same"
                " to continue it, or replace it: --force"
            )
        if changed:
            for path in self.path.iterdir():
                path.unlink()
            with whole_file(file) as temporary:
                temporary.write_text(json.dumps(request), "utf-8")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Add to an error inside that complete shards are kept.

        Raises:
            CorpusError: The disk is full, or what the block raised.
        """

        def kept() -> str:
            return f"{self.shards()} complete shards are kept: the same command continues"

        try:
            with _space(self.out, lambda: kept() if self.shards() else "nothing was written"):
                yield
        except CorpusError as error:
            if not self.shards() or kept() in str(error):
                raise
            raise CorpusError(f"{error}; {kept()}") from error

    def commit(self) -> None:
        """Give the complete directory its name; the last step of writing it."""
        for file in self.path.iterdir():
            sync(file)
        sync(self.path)
        if self.out.exists():
            self.out.rename(self._old)
        try:
            self.path.rename(self.out)
        except OSError:
            if self._old.exists():
                self._old.rename(self.out)
            raise
        sync(self.out.parent)
        shutil.rmtree(self._old, ignore_errors=True)
        (self.out / REQUEST).unlink()

    def _check_free(self) -> None:
        """Refuse to write over anything but packed data that may be replaced."""
        out = self.out
        if not out.exists():
            return
        if not self._force:
            raise CorpusError(
                f"--out {out}: already exists; choose another, or replace it: --force"
            )
        if not (out / "meta.json").is_file():
            raise CorpusError(f"--out {out}: not packed data, so --force leaves it; choose another")


def sync(path: Path) -> None:
    """Force what a file or directory holds to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _place(path: Path) -> Iterator[None]:
    """Say of an error inside that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CorpusError(
            f"--out {path}: cannot be written ({reason}); choose a place that can"
        ) from error


@contextmanager
def _space(path: Path, kept: Callable[[], str] = lambda: "nothing was written") -> Iterator[None]:
    """Say of a full disk that it is one, and what is kept."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise CorpusError(
            f"--out {path}: the disk is full, {kept()}; free space or choose another"
        ) from error
