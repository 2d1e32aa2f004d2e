"""Where stories come from: one call for every source.

    toy, toy:20000, toy:20000:7     the built-in generator: number of stories, seed
    stories.txt                     stories ended by <|endoftext|>; plain text without it, such as a
                                    book, is read by paragraphs, or by lines if none inside is blank
    *.jsonl, .json, .parquet, .csv  a field "text", or --field
    folder                          with files or folders that are named after train and valid (or
                                    validation, val, dev), a test split is not read; or with files
                                    of one kind, also in folders in it; or packed data
    hub:roneneldan/TinyStories      a dataset of the hub, or hub:FOLDER of the same shape; what of
                                    its splits is not read is said
    hub:HuggingFaceFW/fineweb-edu:sample-10BT        one of its subsets

A source that sets stories aside for validation is used as it is divided, but a story that is in
both splits is held out: `train` leaves it out. Any other sets none aside: all of it is `train`,
unless a `valid_fraction` of it is asked for. A text is never changed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tokenizer.bpe import END_OF_TEXT, CorpusError, reason
from tokenizer.data import PackedData
from tokenizer.files import SPLITS
from tokenizer.readers import ROWS, check_kind, read_batches, read_file
from tokenizer.splits import (
    ENDINGS,
    SPLIT_WORDS,
    digest,
    divide_folder,
    held_out,
    list_files,
    refuse_missing,
    say_once,
    text_files,
)
from tokenizer.toy import toy_stories

TOY_STORIES = 20_000
LATEST = datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()
"""Times of files may lie beyond the calendar."""
CACHED = ("datasets.load", "datasets.packaged_modules.cache.cache")
"""Loggers that say which copy of a dataset is read, where the hub is out of reach."""
LARGE = 1 << 26
"""Bytes of a file up to which it is hashed whole."""
PIECES, PIECE = 64, 1 << 16
"""Of a larger one: how many stretches are hashed, and of how many bytes."""
Read = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Corpus:
    """The stories of one split of a source. Each iteration reads them again, from the first.

    `fraction` of what is read stands in `valid`; it is None where all of it is of this split.
    `limit` is how many stories to stop after. Stories are without the white space around them,
    unless `bare` is false.
    """

    source: str
    split: str
    read: Read
    fraction: float | None = None
    limit: int | None = None
    bare: bool = True

    def __iter__(self) -> Iterator[str]:
        """Yield the stories of the split, as `whole` does."""
        return islice(filter(self.keeps, self.whole()), self.limit)

    def whole(self) -> Iterator[str]:
        """Yield all stories, those of both splits; where rows have an end twice, that is said."""
        for text in self.read():
            story = text.strip()
            if self.bare and story.endswith(END_OF_TEXT):  # in a .txt file it divides stories
                say_once(
                    f"{self.source}: a row ends with {END_OF_TEXT}, which is read as letters, "
                    "before the end that each story gets; take it out of all rows"
                )
            if story:
                yield story if self.bare else text

    def keeps(self, story: str) -> bool:
        """Say whether a story is one of this split."""
        in_valid = self.split == "valid"
        return self.fraction is None or held_out(story.strip(), self.fraction) == in_valid


def open_corpus(
    source: str | os.PathLike[str],
    split: str,
    *,
    valid_fraction: float | None = None,
    limit: int | None = None,
    field: str = "text",
    stream: bool = False,
) -> Corpus:
    """Open one split of a source, and look at its first stories.

    Args:
        source: See the top of this file.
        split: `train` or `valid`.
        valid_fraction: Set aside for `valid` when the source sets none aside itself.
        limit: Stop after so many stories.
        field: Name of the stories' column, where the source has columns.
        stream: Whether a dataset of the hub is read over the network as it is used, rather than
            downloaded first, whole.

    Raises:
        CorpusError: The source is missing, is of no known kind, has no such split, or holds fewer
            than two stories (packed data: none, as one may be many that were joined).
    """
    if split not in SPLITS:
        raise CorpusError(f"split {split}: must be {' or '.join(SPLITS)}")
    if limit is not None and limit < 2:
        raise CorpusError(f"--limit {limit}: must be 2 or more")
    if valid_fraction is not None and not 0 < valid_fraction < 1:
        raise CorpusError(f"--valid-fraction {valid_fraction}: must lie between 0 and 1")
    source = os.fspath(source)
    parts = _parts(source, field, stream)
    if valid_fraction is not None and "train" in parts and "valid" not in parts:
        corpus = Corpus(source, split, parts["train"], valid_fraction, limit)
    elif split in parts:
        corpus = Corpus(source, split, parts[split], None, limit)
    else:
        divided = ", or give a valid_fraction, such as 0.05" * ("train" in parts)
        raise CorpusError(f"{source}: has no {split} split; choose a source that has one{divided}")
    first = len(list(islice(corpus, 2)))
    if first < (1 if PackedData.stands_in(source) else 2):
        held = f"{source}: holds {('no story', 'one story only')[first]}"
        needed = "at least two stories are needed"
        if corpus.fraction is None:
            raise CorpusError(f"{held}; {needed}")
        raise CorpusError(
            f"{held} for {split}; {needed}: a fraction of {corpus.fraction:g} is held "
            f"out, so give more stories, or a directory with {split}.*"
        )
    return corpus


def describe_files(source: str) -> str | None:
    """Return how many files a source has, their size, and when the last was written; or nothing.

    Of a folder the files count that are read; of `hub:FOLDER` and packed data all do. Of a dataset
    of the hub its revision is returned, if the network tells it.
    """
    kind, _, name = source.partition(":")
    root = Path(name.partition(":")[0] if kind == "hub" else source)
    paths = [root]
    if root.is_dir():
        all_count = kind == "hub" or PackedData.stands_in(root)
        paths = chain.from_iterable(list_files(root)) if all_count else text_files(root)
    found = [path for path in paths if path.is_file()]
    if kind == "hub" and not found:
        return _revision(str(root))
    if not found or kind == "toy":
        return None
    stats = [path.stat() for path in found]
    written = min(max(stat.st_mtime for stat in stats), LATEST)
    changed = datetime.fromtimestamp(written, timezone.utc)
    size = sum(stat.st_size for stat in stats)
    return f"{len(found):,} of {size:,} bytes, written until {changed.isoformat(' ')}"


def hash_sources(source: str) -> dict[str, str]:
    """Return the split of each file that is read of a source, by the hash of what the file holds.

    What is not divided is `train`. Packed data have the files of what was packed. The generator and
    datasets of the hub have none.
    """
    kind, _, name = source.partition(":")
    path = Path(name.partition(":")[0] if kind == "hub" else source)
    if kind == "toy":
        return {}
    if kind != "hub" and PackedData.stands_in(path):
        return PackedData(path).meta.get("source_files", {})
    divided = {split: text_files(path, split) for split in SPLITS}
    files = {"train": [path]} if path.is_file() else divided
    return {hash_content(file)[:16]: split for split in files for file in files[split]}


def hash_content(file: Path) -> str:
    """Return the SHA-256 of a file; of a large one that of its size and of pieces of it."""
    about = file.stat()
    return _hash_content(file, about.st_size, about.st_mtime_ns)


@cache
def _hash_content(file: Path, size: int, changed_ns: int) -> str:
    """Hash a file, again where its size or time of change is another."""
    with file.open("rb") as opened:
        if size <= LARGE:
            return hashlib.sha256(opened.read()).hexdigest()
        digest = hashlib.sha256(str(size).encode())
        for number in range(PIECES):
            opened.seek((size - PIECE) * number // (PIECES - 1))
            digest.update(opened.read(PIECE))
    return digest.hexdigest()


def _revision(name: str) -> str | None:
    from huggingface_hub import HfApi

    try:
        return f"of revision {HfApi().dataset_info(name).sha}"
    except Exception:  # of the name, or of the HTTP library; it is said where it is read
        return None


def _stories(read: Read) -> Iterator[str]:
    return filter(None, (text.strip() for text in read()))


def _parts(source: str, field: str, stream: bool) -> dict[str, Read]:
    """Map the splits that a source has to what reads them; what is not divided is `train`."""
    path = Path(source)
    if source.partition(":")[0] == "toy":
        return _toy_parts(source)
    if source.startswith("hub:"):
        parts = _hub_parts(source, field, stream)
    elif path.is_dir() and PackedData.stands_in(path):
        data = PackedData(path)
        _say_cut(data)
        parts = {split: partial(data.stories, split) for split in SPLITS}
    elif path.is_dir():
        parts = {split: _files_part(files, field) for split, files in divide_folder(path).items()}
    elif not path.is_file():
        raise CorpusError(
            f"{source}: no such file or directory; a source is toy, a file ending in "
            f"{', '.join(ENDINGS)}, a directory with train.* and valid.*, or hub:NAME"
        )
    else:
        parts = {"train": _files_part([path], field)}
    if not parts.keys() >= {*SPLITS}:
        return parts
    train, valid = parts["train"], parts["valid"]

    def read() -> Iterator[str]:
        held, kept, left_out = set(map(digest, _stories(valid))), 0, 0
        for story in _stories(train):
            if digest(story) in held:
                left_out += 1
            else:
                kept += 1
                yield story
        if left_out and not kept:
            raise CorpusError(
                f"{source}: all {left_out:,} stories of train are also in valid, which holds them "
                "out; give train other stories, or leave valid out"
            )
        if left_out:
            say_once(
                f"{source}: {left_out:,} stories of train are also in valid, and are left out of "
                "train"
            )

    return parts | {"train": read}


def _say_cut(data: PackedData) -> None:
    """Say which stories of packed data are no whole ones."""
    counts = [data.meta["splits"][split] for split in SPLITS]
    if cut := sum(about.get("cut", 0) for about in counts):
        say_once(
            f"{data.path}: {cut:,} of its {sum(about['rows'] for about in counts):,} stories were "
            f"cut at {data.meta['context']} tokens when they were packed, and are read without "
            "their ends"
        )


def _toy_parts(source: str) -> dict[str, Read]:
    """Read `toy:STORIES:SEED`; for validation there are a twentieth as many, at least 2."""
    match = re.fullmatch(r"toy(?::(\d+)(?::(\d+))?)?", source)
    stories = int(match[1] or TOY_STORIES) if match else 0
    if match is None or stories < 2:
        raise CorpusError(f"{source}: must be toy, toy:STORIES or toy:STORIES:SEED, STORIES >= 2")
    if Path(source).exists():
        say_once(f"{source}: the built-in generator, not the path of that name: that is ./{source}")
    counts = {"train": stories, "valid": max(2, stories // 20)}
    seed = int(match[2] or 0)
    return {split: partial(toy_stories, n, seed, split) for split, n in counts.items()}


def _files_part(files: list[Path], field: str) -> Read:
    """What reads files of one kind, one after the other.

    Raises:
        CorpusError: They are of several kinds, or of one that is not known.
    """
    if len({check_kind(file) for file in files}) > 1:
        seen = ", ".join(file.name for file in files[:8]) + (", ..." if len(files) > 8 else "")
        raise CorpusError(f"{files[0].parent}: several kinds of file ({seen}); keep one")
    about = Path(os.path.commonpath(files))  # the folder of several, or the one file
    return lambda: chain.from_iterable(read_file(file, field, about) for file in files)


def _hub_parts(source: str, field: str, stream: bool) -> dict[str, Read]:
    """Load a dataset of the hub, or a local directory of the same shape."""
    name, _, subset = source.removeprefix("hub:").partition(":")
    here = Path(name).is_dir()
    # What datasets keeps of a folder is told apart by times and names, not by what files hold.
    advice = "; or give the folder without hub:" * here
    loaded = _load(source, advice, name, subset or None, streaming=stream or here)
    if here:
        refuse_missing(list_files(Path(name))[0])
    splits: dict[str, Any] = {str(split): rows for split, rows in loaded.items()}
    chosen = {
        split: name
        for split in SPLITS
        for name in reversed(splits)  # of two the first counts
        if name.casefold().replace("_", "") in SPLIT_WORDS[split]
    }
    if not chosen:
        raise CorpusError(f"{source}: has no train or validation split, only {', '.join(splits)}")
    if unread := [name for name in splits if name not in chosen.values()]:
        say_once(f"{source}: of its splits not read: {', '.join(unread)}{advice}")
    return {
        split: partial(_column, f"{source}: split {name}", advice, splits[name], field)
        for split, name in chosen.items()
    }


def _load(about: str, advice: str, *arguments: Any, **options: Any) -> Any:
    """Open a dataset.

    Raises:
        CorpusError: It cannot be.
    """
    from datasets import load_dataset

    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its errors are raised as well
    for logger in CACHED:
        logging.getLogger(logger).setLevel(logging.WARNING)
    try:
        return load_dataset(*arguments, **options)
    except Exception as error:  # of datasets, of files, or of the HTTP library
        raise CorpusError(
            f"{about}: cannot be loaded ({reason(error)}); check the name, and the network for the "
            f"hub{advice}"
        ) from error


def _column(about: str, advice: str, rows: Any, field: str) -> Iterator[str]:
    """Yield the texts of one column of a dataset; `advice` ends what is refused of it."""
    lines = rows.info.builder_name == "text"
    if lines:
        say_once(f"{about}: plain text, each line is a story")
    if field in (rows.column_names or ()):  # known before they are read: the others stay unread
        rows = rows.select_columns([field])
    stored = type((rows.features or {}).get(field)).__name__
    batches = rows.with_format("arrow").iter(batch_size=ROWS)
    try:
        for text in read_batches(about, batches, field, stored):
            if lines and END_OF_TEXT in text:
                break
            yield text
        else:
            return
    except CorpusError as error:
        raise CorpusError(f"{error}{advice}") from error
    raise CorpusError(
        f"{about}: plain text whose stories end with {END_OF_TEXT}, of which datasets makes lines; "
        "give the folder of its files, without hub:"
    )
