"""Where stories come from: one call for every source.

    toy, toy:20000, toy:20000:7      the built-in generator: number of stories, seed
    stories.txt, .jsonl, .parquet    a local file
    folder                           a folder with train.* and valid.* (or validation.*), or with
                                     files of one kind, also in folders in it
                                     or packed data, which is decoded
    hub:roneneldan/TinyStories       a dataset of the hub, or hub:folder of the same shape
    hub:HuggingFaceFW/fineweb-edu:sample-10BT                 one of its subsets

A source that sets stories aside for validation is used as it is divided, but a story that is in
both splits is held out: `train` leaves it out. Any other sets none aside: it is either split,
whole, unless a `valid_fraction` of it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

from tokenizer.bpe import END_OF_TEXT, CorpusError
from tokenizer.data import PackedData
from tokenizer.readers import READERS, count_hub, count_texts, load_hub, read_hub
from tokenizer.splits import SPLITS, digest, held_out
from tokenizer.toy import toy_stories

TOY_STORIES = 20_000
NAMES = {"train": ("train",), "valid": ("valid", "validation")}


@dataclass(frozen=True)
class Part:
    """A part of a source: how to read its texts, and how to guess their number."""

    read: Callable[[], Iterator[str]]
    count: Callable[[], int | None]

    def stories(self) -> Iterator[str]:
        """Yield the stories without the white space around them; empty ones are left out."""
        pieces = (piece.strip() for text in self.read() for piece in text.split(END_OF_TEXT))
        return (story for story in pieces if story)


@dataclass(frozen=True)
class Corpus:
    """The stories of one split. Each iteration reads them again, from the first.

    Attributes:
        source: What the user named.
        split: `train` or `valid`.
        part: The part of the source they are read from.
        share: The share of that part that stands in `valid`; None when the source is divided.
        limit: How many stories to stop after; None reads all.
    """

    source: str
    split: str
    part: Part
    share: float | None = None
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the stories, as `Part.stories` does."""
        return islice((story for story in self.whole() if self.keeps(story)), self.limit)

    def whole(self) -> Iterator[str]:
        """Yield the stories of the whole part, those of the other split included."""
        return self.part.stories()

    def expected(self) -> int | None:
        """Return about how many stories there are, without reading them; None if none can say."""
        count = self.part.count()
        if count is None:
            return self.limit
        if self.share is not None:
            count = round(count * (self.share if self.split == "valid" else 1 - self.share))
        return count if self.limit is None else min(count, self.limit)

    def keeps(self, story: str) -> bool:
        """Say whether a story of the part is one of this split."""
        return self.share is None or held_out(story, self.share) == (self.split == "valid")


def open_corpus(
    source: str,
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
        valid_fraction: The share to set aside for `valid` when the source sets none aside itself.
        limit: Stop after so many stories.
        field: Name of the stories' column, where the source has columns.
        stream: Whether a dataset of the hub is read over the network as it is used, rather than
            downloaded first, whole.

    Raises:
        CorpusError: The source is missing, is of no known kind, or holds fewer than two stories.
    """
    if split not in SPLITS:
        raise CorpusError(f"split {split}: must be {' or '.join(SPLITS)}")
    if limit is not None and limit < 2:
        raise CorpusError(f"--limit {limit}: must be 2 or more")
    if valid_fraction is not None and not 0 < valid_fraction < 1:
        raise CorpusError(f"--valid-fraction {valid_fraction}: must lie between 0 and 1")

    parts = _parts(source, field, stream)
    undivided = parts.get("valid") in (None, parts.get("train"))
    if undivided and valid_fraction is not None:
        corpus = Corpus(source, split, parts["train"], valid_fraction, limit)
    elif split in parts:
        corpus = Corpus(source, split, parts[split], None, limit)
    else:
        raise CorpusError(f"{source}: has no {split} split; choose a source that has one")

    found = len(list(islice(corpus, 2)))
    if found < 2:
        held = ("no story", "one story only")[found]
        needed = "at least two stories are needed"
        if corpus.share is None:
            raise CorpusError(f"{source}: holds {held}; {needed}")
        raise CorpusError(
            f"{source}: holds {held} for {split}; {needed}: a fraction of {corpus.share:g} is held "
            f"out, so give more stories, or a directory with {split}.*"
        )
    return corpus


def _parts(source: str, field: str, stream: bool) -> dict[str, Part]:
    """Map the splits that a source has to its parts; what is not divided is both."""
    if source.partition(":")[0] == "toy":
        return _toy_parts(source)
    if source.startswith("hub:"):
        return _apart(_hub_parts(source, field, stream))
    path = Path(source)
    if path.is_dir():
        return _apart(_directory_parts(path, field))
    if not path.is_file():
        raise CorpusError(
            f"{source}: no such file or directory; a source is toy, a {_endings()} file,"
            " a directory with train.* and valid.*, or hub:NAME"
        )
    if path.suffix not in READERS:
        raise CorpusError(f"{source}: unknown kind of file; the name must end in {_endings()}")
    part = _files_part([path], field)
    return {"train": part, "valid": part}


def _apart(parts: dict[str, Part]) -> dict[str, Part]:
    """Leave out of `train` what `valid` holds too, where a source is divided."""
    train, valid = parts.get("train"), parts.get("valid")
    if train is None or valid is None or train == valid:
        return parts

    def read() -> Iterator[str]:
        held = set(map(digest, valid.stories()))
        return (story for story in train.stories() if digest(story) not in held)

    return parts | {"train": Part(read, train.count)}


def _toy_parts(source: str) -> dict[str, Part]:
    """Read `toy:STORIES:SEED`; for validation there are a twentieth as many, at least 2."""
    match = re.fullmatch(r"toy(?::(\d+)(?::(\d+))?)?", source)
    stories = int(match[1] or TOY_STORIES) if match else 0
    if match is None or stories < 2:
        raise CorpusError(f"{source}: must be toy, toy:STORIES or toy:STORIES:SEED, STORIES >= 2")
    counts = {"train": stories, "valid": max(2, stories // 20)}
    seed = int(match[2] or 0)
    return {
        split: Part(partial(toy_stories, n, seed, split), partial(int, n))
        for split, n in counts.items()
    }


def _hub_parts(source: str, field: str, stream: bool) -> dict[str, Part]:
    name, _, subset = source.removeprefix("hub:").partition(":")
    found = load_hub(name, subset or None, field, stream)
    parts = {
        split: Part(partial(read_hub, name, found[known], field), partial(count_hub, found[known]))
        for split, names in NAMES.items()
        for known in names
        if known in found
    }
    if not parts:
        raise CorpusError(f"{source}: has no train or validation split, only {', '.join(found)}")
    return parts


def _directory_parts(folder: Path, field: str) -> dict[str, Part]:
    """Find `train.txt`, or parts such as `train-00000-of-00004.parquet`, in their order.

    Where no name tells of a split, all files of the folder and the folders in it are one part.
    """
    if PackedData.stands_in(folder):
        data = PackedData(folder)
        return {
            split: Part(partial(data.stories, split), partial(_count_packed, data, split))
            for split in SPLITS
        }
    parts: dict[str, Part] = {}
    for split, names in NAMES.items():
        pattern = re.compile(rf"({'|'.join(names)})([-.].*)?({_endings('|')})")
        files = sorted(file for file in folder.iterdir() if pattern.fullmatch(file.name))
        if files:
            parts[split] = _files_part(_one_kind(folder, split, files), field)
    if parts:
        return parts
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in READERS and not file.name.startswith(".") and file.is_file()
    )
    if not files:
        raise CorpusError(f"{folder}: no train.* or valid.* in it that ends in {_endings()}")
    part = _files_part(_one_kind(folder, "train", files), field)
    return {"train": part, "valid": part}


def _count_packed(data: PackedData, split: str) -> int:
    return data.meta["splits"][split]["stories"]


def _one_kind(folder: Path, split: str, files: list[Path]) -> list[Path]:
    if len({file.suffix for file in files}) > 1:
        seen = ", ".join(file.name for file in files[:8]) + (", ..." if len(files) > 8 else "")
        raise CorpusError(f"{folder}: several kinds of file for {split} ({seen}); keep one")
    return files


def _files_part(files: list[Path], field: str) -> Part:
    return Part(
        lambda: chain.from_iterable(READERS[file.suffix](file, field) for file in files),
        lambda: sum(map(count_texts, files)),
    )


def _endings(between: str = ", ") -> str:
    return between.join(READERS)
