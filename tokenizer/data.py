"""The packed data directory, as training and evaluation read it.

tokenizer.json   the tokenizer that made it
train-00000.bin  token ids, uint16 little endian: one long line (packed) or rows; whole stories
train-00001.bin  as many files as the corpus fills, each mapped into memory when it is first read
valid-00000.bin
meta.json        layout; counts and hashes of each split, and of each of its files under `shards`
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import END_OF_TEXT, PAD, CorpusError, load_tokenizer, tokenizer_hash

SPLITS: tuple[str, ...] = ("train", "valid")
SCHEMA = 1
BLOCK = 1 << 20
DTYPE = np.dtype("<u2")
MAPPED = 256  # files mapped at a time: each holds a file handle, of which there are often 1024


@dataclass(frozen=True)
class Shard:
    """One file of a split: its path, and its number of ids, padding included."""

    path: Path
    tokens: int

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


@lru_cache(maxsize=MAPPED)
def map_shard(shard: Shard) -> np.ndarray:
    """Return the ids of a file, mapped into memory: `(tokens,)`, uint16.

    Raises:
        CorpusError: It cannot be read, or has another size.
    """
    shard.check()
    # A plain view: slicing a memmap itself is several times slower.
    return np.memmap(shard.path, dtype=DTYPE, mode="r", shape=(shard.tokens,)).view(np.ndarray)


class TokenLine:
    """Token ids, uint16, numbered from 0 over the shards of a split, in their order.

    A stretch that crosses the edge of a shard is put together from its parts.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`: `(stop - start,)`, a view where one file holds them.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        stop, parts = min(stop, len(self)), []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard = self.shards[number]
            before = int(self._ends[number]) - shard.tokens
            parts.append(map_shard(shard)[start - before : stop - before])
            start += len(parts[-1])
            number += 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, DTYPE), *parts])

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the stretches of `width` tokens that begin at `starts`: `(len(starts), width)`."""
        windows = np.empty((len(starts), width), DTYPE)
        for window, start in zip(windows, starts.tolist(), strict=True):
            window[:] = self.read(start, start + width)
        return windows


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
        if tokenizer_hash(tokenizer) != self.meta["tokenizer_sha256"]:
            raise CorpusError(
                f"{self.path / 'tokenizer.json'}: not the tokenizer this data was packed with;"
                " pack it again"
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
            Shard(self.path / about["file"], about[self._counted] * self._width)
            for about in self.meta["splits"][split]["shards"]
        ]

    def line(self, split: str) -> TokenLine:
        """Return the tokens of a split as one line, rows one after the other; nothing is read."""
        return TokenLine(self.shards(split))

    def tokens(self, split: str, limit: int | None = None) -> np.ndarray:
        """Return the first ids of a split: uint16, (N,) when packed, (rows, context) in rows.

        They are mapped into memory when one file holds them, and else copied into it. `limit`
        counts tokens, or rows.
        """
        line = self.line(split)
        tokens = line.read(0, len(line) if limit is None else limit * self._width)
        return tokens.reshape(-1, self._width) if self._width > 1 else tokens

    def stories(self, split: str) -> Iterator[str]:
        """Yield the stories of a split as they were packed; of a row that was cut, what it holds.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        end, pad = (tokenizer.token_to_id(special) for special in (END_OF_TEXT, PAD))
        line, pending = self.line(split), np.empty(0, DTYPE)
        block = BLOCK // self._width * self._width
        for start in range(0, len(line), block):
            tokens = line.read(start, start + block)
            if self._width > 1:
                whole = list(tokens.reshape(-1, self._width))
            else:
                tokens = np.concatenate([pending, tokens])
                *whole, pending = np.split(tokens, np.flatnonzero(tokens == end) + 1)
            stories = [story[(story != end) & (story != pad)].tolist() for story in whole]
            yield from tokenizer.decode_batch(stories, skip_special_tokens=False)

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
        raise CorpusError(f"{directory}: no such directory of packed data; {advice}")
    if not file.is_file():
        raise CorpusError(f"{directory}: not a directory of packed data (no meta.json); {advice}")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorpusError(f"{file}: not JSON ({error}); pack the data again") from error
    if not isinstance(meta, dict) or "splits" not in meta:
        raise CorpusError(f"{directory}: not a directory of packed data (no splits in meta.json)")
    if meta.get("schema") != SCHEMA:
        raise CorpusError(f"{file}: schema {meta.get('schema')}, known is {SCHEMA}; pack again")
    return meta
