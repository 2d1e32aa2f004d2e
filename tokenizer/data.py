"""The packed data directory, as training and evaluation read it.

tokenizer.json   the tokenizer that made it
train-00000.bin  token ids, uint16 little endian: one long line (packed) or rows; whole stories
train-00001.bin  as many files as the corpus fills; compared with their hashes when they are read
valid-00000.bin
meta.json        layout; counts and hashes of each split, and of each of its files under `shards`
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import END_OF_TEXT, PAD, CorpusError, count_ids, load_tokenizer, tokenizer_hash

SPLITS: tuple[str, ...] = ("train", "valid")
SCHEMA = 1
BLOCK = 1 << 20
DTYPE = np.dtype("<u2")
OPEN = 256  # files open at a time, of the 1024 that there often may be


@dataclass(frozen=True)
class Shard:
    """One file of a split: its path, its number of ids, padding included, and their SHA-256."""

    path: Path
    tokens: int
    sha256: str = ""

    def verify(self, vocab_size: int) -> None:
        """Compare the bytes of the file with their hash, and its ids with the vocabulary.

        Raises:
            CorpusError: they differ, or an id is none of the vocabulary.
        """
        self.check()
        stat = self.path.stat()
        _verify_bytes(self, vocab_size, stat.st_mtime_ns, stat.st_ino)

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
            raise CorpusError(
                f"{self.path}: {size} bytes, {expected} expected (incomplete copy?); "
                "copy it again, or pack the data again"
            )


@lru_cache(maxsize=1 << 16)
def _verify_bytes(shard: Shard, vocab_size: int, changed: int, inode: int) -> None:
    """Read a file once for each of its states."""
    digest, largest = hashlib.sha256(), -1
    with shard.path.open("rb") as file:
        while (ids := np.fromfile(file, DTYPE, BLOCK)).size:
            digest.update(ids.tobytes())
            largest = max(largest, int(ids.max()))
    if digest.hexdigest() != shard.sha256:
        raise CorpusError(
            f"{shard.path}: not the bytes that were packed (sha256 {digest.hexdigest()[:12]}, "
            f"{shard.sha256[:12]} expected); copy it again, or pack the data again"
        )
    if largest >= vocab_size:
        raise CorpusError(
            f"{shard.path}: holds id {largest}, the vocabulary has {vocab_size} entries; pack the "
            "data again"
        )


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
    file = open_shard(shard).fileno()
    if os.preadv(file, [window.data], first * DTYPE.itemsize) != window.nbytes:
        shard.check()
        raise CorpusError(f"{shard.path}: cannot be read to its end; copy it again")


class TokenLine:
    """Token ids, uint16, numbered from 0 over the shards of a split, in their order.

    A stretch that crosses the edge of a shard is put together from its parts. With `vocab_size`,
    windows with an id beyond the vocabulary are refused.
    """

    def __init__(self, shards: Sequence[Shard], vocab_size: int = 1 << 16) -> None:
        self.shards, self._vocab_size = list(shards), vocab_size
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
                shard.verify(self._vocab_size)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`: `(stop - start,)`, mapped where one file holds them.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        parts = []
        for shard, first, last in self._parts(start, stop):
            shard.check()
            # A plain view: slicing a memmap itself is several times slower.
            mapped = np.memmap(open_shard(shard), DTYPE, "r", shape=(shard.tokens,))
            parts.append(mapped.view(np.ndarray)[first:last])
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, DTYPE), *parts])

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the stretches of `width` tokens that begin at `starts`: `(len(starts), width)`.

        They are read, not mapped: of a file that is cut off meanwhile, a mapping ends the process.

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
        hash: SHA-256 (hex) over the hashes of both splits: equal exactly for equal tokens.
    """

    def __init__(self, directory: str | Path) -> None:
        """Open a directory.

        Raises:
            CorpusError: It is missing, is not packed data, or a file in it is not what was written.
        """
        self.path = Path(directory)
        self.meta = _read_meta(self.path)
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

        The files are read once for it, and compared with their hashes.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        shards = self.shards(split)
        for shard in shards:
            shard.verify(self.meta["vocab_size"])
        return TokenLine(shards, self.meta["vocab_size"])

    def tokens(self, split: str, limit: int | None = None) -> np.ndarray:
        """Return the first ids of a split: uint16, (N,) when packed, (rows, context) in rows.

        They are mapped into memory when one file holds them, and else copied into it. `limit`
        counts tokens, or rows.
        """
        line = self.line(split)
        tokens = line.read(0, len(line) if limit is None else limit * self._width)
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


def _read_meta(directory: Path) -> dict[str, Any]:
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
        need(about["tokens"] > 0, f"splits.{split}.tokens", about["tokens"], "1 or more")


def _counts(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 53
