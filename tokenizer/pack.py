"""Stories to token files: streamed from the source, encoded on all cores, in bounded memory.

    python -m tokenizer pack toy --tokenizer tokenizer.json --out data

Layout `packed`: all stories in a line, each followed by end-of-text. Layout `rows`: one story a
row, with its end-of-text, cut at the context and padded on one side.

`--story-tokens N` joins neighbours of a split, such as the paragraphs of a book, to longer stories;
which split a paragraph is in does not depend on it. The ids are those of the joined text.

Each split is written as shards: files of whole stories. A shard ends with the first story that
brings it to the size asked for. Until all are complete they are in `.data.partial` beside `data`.
The same command, given again after an interruption, counts the stories of the complete shards,
skips them in the source, and writes the other shards; the result is the same. It is refused where
files of the source, or the revision of a dataset of the hub, were changed in between.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import (
    END_OF_TEXT,
    LARGEST,
    PAD,
    SPECIAL,
    CorpusError,
    count_ids,
    encode_stories,
    load_tokenizer,
    tokenizer_hash,
)
from tokenizer.corpus import Corpus, describe_files, hash_sources, open_corpus
from tokenizer.data import DTYPE, PackedData, Tally
from tokenizer.files import SCHEMA, SPLITS, sync, whole_directory

VALID_FRACTION = 0.05
BETWEEN = "\n\n"  # of stories that are joined
SHARD = 100_000_000  # tokens
NAMED = 1000  # files of a split, at most
Report = Callable[[str, int], None]


@dataclass(frozen=True)
class Layout:
    """How tokens are laid out: `packed`, or `rows` of `context` tokens, padded on one side.

    Raises:
        CorpusError: the settings do not fit together.
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
            given = "is missing" if self.context is None else self.context
            raise CorpusError(f"--context {given}: --layout rows needs 2 or more")
        if self.pad_side not in (None, "left", "right"):
            raise CorpusError(f"--pad-side {self.pad_side}: must be left or right")
        object.__setattr__(self, "pad_side", self.pad_side or "right")


def pack(
    source: str | os.PathLike[str],
    tokenizer: str | Path,
    out: str | Path,
    layout: Layout | None = None,
    *,
    valid_fraction: float = VALID_FRACTION,
    limit: int | None = None,
    field: str = "text",
    shard_tokens: int = SHARD,
    story_tokens: int | None = None,
    report: Report = lambda split, done: None,
) -> PackedData:
    """Write a data directory; it is complete or not there.

    Args:
        source: A source of `open_corpus`; a dataset of the hub is streamed.
        tokenizer: Path of a `tokenizer.json`.
        layout: How to lay the tokens out; packed unless given.
        valid_fraction: Fraction set aside for `valid` when the source sets none aside itself.
        limit: Stop after so many stories of each split; of a source that is not divided, when
            `train` has so many, and `valid` its fraction of as many, two at least.
        field: Name of the stories' column.
        shard_tokens: Tokens in a file, pads not counted.
        story_tokens: Neighbours of a split are joined by a blank line, until they and these lines,
            each encoded apart, have so many tokens; not when it is None.
        report: Called after every batch with the split, and how many stories are done.

    Raises:
        CorpusError: Something given cannot be used, or the tokenizer changes a story; the message
            names it. Complete shards are kept.
    """
    source, out, layout = os.fspath(source), Path(out), layout or Layout()
    for flag, count in (("shard", shard_tokens), ("story", story_tokens)):
        if count is not None and count < 1:
            raise CorpusError(f"--{flag}-tokens {count}: must be 1 or more")
    loaded, size = _load_special(tokenizer, layout)
    meta: dict[str, Any] = {
        "schema": SCHEMA,
        "layout": layout.name,
        "pad_side": layout.pad_side,
        "context": layout.context,
        "vocab_size": size,
        "tokenizer_sha256": tokenizer_hash(loaded),
        "source": source,
        "field": field,
    }
    options: Any = {"valid_fraction": valid_fraction, "limit": limit, "field": field}
    given = {"shard-tokens": shard_tokens, "story-tokens": story_tokens}
    given |= {name.replace("_", "-"): value for name, value in options.items()}
    given["files"] = describe_files(source)
    with whole_directory(out, meta | given) as folder, ExitStack() as files:
        hashes = hash_sources(source)
        corpora = {split: open_corpus(source, split, **options, stream=True) for split in SPLITS}
        writers = {split: _Writer(folder, split, loaded, layout, shard_tokens) for split in SPLITS}
        for writer in writers.values():
            files.callback(writer.close)
        skip = {split: writer.stories for split, writer in writers.items()}
        stories = _stories(corpora)
        if story_tokens is not None:
            stories = _joined(stories, story_tokens, loaded, tokenizer)
        for batch in encode_stories(loaded, _after(stories, skip), tokenizer):
            for split, writer in writers.items():
                if encoded := [ids for of, ids in batch if of == split]:
                    writer.add(encoded)
                    report(split, writer.stories)
        splits = {split: writer.finish() for split, writer in writers.items()}
        training = _training_of(source, hashes, corpora["train"].fraction)
        about = meta | training | {"splits": splits}
        (folder / "tokenizer.json").write_text(loaded.to_str(pretty=True), "utf-8")
        (folder / "meta.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return PackedData(out)


def _load_special(tokenizer: str | Path, layout: Layout) -> tuple[Tokenizer, int]:
    """Return a tokenizer that has the special tokens of a layout, and how many entries it has.

    Raises:
        CorpusError: It lacks one of them, or has too many entries.
    """
    loaded = load_tokenizer(tokenizer)
    added = loaded.get_added_tokens_decoder().values()
    marked = {token.content for token in added if token.special}
    rows = layout.name == "rows"
    for special in SPECIAL:
        unused = special == PAD and not rows and loaded.token_to_id(PAD) is None
        if special not in marked and not unused:
            raise CorpusError(
                f"{tokenizer}: has no entry {special} that is special; train a tokenizer with: "
                "python -m tokenizer train" + ", or pack without rows" * (rows and special == PAD)
            )
    size = count_ids(loaded, tokenizer)
    if size > LARGEST:
        raise CorpusError(
            f"{tokenizer}: {size} entries, but uint16 can name {LARGEST}; use a smaller one"
        )
    return loaded, size


def _training_of(source: str, files: dict[str, str], fraction: float | None) -> dict[str, Any]:
    """Tell which text training reads, so that no reader of the same text takes it for held out.

    The fraction is null where the source is divided. What packed data were made of stays known. Of
    more than `NAMED` files of a split those of the least hashes are named.
    """
    kind = source.partition(":")[0]
    if fraction is None and kind != "toy" and PackedData.stands_in(source):
        fraction = PackedData(source).meta.get("valid_fraction")
    if fraction and kind == "hub":
        files = files or {hashlib.sha256(source.encode()).hexdigest()[:16]: "train"}
    if fraction is None and "valid" not in files.values():
        files = {}  # a folder that datasets divides by its own rules
    hashes = {
        split: sorted(h for h, of in files.items() if of == split)[:NAMED] for split in SPLITS
    }
    named = {digest: split for split in SPLITS for digest in hashes[split]}
    return {"valid_fraction": fraction, "source_files": named}


def _stories(corpora: dict[str, Corpus]) -> Iterator[tuple[str, str]]:
    """Yield every story of both splits, after the split's name.

    A source that is not divided is read once, for both: twice would be twice the network. It is
    read until `train` has as many as it may, and `valid` its fraction of as many.
    """
    train = corpora["train"]
    if train.fraction is None:
        yield from ((split, story) for split, corpus in corpora.items() for story in corpus)
        return
    limit, read = train.limit or math.inf, dict.fromkeys(corpora, 0)
    beside = max(2, limit * train.fraction / (1 - train.fraction))
    for story in train.whole():
        split = "train" if train.keeps(story) else "valid"
        if read[split] < limit:
            read[split] += 1
            yield split, story
        if read["train"] >= limit and read["valid"] >= min(limit, beside):
            return


def _joined(
    stories: Iterable[tuple[str, str]], tokens: int, tokenizer: Tokenizer, name: object
) -> Iterator[tuple[str, str]]:
    """Yield neighbours of a split, joined as soon as they have `tokens` tokens, encoded apart."""
    [[(_, between)]] = encode_stories(tokenizer, [("", BETWEEN)], name)
    pending: dict[str, list[str]] = {split: [] for split in SPLITS}
    sizes = Counter[str]()
    keyed = (((split, story), story) for split, story in stories)
    for (split, story), ids in chain.from_iterable(encode_stories(tokenizer, keyed, name)):
        sizes[split] += len(between) * bool(pending[split]) + len(ids)
        pending[split].append(story)
        if sizes[split] >= tokens:
            yield split, BETWEEN.join(pending[split])
            pending[split], sizes[split] = [], 0
    yield from ((split, BETWEEN.join(parts)) for split, parts in pending.items() if parts)


def _after(stories: Iterable[tuple[str, str]], skip: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield what is left behind the first `skip` stories of each split."""
    left = dict(skip)
    for split, story in stories:
        if left[split]:
            left[split] -= 1
        else:
            yield split, story


class _Writer:
    """Writes the shards of one split, after those that are complete in the folder.

    A shard is written as `.tmp`, forced to disk, and renamed. It is counted and hashed as it is
    read back, whether this packing wrote it or another.
    """

    def __init__(
        self, folder: Path, split: str, tokenizer: Tokenizer, layout: Layout, size: int
    ) -> None:
        self._folder, self._split, self._size = folder, split, size
        self._end, self._pad = map(tokenizer.token_to_id, (END_OF_TEXT, PAD))
        self._context, self._left = layout.context, layout.pad_side == "left"
        self._tally = Tally(tokenizer, layout.context)
        self._file: BinaryIO | None = None
        self._tokens = 0  # of the shard that is not complete
        while (path := self._path(".bin")).is_file():
            self._tally.add(path)
        self.stories = self._tally.about.get("stories", 0)

    def add(self, stories: list[list[int]]) -> None:
        """Write the ids of stories, and complete every shard that they fill."""
        lines = [[*ids, self._end][: self._context] for ids in stories]
        ends = np.cumsum([len(line) for line in lines])
        start = before = 0
        while start < len(lines):
            stop = int(np.searchsorted(ends, before + self._size - self._tokens)) + 1
            stop = min(stop, len(lines))
            if self._file is None:
                self._file = self._path(".tmp").open("wb")
            self._file.write(self._laid_out(lines[start:stop]).tobytes())
            self._tokens += int(ends[stop - 1]) - before
            start, before = stop, int(ends[stop - 1])
            if self._tokens >= self._size:
                self._complete()
        self.stories += len(stories)

    def finish(self) -> dict[str, Any]:
        """Complete the last shard; return the counts of the split, as `meta.json` holds them.

        A line says how many stories are longer than a row.
        """
        if self._file is not None:
            self._complete()
        about = self._tally.about
        if cut := about.get("cut"):
            logging.getLogger(__name__).warning(
                f"{self._split}: {cut:,} of {about['rows']:,} stories are longer than a row "
                f"of {self._context} tokens, and their ends are left out"
            )
        return about

    def close(self) -> None:
        """Close the file of a shard that is not complete."""
        if self._file is not None:
            self._file.close()

    def _laid_out(self, lines: list[list[int]]) -> np.ndarray:
        """Return the ids of stories: `(tokens,)` when packed, `(stories, context)` in rows."""
        tokens = np.fromiter(chain.from_iterable(lines), DTYPE)
        if self._context is None:
            return tokens
        columns = np.arange(self._context)
        rows = np.full((len(lines), self._context), self._pad, DTYPE)
        lengths = np.array([len(line) for line in lines])
        rows[(columns[::-1] if self._left else columns) < lengths[:, None]] = tokens
        return rows

    def _complete(self) -> None:
        self.close()
        self._file, self._tokens = None, 0
        path = self._path(".bin")
        sync(self._path(".tmp"))
        self._path(".tmp").rename(path)
        sync(self._folder)
        self._tally.add(path)

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._split}-{len(self._tally.shards):05d}{suffix}"
