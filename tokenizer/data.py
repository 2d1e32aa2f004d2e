"""The packed data directory, as training and evaluation read it.

tokenizer.json   the tokenizer that made it
train.bin        token ids, uint16 little endian: one long line (packed) or rows
valid.bin
meta.json        layout, counts and hashes
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer.bpe import load_tokenizer, tokenizer_hash
from tokenizer.errors import CorpusError
from tokenizer.splits import SPLITS

SCHEMA = 1
DTYPE = np.dtype("<u2")


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
            _check_size(
                self.path / f"{split}.bin", DTYPE.itemsize * int(np.prod(self._shape(split)))
            )
        hashes = "".join(self.meta["splits"][split]["sha256"] for split in SPLITS)
        self.hash = hashlib.sha256(hashes.encode()).hexdigest()

    def tokens(self, split: str) -> np.memmap:
        """Map the token ids of a split: uint16, (N,) when packed, (rows, context) in rows."""
        shape = self._shape(split)
        return np.memmap(self.path / f"{split}.bin", dtype=DTYPE, mode="r", shape=shape)

    def bytes_per_token(self, split: str) -> float:
        """UTF-8 bytes of the stories per token, end-of-text counted as a token, pads not."""
        counts = self.meta["splits"][split]
        return counts["bytes"] / counts["tokens"]

    def _shape(self, split: str) -> tuple[int, ...]:
        counts = self.meta["splits"][split]
        if self.meta["layout"] == "rows":
            return counts["rows"], self.meta["context"]
        return (counts["tokens"],)


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


def _check_size(file: Path, expected: int) -> None:
    size = file.stat().st_size if file.is_file() else 0
    if size != expected:
        raise CorpusError(
            f"{file}: {size} bytes, {expected} expected (incomplete copy?); pack the data again"
        )
