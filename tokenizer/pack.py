"""Stories to token files: encoded once, on all cores, then mapped into memory by training.

    python -m tokenizer pack toy --tokenizer tokenizer.json --out data

Layout `packed`: all stories in a line, each followed by end-of-text. Layout `rows`: one story a
row, with its end-of-text, cut at the context and padded on one side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import (
    END_OF_TEXT,
    LARGEST,
    PAD,
    SPECIAL,
    encode_stories,
    load_tokenizer,
    token_bytes,
    tokenizer_hash,
)
from tokenizer.corpus import Corpus, open_corpus
from tokenizer.data import SCHEMA, PackedData
from tokenizer.errors import CorpusError
from tokenizer.files import whole_directory
from tokenizer.line import DTYPE
from tokenizer.splits import SPLITS

VALID_FRACTION = 0.05


@dataclass(frozen=True)
class Layout:
    """How tokens are laid out.

    Attributes:
        name: `packed` or `rows`.
        context: Length of a row; only of `rows`.
        pad_side: `left` or `right`; only of `rows`, where it is `right` unless given.

    Raises:
        CorpusError: They do not fit together.
    """

    name: str = "packed"
    context: int | None = None
    pad_side: str | None = None

    def __post_init__(self) -> None:
        if self.name == "packed":
            if self.context is not None or self.pad_side is not None:
                raise CorpusError("--context and --pad-side: need --layout rows; add it")
            return
        if self.name != "rows":
            raise CorpusError(f"--layout {self.name}: must be packed or rows")
        if self.context is None or self.context < 2:
            raise CorpusError(f"--context {self.context}: --layout rows needs 2 or more")
        if self.pad_side not in (None, "left", "right"):
            raise CorpusError(f"--pad-side {self.pad_side}: must be left or right")
        object.__setattr__(self, "pad_side", self.pad_side or "right")

    def lay(self, lines: list[list[int]], pad: int) -> np.ndarray:
        """Lay out stories: (tokens,) when packed, (stories, context) in rows."""
        if self.context is None:
            return np.concatenate([np.array(line, DTYPE) for line in lines])
        rows = np.full((len(lines), self.context), pad, DTYPE)
        for row, line in zip(rows, lines, strict=True):
            row[slice(-len(line), None) if self.pad_side == "left" else slice(len(line))] = line
        return rows


def pack(
    source: str,
    tokenizer: str | Path,
    out: str | Path,
    layout: Layout | None = None,
    *,
    valid_fraction: float = VALID_FRACTION,
    limit: int | None = None,
    force: bool = False,
    report: Callable[[Corpus, int], None] | None = None,
) -> PackedData:
    """Write a data directory; it is whole or not there.

    Args:
        source: A source of `open_corpus`.
        tokenizer: Path of a `tokenizer.json`.
        out: The directory to make.
        layout: How to lay the tokens out; packed unless given.
        valid_fraction: Share set aside for `valid` when the source sets none aside itself.
        limit: Stop after so many stories of each split.
        force: Whether packed data that is already at `out` gives way.
        report: Called after every batch with the corpus, and how many stories are done.

    Raises:
        CorpusError: Something given cannot be used; the message names it.
    """
    out = Path(out)
    layout = layout or Layout()
    _check_free(out, force)
    loaded = load_tokenizer(tokenizer)
    _check_tokenizer(loaded, tokenizer)
    meta: dict[str, Any] = {
        "schema": SCHEMA,
        "layout": layout.name,
        "pad_side": layout.pad_side,
        "context": layout.context,
        "vocab_size": loaded.get_vocab_size(),
        "tokenizer_sha256": tokenizer_hash(loaded),
        "source": source,
        "splits": {},
    }
    corpora = [
        open_corpus(source, split, valid_fraction=valid_fraction, limit=limit) for split in SPLITS
    ]
    with whole_directory(out, replace=force) as folder:
        for corpus in corpora:
            file = folder / f"{corpus.split}.bin"
            meta["splits"][corpus.split] = _write_split(file, corpus, loaded, layout, report)
        (folder / "tokenizer.json").write_text(loaded.to_str(pretty=True), encoding="utf-8")
        (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return PackedData(out)


def _write_split(
    file: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    layout: Layout,
    report: Callable[[Corpus, int], None] | None,
) -> dict[str, Any]:
    """Encode a split into a file, and count what went in."""
    vocabulary = tokenizer.get_vocab()
    end, pad = vocabulary[END_OF_TEXT], vocabulary[PAD]
    length_of = np.array([len(piece) for piece in token_bytes(tokenizer)])
    stories = tokens = size = cut = 0
    digest = hashlib.sha256()
    with file.open("wb") as output:
        for batch in encode_stories(tokenizer, corpus):
            lines = [[*ids, end][: layout.context] for ids in batch]
            stories += len(lines)
            tokens += sum(map(len, lines))
            size += sum(int(length_of[line].sum()) for line in lines)  # what is cut off is not in
            cut += sum(line[-1] != end for line in lines)
            content = layout.lay(lines, pad).tobytes()
            digest.update(content)
            output.write(content)
            if report:
                report(corpus, stories)
    counts = {"stories": stories, "tokens": tokens, "bytes": size, "sha256": digest.hexdigest()}
    return counts if layout.context is None else counts | {"rows": stories, "cut": cut}


def _check_free(out: Path, force: bool) -> None:
    """Refuse to write over anything but packed data that may be replaced."""
    if not out.exists():
        return
    if not force:
        raise CorpusError(f"--out {out}: already exists; choose another, or replace it: --force")
    if not (out / "meta.json").is_file():
        raise CorpusError(f"--out {out}: not packed data, so --force leaves it; choose another")


def _check_tokenizer(tokenizer: Tokenizer, path: str | Path) -> None:
    for special in SPECIAL:
        if tokenizer.token_to_id(special) is None:
            raise CorpusError(
                f"{path}: has no entry {special}; train one with: python -m tokenizer train"
            )
    size = tokenizer.get_vocab_size()
    if size > LARGEST:
        raise CorpusError(
            f"{path}: {size} entries, but uint16 can name {LARGEST}; use a smaller one"
        )
