"""The packed data directory, as training and evaluation read it.

tokenizer.json   the tokenizer that made it
train-00000.bin  token ids, uint16 little endian: one long line (packed) or rows; whole stories
train-00001.bin  as many files as the corpus fills; compared with meta.json when they are read
valid-00000.bin
meta.json        layout; counts and hashes of each split, and of each of its files under `shards`
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import (
    END_OF_TEXT,
    LARGEST,
    PAD,
    CorpusError,
    count_ids,
    load_tokenizer,
    refuse_pointer,
    token_bytes,
    tokenizer_hash,
)
from tokenizer.files import SPLITS, read_meta

BLOCK = 1 << 20
DTYPE = np.dtype("<u2")
OPEN = 256  # files open at a time, of the 1024 that there often may be


@dataclass(frozen=True)
class Shard:
    """One file of a split: its path, its number of ids, padding included, and their SHA-256."""

    path: Path
    tokens: int
    sha256: str = ""

    def state(self) -> tuple[int, int]:
        """Which file is there, and when it was changed; zeros where there is none."""
        try:
            stat = self.path.stat()
        except OSError:
            return 0, 0
        return stat.st_ino, stat.st_mtime_ns

    def check(self) -> None:
        """Compare the size of the file with what was written.

        Raises:
            CorpusError: It is missing, unreadable or of another size.
        """
        expected = DTYPE.itemsize * self.tokens
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
        except FileNotFoundError:
            size = 0
        except OSError as error:
            raise CorpusError(
                f"{self.path}: cannot be read ({error.strerror}); mend that, or pack the data again"
            ) from error
        if size != expected:
            if size:
                refuse_pointer(self.path)
            raise CorpusError(
                f"{self.path}: {size} bytes, {expected} expected (incomplete copy?); "
                "copy it again, or pack the data again"
            )


class Tally:
    """Counts and hashes the files of a split, one after the other, as they are read.

    Attributes:
        shards: What `meta.json` holds of each file.
    """

    def __init__(self, tokenizer: Tokenizer, context: int | None) -> None:
        self._end, self._pad = map(tokenizer.token_to_id, (END_OF_TEXT, PAD))
        pieces = token_bytes(tokenizer)
        self._entries, self._bytes = len(pieces), np.zeros(max(LARGEST, len(pieces)), np.uint16)
        self._bytes[: len(pieces)] = [len(piece) for piece in pieces]
        self._context = context
        self._total: Counter[str] = Counter()
        self._hash = hashlib.sha256()
        self.shards: list[dict[str, Any]] = []

    @property
    def about(self) -> dict[str, Any]:
        """What `meta.json` holds of the split."""
        return {**self._total, "sha256": self._hash.hexdigest(), "shards": self.shards}

    def add(self, path: Path, sha256: str | None = None) -> None:
        """Read a file.

        Raises:
            CorpusError: its hash is another than the one given, or an id is none of the vocabulary.
        """
        counts, largest, width = Counter[str](), -1, self._context or 1
        digests = [self._hash] if not self.shards else [self._hash, hashlib.sha256()]
        with path.open("rb") as file:
            while (ids := np.fromfile(file, DTYPE, max(1, BLOCK // width) * width)).size:
                counts.update(self._counts(ids))
                largest = max(largest, int(ids.max()))
                for digest in digests:
                    digest.update(ids.data)
        found = digests[-1].hexdigest()
        if sha256 is not None and sha256 != found:
            raise CorpusError(
                f"{path}: not the bytes that were packed (sha256 {found[:12]}, {sha256[:12]} "
                "expected); copy it again, or pack the data again"
            )
        if largest >= self._entries:
            raise CorpusError(
                f"{path}: holds id {largest}, the vocabulary has {self._entries} entries; pack the "
                "data again"
            )
        self._total.update(counts)
        self.shards.append({"file": path.name, **counts, "sha256": found})

    def _counts(self, ids: np.ndarray) -> dict[str, int]:
        """Count stories, tokens and UTF-8 bytes; pads are not counted; in rows, cut stories are."""
        ends, size = ids == self._end, int(self._bytes.take(ids).sum(dtype=np.int64))
        if self._context is None:
            return {"stories": int(np.count_nonzero(ends)), "tokens": ids.size, "bytes": size}
        ends, tokens = ends.reshape(-1, self._context), int(np.count_nonzero(ids != self._pad))
        counts = {"stories": len(ends), "tokens": tokens, "bytes": size}
        return counts | {"rows": len(ends), "cut": int((~ends.any(1)).sum())}


@lru_cache(maxsize=OPEN)
def _read_files(
    shards: tuple[Shard, ...], states: tuple[tuple[int, int], ...], tokenizer: str, width: int
) -> dict[str, Any]:
    """Read files once for each of their states; return what packing says of them.

    Raises:
        CorpusError: One is not what was packed.
    """
    tally = Tally(Tokenizer.from_str(tokenizer), width if width > 1 else None)
    for shard in shards:
        shard.check()
        tally.add(shard.path, shard.sha256)
    return tally.about


class _OpenFile(FileIO):
    """A file that is closed, without a warning, when it is used no more."""

    def __del__(self) -> None:
        self.close()


@lru_cache(maxsize=OPEN)
def open_shard(shard: Shard) -> FileIO:
    """Open a file for reading.

    Raises:
        CorpusError: It cannot be read, or has another size.
    """
    shard.check()
    return _OpenFile(shard.path)


def _read_into(window: np.ndarray, shard: Shard, first: int) -> None:
    file, content, done = open_shard(shard).fileno(), window.data.cast("B"), 0
    while done < window.nbytes:  # one call gives 2 GiB at most
        got = os.preadv(file, [content[done:]], first * DTYPE.itemsize + done)
        if not got:
            shard.check()
            raise CorpusError(f"{shard.path}: cannot be read to its end; copy it again")
        done += got


class TokenLine:
    """Token ids, uint16, numbered from 0 over the shards of a split, in their order.

    A stretch that crosses the edge of a shard is put together from its parts. With `vocab_size`,
    windows with an id beyond the vocabulary are refused. Of packed data `made` is the tokenizer's
    JSON, and the width of a row.
    """

    def __init__(
        self, shards: Sequence[Shard], vocab_size: int = LARGEST, made: tuple[str, int] = ("", 1)
    ) -> None:
        self.shards, self._vocab_size, self._made = list(shards), vocab_size, made
        self._states = [shard.state() for shard in self.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)

    def verify(self) -> None:
        """Compare the files that were written to since they were opened with their hashes.

        Raises:
            CorpusError: one is not what was packed.
        """
        for shard, (inode, changed) in zip(self.shards, self._states, strict=True):
            state = shard.state()
            if state[0] == inode and state[1] != changed:  # what is open stays, if it was replaced
                _read_files((shard,), (state,), *self._made)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`, or to the last: `(stop - start,)`.

        They are read, not mapped: of a file that is cut off meanwhile, a mapping ends the process.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        tokens, done = np.empty(max(0, min(stop, len(self)) - start), DTYPE), 0
        for shard, first, last in self._parts(start, stop):
            shard.check()
            _read_into(tokens[done : done + last - first], shard, first)
            done += last - first
        return tokens

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the stretches of `width` tokens that begin at `starts`: `(len(starts), width)`.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        windows = np.empty((len(starts), width), DTYPE)
        numbers = np.searchsorted(self._ends, starts, side="right").tolist()
        ends = self._ends.tolist()
        for window, start, number in zip(windows, starts.tolist(), numbers, strict=True):
            if start + width <= ends[number]:
                shard = self.shards[number]
                _read_into(window, shard, start - ends[number] + shard.tokens)
                continue
            done = 0
            for shard, first, last in self._parts(start, start + width):
                _read_into(window[done : done + last - first], shard, first)
                done += last - first
        if windows.size and int(windows.max()) >= self._vocab_size:
            path = self.shards[0].path.parent
            raise CorpusError(
                f"{path}: a file changed while it was read (id {windows.max()}, the vocabulary has "
                f"{self._vocab_size} entries); pack the data again"
            )
        return windows

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """Yield the shards of a stretch, each with its first id in it and the id after its last."""
        number, stop = int(np.searchsorted(self._ends, start, side="right")), min(stop, len(self))
        while start < stop:
            shard, end = self.shards[number], int(self._ends[number])
            before = end - shard.tokens
            yield shard, start - before, min(stop, end) - before
            start, number = end, number + 1


class PackedData:
    """A packed data directory, checked when it is opened.

    Attributes:
        path: The directory.
        meta: What `meta.json` says: layout, pad_side, context, vocab_size, splits, ...
        tokenizer_json: The text of the tokenizer's file.
        hash: SHA-256 (hex) over the hashes of both splits: equal exactly for equal tokens. Of a
            split in many files its own hash is compared when these are read.
    """

    def __init__(self, directory: str | Path) -> None:
        """Open a directory.

        Raises:
            CorpusError: It is missing, is not packed data, or a file in it is not what was written.
        """
        self.path = Path(directory)
        self.meta = read_meta(self.path)
        tokenizer = load_tokenizer(self.path)
        self.tokenizer_json = tokenizer.to_str()
        if tokenizer_hash(tokenizer) != self.meta.get("tokenizer_sha256"):
            raise CorpusError(
                f"{self.path / 'tokenizer.json'}: not the tokenizer this data was packed with;"
                " pack it again"
            )
        entries = count_ids(tokenizer, self.path)
        if entries != self.meta["vocab_size"]:
            raise CorpusError(
                f"{self.path / 'meta.json'}: vocab_size {self.meta['vocab_size']}, the tokenizer "
                f"has {entries} entries; pack the data again"
            )
        rows = self.meta["layout"] == "rows"
        self._width, self._counted = (self.meta["context"], "rows") if rows else (1, "tokens")
        for split in SPLITS:
            for shard in self.shards(split):
                shard.check()
        hashes = "".join(self.meta["splits"][split]["sha256"] for split in SPLITS)
        self.hash = hashlib.sha256(hashes.encode()).hexdigest()

    def shards(self, split: str) -> list[Shard]:
        """Return the files of a split, in their order."""
        return [
            Shard(self.path / about["file"], about[self._counted] * self._width, about["sha256"])
            for about in self.meta["splits"][split]["shards"]
        ]

    def line(self, split: str) -> TokenLine:
        """Return the tokens of a split as one line, rows one after the other.

        The files are read once for it, and compared with what meta.json says of them.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        shards, told = self.shards(split), self.meta["splits"][split]
        made, states = (self.tokenizer_json, self._width), tuple(s.state() for s in shards)
        found = _read_files(tuple(shards), states, *made)
        parts = zip([told, *told["shards"]], [found, *found["shards"]], strict=True)
        for number, (old, new) in enumerate(parts):
            if changed := [key for key in new if key != "shards" and old[key] != new[key]]:
                name = f"splits.{split}" + f".shards[{number - 1}]" * bool(number)
                raise CorpusError(
                    f"{self.path / 'meta.json'}: {name}.{changed[0]} {old[changed[0]]}: must be "
                    f"{new[changed[0]]}, as in the files; pack the data again"
                )
        return TokenLine(shards, self.meta["vocab_size"], made)

    def tokens(self, split: str) -> np.ndarray:
        """Return the ids of a split: uint16, (N,) when packed, (rows, context) in rows.

        All are read into memory; `line(split).read` gives a part.
        """
        line = self.line(split)
        tokens = line.read(0, len(line))
        return tokens.reshape(-1, self._width) if self._width > 1 else tokens

    def stories(self, split: str) -> Iterator[str]:
        """Yield the stories of a split as they were packed; of a cut one its whole characters.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        return (text for text, _ in self.encoded(split))

    def encoded(self, split: str) -> Iterator[tuple[str, list[int]]]:
        """Yield each story with its ids as they were packed: pads left out, end-of-text kept.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        end, pad = (tokenizer.token_to_id(special) for special in (END_OF_TEXT, PAD))
        line, pending = self.line(split), np.empty(0, DTYPE)
        block = max(1, BLOCK // self._width) * self._width
        for start in range(0, len(line), block):
            tokens = line.read(start, start + block)
            if self._width > 1:
                whole = list(tokens.reshape(-1, self._width))
            else:
                tokens = np.concatenate([pending, tokens])
                *whole, pending = np.split(tokens, np.flatnonzero(tokens == end) + 1)
            stories = [story[story != pad].tolist() for story in whole]
            texts = [[token for token in story if token != end] for story in stories]
            decoded = tokenizer.decode_batch(texts, skip_special_tokens=False)
            for text, story in zip(decoded, stories, strict=True):
                yield text if story[-1:] == [end] else text.removesuffix("\ufffd"), story

    @staticmethod
    def stands_in(directory: str | Path) -> bool:
        """Say whether a directory has the two small files of packed data; nothing is read."""
        return all((Path(directory) / name).is_file() for name in ("meta.json", "tokenizer.json"))

    def bytes_per_token(self, split: str) -> float:
        """UTF-8 bytes of the stories per token, end-of-text counted as a token, pads not."""
        counts = self.meta["splits"][split]
        return counts["bytes"] / counts["tokens"]
