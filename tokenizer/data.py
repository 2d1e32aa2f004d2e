"""The packed data directory, as training and evaluation read it.

tokenizer.json   the tokenizer that made it
train.bin        token ids, uint16 little endian: one long line (packed) or rows
valid.bin
meta.json        layout, counts and hashes

A corpus that is larger than memory stands in many files instead: train-00000.bin, ... Each holds
whole stories; meta.json lists them, with their counts and hashes, under `shards`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import END_OF_TEXT, PAD, load_tokenizer, tokenizer_hash
from tokenizer.errors import CorpusError
from tokenizer.line import DTYPE, Shard, TokenLine
from tokenizer.splits import SPLITS

SCHEMA = 1
BLOCK = 1 << 20


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
        for split in SPLITS:
            for shard in self.shards(split):
                shard.check()
        hashes = "".join(self.meta["splits"][split]["sha256"] for split in SPLITS)
        self.hash = hashlib.sha256(hashes.encode()).hexdigest()

    def shards(self, split: str) -> list[Shard]:
        """Return the files of a split, in their order; mostly it is one."""
        counts = self.meta["splits"][split]
        if "shards" not in counts:
            return [Shard(self.path / f"{split}.bin", self._size(counts))]
        return [
            Shard(self.path / shard["file"], self._size(shard), index)
            for index, shard in enumerate(counts["shards"])
        ]

    def line(self, split: str) -> TokenLine:
        """Return the tokens of a split as one line, rows one after the other; nothing is read."""
        return TokenLine(self.shards(split))

    def tokens(self, split: str, limit: int | None = None) -> np.ndarray:
        """Return the token ids of a split: uint16, (N,) when packed, (rows, context) in rows.

        They are mapped into memory when they stand in one file, and copied into it when they stand
        in several: then ask for no more than is needed, or read the `line`.

        Args:
            split: `train` or `valid`.
            limit: Stop after so many tokens, or rows.
        """
        width = self.meta["context"] if self.meta["layout"] == "rows" else 1
        line = self.line(split)
        tokens = line.read(0, len(line) if limit is None else limit * width)
        return tokens.reshape(-1, width) if self.meta["layout"] == "rows" else tokens

    def stories(self, split: str) -> Iterator[str]:
        """Yield the stories of a split as they were packed; of a row that was cut, what it holds.

        Args:
            split: `train` or `valid`.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        end, pad = (tokenizer.token_to_id(special) for special in (END_OF_TEXT, PAD))
        line, rows = self.line(split), self.meta["layout"] == "rows"
        width = self.meta["context"] if rows else 1
        pending = np.empty(0, DTYPE)
        for start in range(0, len(line), BLOCK // width * width):
            tokens = line.read(start, start + BLOCK // width * width)
            if rows:
                whole = list(tokens.reshape(-1, width))
            else:
                tokens = np.concatenate([pending, tokens])
                *whole, pending = np.split(tokens, np.flatnonzero(tokens == end) + 1)
            stories = [story[(story != end) & (story != pad)].tolist() for story in whole]
            yield from tokenizer.decode_batch(stories, skip_special_tokens=False)

    @staticmethod
    def stands_in(directory: str | Path) -> bool:
        """Say whether a directory has the two small files of packed data; nothing is read."""
        return all((Path(directory) / name).is_file() for name in ("meta.json", "tokenizer.json"))

    def verify(self, split: str, shard: Shard) -> None:
        """Compare what a file holds with the hash it was written with.

        Raises:
            CorpusError: They differ.
        """
        counts = self.meta["splits"][split]
        expected = (counts if shard.index is None else counts["shards"][shard.index])["sha256"]
        digest = hashlib.sha256()
        with shard.path.open("rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                digest.update(block)
        if digest.hexdigest() != expected:
            raise CorpusError(
                f"{shard}: altered, its sha256 is {digest.hexdigest()[:12]}, {expected[:12]} was "
                "written; copy it again, or pack the data again"
            )

    def bytes_per_token(self, split: str) -> float:
        """UTF-8 bytes of the stories per token, end-of-text counted as a token, pads not."""
        counts = self.meta["splits"][split]
        return counts["bytes"] / counts["tokens"]

    def _size(self, counts: dict[str, Any]) -> int:
        """Return how many ids a file holds, pads included."""
        rows = self.meta["layout"] == "rows"
        return counts["rows"] * self.meta["context"] if rows else counts["tokens"]


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
