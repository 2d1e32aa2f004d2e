"""Stories to token files: encoded once, on all cores, then mapped into memory by training.

    python -m tokenizer pack toy --tokenizer tokenizer.json --out data
    python -m tokenizer pack parts/ --tokenizer tokenizer.json --out data --shards 100000000

Layout `packed`: all stories in a line, each followed by end-of-text. Layout `rows`: one story a
row, with its end-of-text, cut at the context and padded on one side. Either stands in one file a
split, or in shards, which a corpus larger than memory is streamed into (`tokenizer/shards.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tokenizer.bpe import LARGEST, SPECIAL, load_tokenizer, tokenizer_hash
from tokenizer.corpus import Corpus, open_corpus
from tokenizer.data import SCHEMA, PackedData
from tokenizer.errors import CorpusError
from tokenizer.files import recover, whole_directory
from tokenizer.layout import Counts, Encoder, Layout
from tokenizer.shards import Partial, pack_shards, write_about
from tokenizer.splits import SPLITS

__all__ = ["VALID_FRACTION", "Layout", "pack"]

VALID_FRACTION = 0.05


def pack(
    source: str,
    tokenizer: str | Path,
    out: str | Path,
    layout: Layout | None = None,
    *,
    valid_fraction: float = VALID_FRACTION,
    limit: int | None = None,
    field: str = "text",
    force: bool = False,
    shards: int | None = None,
    workers: int | None = None,
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
        field: Name of the stories' column.
        force: Whether packed data that is already at `out` gives way.
        shards: Tokens in a file; given, the source is streamed, and a packing that was interrupted
            goes on after its last whole shard. One file a split when not given.
        workers: Processes that encode, when there are shards; all cores when not given.
        report: Called after every batch with the corpus, and how many stories are done.

    Raises:
        CorpusError: Something given cannot be used; the message names it.
    """
    out = Path(out)
    layout = layout or Layout()
    if shards is not None and shards < 1:
        raise CorpusError(f"--shards {shards}: tokens in a file, must be 1 or more")
    recover(out)
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
    }
    corpora = [
        open_corpus(
            source,
            split,
            valid_fraction=valid_fraction,
            limit=limit,
            field=field,
            stream=shards is not None,
        )
        for split in SPLITS
    ]
    # The fraction that divided the source, for whoever reads the source again; null where it is
    # divided already.
    written = meta | {"valid_fraction": corpora[0].share}
    if shards is not None:
        asked = {"shards": shards, "valid-fraction": valid_fraction, "limit": limit, "field": field}
        with Partial(out, meta | asked, force) as partial:
            pack_shards(corpora, loaded, layout, written, shards, partial, workers, report)
        return PackedData(out)
    with whole_directory(out, replace=force) as folder:
        splits = {
            corpus.split: _write_split(folder, corpus, Encoder(loaded, layout), layout, report)
            for corpus in corpora
        }
        write_about(folder, loaded, written | {"splits": splits})
    return PackedData(out)


def _write_split(
    folder: Path,
    corpus: Corpus,
    encoder: Encoder,
    layout: Layout,
    report: Callable[[Corpus, int], None] | None,
) -> dict[str, Any]:
    """Encode a split into a file, and count what went in."""
    counts = Counts()
    with (folder / f"{corpus.split}.bin").open("wb") as output:
        for laid in encoder(corpus):
            output.write(counts.add(laid))
            if report:
                report(corpus, counts.stories)
    return counts.plain(layout)


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
