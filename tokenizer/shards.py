"""A corpus of any size into shards: streamed, encoded by processes, in bounded memory.

    python -m tokenizer pack parts/ --tokenizer tokenizer.json --out data --shards 100000000

A shard holds whole stories, and ends with the first that brings it to the size asked for. Until all
are there they stand in `.data.partial` beside their place, each told in a journal once it is safe
on the disk. A packing that was interrupted, started again, reads the stories of those shards past
without encoding them, and goes on: what it writes is what it would have written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.corpus import Corpus
from tokenizer.encoding import encoded
from tokenizer.errors import CorpusError
from tokenizer.files import commit_directory, no_place, no_space, sync, whole_file
from tokenizer.layout import Counts, Laid, Layout

JOURNAL = "journal.json"
LOCK = "lock"


class Partial:
    """The directory of a packing that is not complete.

    Args:
        out: Where the complete one goes.
        asked: What is packed, and how; an interrupted packing must have been asked the same.
        force: Whether another one that was interrupted gives way.

    Raises:
        CorpusError: Another packing was interrupted, or is running.
    """

    def __init__(self, out: Path, asked: dict[str, Any], force: bool) -> None:
        self.out, self.force = out, force
        self.path = out.parent / f".{out.name}.partial"
        self._asked = json.loads(json.dumps(asked))
        self.shards: dict[str, list[dict[str, Any]]] = {}
        self.ended: list[str] = []
        with ExitStack() as stack:
            with no_place(out):
                self.path.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.path / LOCK).open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CorpusError(
                    f"--out {out}: another packing is writing it; wait for it, or choose another"
                ) from None
            if (self.path / JOURNAL).is_file():
                self._read(force)
            self._lock = stack.pop_all()

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def add(self, split: str, shard: dict[str, Any]) -> None:
        """Note a shard that is safe on the disk."""
        self.shards.setdefault(split, []).append(shard)
        self._write()

    def end(self, split: str) -> None:
        """Note that a split has all its shards."""
        self.ended.append(split)
        self._write()

    def commit(self) -> None:
        """Give the complete directory its name."""
        commit_directory(self.path, self.out, self.force)
        for name in (JOURNAL, LOCK):
            (self.out / name).unlink()

    def kept(self) -> str:
        """Say what an error now leaves behind."""
        number = sum(map(len, self.shards.values()))
        return f"{number} whole shards are kept: the same command goes on after them"

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add to what is wrong with a source that the shards so far are kept."""
        try:
            yield
        except CorpusError as error:
            raise CorpusError(f"{error}; {self.kept()}") from error

    def _read(self, force: bool) -> None:
        journal = json.loads((self.path / JOURNAL).read_text(encoding="utf-8"))
        before = journal["asked"]
        if before == self._asked:
            self.shards, self.ended = journal["shards"], journal["ended"]
            return
        if not force:
            keys = [key for key in self._asked if before.get(key) != self._asked[key]]
            told = "; ".join(f"{key} {before.get(key)}, now {self._asked[key]}" for key in keys)
            raise CorpusError(
                f"--out {self.out}: a packing that was interrupted had {told}; ask for the same"
                " to go on, or drop it: --force"
            )
        for file in self.path.iterdir():
            if file.name != LOCK:
                file.unlink() if file.is_file() else shutil.rmtree(file)

    def _write(self) -> None:
        journal = {"asked": self._asked, "shards": self.shards, "ended": self.ended}
        with whole_file(self.path / JOURNAL) as temporary:
            temporary.write_text(json.dumps(journal), encoding="utf-8")


def shards_kept(out: Path) -> int:
    """Return how many shards an interrupted packing left for `out`."""
    journal = out.parent / f".{out.name}.partial" / JOURNAL
    if not journal.is_file():
        return 0
    return sum(map(len, json.loads(journal.read_text(encoding="utf-8"))["shards"].values()))


def pack_shards(
    corpora: list[Corpus],
    tokenizer: Tokenizer,
    layout: Layout,
    meta: dict[str, Any],
    size: int,
    partial: Partial,
    workers: int | None = None,
    report: Callable[[Corpus, int], None] | None = None,
) -> None:
    """Write the shards of all splits, then the directory that holds them.

    Args:
        corpora: One a split.
        tokenizer: Encodes them.
        layout: How to lay the tokens out.
        meta: What `meta.json` says besides the counts.
        size: Tokens in a shard, pads not counted.
        partial: Where to, and what is there already.
        workers: Processes that encode; all cores when not given.
        report: Called after every batch with the corpus, and how many stories are done.

    Raises:
        CorpusError: A story cannot be read, or the disk is full; whole shards are kept.
    """
    with no_space(partial.out, partial.kept), partial.told(), ExitStack() as open_files:
        writers = {
            corpus.split: _Writer(corpus.split, layout, size, partial, open_files)
            for corpus in corpora
        }
        skip = {split: writer.stories for split, writer in writers.items()}
        for corpus, laid in encoded(
            _stories(corpora, skip, partial.ended), tokenizer, layout, workers
        ):
            if corpus.split not in partial.ended:
                writers[corpus.split].add(laid)
                if report:
                    report(corpus, writers[corpus.split].stories)
        for split, writer in writers.items():
            if split not in partial.ended:
                writer.finish()
                partial.end(split)
        splits = {split: writer.plain() for split, writer in writers.items()}
        write_about(partial.path, tokenizer, meta | {"splits": splits})
        partial.commit()


def write_about(folder: Path, tokenizer: Tokenizer, meta: dict[str, Any]) -> None:
    """Write the two small files of a data directory."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _stories(
    corpora: list[Corpus], skip: dict[str, int], ended: list[str]
) -> Iterator[tuple[Corpus, str]]:
    """Yield every story that is not in a shard yet, with its corpus.

    A source that is not divided is read once, for both: twice would be twice the network.
    """
    if corpora[0].share is None:
        for corpus in corpora:
            if corpus.split not in ended:
                for story in islice(corpus, skip[corpus.split], None):
                    yield corpus, story
        return
    found = dict.fromkeys(skip, 0)
    for story in corpora[0].whole():
        (corpus,) = (corpus for corpus in corpora if corpus.keeps(story))
        if found[corpus.split] != corpus.limit:
            found[corpus.split] += 1
            if found[corpus.split] > skip[corpus.split]:
                yield corpus, story
        elif all(count == corpus.limit for count in found.values()):
            return


class _Writer:
    """Writes the shards of one split, one after the other."""

    def __init__(
        self, split: str, layout: Layout, size: int, partial: Partial, open_files: ExitStack
    ) -> None:
        self._split, self._layout, self._size = split, layout, size
        self._partial, self._open_files = partial, open_files
        self._shards = partial.shards.setdefault(split, [])
        self._counts, self._file = Counts(), None

    @property
    def stories(self) -> int:
        """How many are written."""
        return sum(shard["stories"] for shard in self._shards) + self._counts.stories

    def add(self, laid: Laid) -> None:
        """Write stories, and finish every shard that they fill."""
        while len(laid):
            room = self._size - self._counts.tokens
            some = int(np.searchsorted(np.cumsum(laid.lengths), room)) + 1
            part, laid = laid.divided(some)
            if self._file is None:
                path = self._partial.path / f"{self._split}.tmp"
                self._file = self._open_files.enter_context(path.open("wb"))
            self._file.write(self._counts.add(part))
            if self._counts.tokens >= self._size:
                self.finish()

    def finish(self) -> None:
        """Make the shard that is being written a whole one, if there is one."""
        if self._file is None:
            return
        self._file.close()
        name = f"{self._split}-{len(self._shards):05d}.bin"
        temporary = Path(self._file.name)
        sync(temporary)
        temporary.rename(self._partial.path / name)
        sync(self._partial.path)
        self._partial.add(self._split, {"file": name} | self._counts.plain(self._layout))
        self._counts, self._file = Counts(), None

    def plain(self) -> dict[str, Any]:
        """As `meta.json` holds it: sums over the shards, and a hash over their hashes."""
        shards = self._shards
        sums = {
            key: sum(shard[key] for shard in shards)
            for key in shards[0]
            if key not in ("file", "sha256")
        }
        hashes = "".join(shard["sha256"] for shard in shards)
        return sums | {"sha256": hashlib.sha256(hashes.encode()).hexdigest(), "shards": shards}
