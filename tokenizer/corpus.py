"""Where stories come from: one call for every source.

    toy, toy:20000, toy:20000:7     the built-in generator: number of stories, seed
    stories.txt, .jsonl, .parquet   a file: stories ended by <|endoftext|>, or a field "text";
                                    plain text without <|endoftext|>, such as a book, is read as
                                    passages: whole paragraphs, 500 letters or more together
    folder                          with train.* and valid.* (or validation.*), or with files of one
                                    kind, also in folders in it; or packed data, which is decoded
    hub:roneneldan/TinyStories      a dataset of the hub, or hub:FOLDER of the same shape
    hub:HuggingFaceFW/fineweb-edu:sample-10BT        one of its subsets

A source that sets stories aside for validation is used as it is divided, but a story that is in
both splits is held out: `train` leaves it out. Any other sets none aside: it is either split,
whole, unless a `valid_fraction` of it is asked for. A text is never changed; an error in a file
names the place.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tokenizer.bpe import END_OF_TEXT, CorpusError
from tokenizer.data import BLOCK, SPLITS, PackedData
from tokenizer.toy import digest, held_out, toy_stories

TOY_STORIES = 20_000
NAMES = {"train": ("train",), "valid": ("valid", "validation")}
SEPARATOR = END_OF_TEXT.encode()
LONGEST_STORY = 64 << 20  # bytes without a separator after which a file is not a list of stories
PASSAGE = 500  # letters of plain text, after which a passage ends with the first blank line,
LONGEST_PASSAGE = 2000  # with the first line,
LONGEST_LINE = 16_000  # or within a line


@dataclass(frozen=True)
class Texts:
    """A part of a source: how to read its texts, and how to guess their number."""

    read: Callable[[], Iterator[str]]
    count: Callable[[], int | None]

    def stories(self) -> Iterator[str]:
        """Yield the stories without the white space around them; empty ones are left out."""
        pieces = (piece.strip() for text in self.read() for piece in text.split(END_OF_TEXT))
        return (story for story in pieces if story)


@dataclass(frozen=True)
class Corpus:
    """The stories of one split of a source. Each iteration reads them again, from the first.

    `share` is the share of the part that stands in `valid`, None when the source is divided;
    `limit` is how many stories to stop after.
    """

    source: str
    split: str
    part: Texts
    share: float | None = None
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the stories, as `Texts.stories` does."""
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
    if valid_fraction is not None and parts.get("valid") in (None, parts.get("train")):
        corpus = Corpus(source, split, parts["train"], valid_fraction, limit)
    elif split in parts:
        corpus = Corpus(source, split, parts[split], None, limit)
    else:
        raise CorpusError(f"{source}: has no {split} split; choose a source that has one")

    first = len(list(islice(corpus, 2)))
    if first < 2:
        held = ("no story", "one story only")[first]
        needed = "at least two stories are needed"
        if corpus.share is None:
            raise CorpusError(f"{source}: holds {held}; {needed}")
        raise CorpusError(
            f"{source}: holds {held} for {split}; {needed}: a fraction of {corpus.share:g} is held "
            f"out, so give more stories, or a directory with {split}.*"
        )
    return corpus


def _parts(source: str, field: str, stream: bool) -> dict[str, Texts]:
    """Map the splits that a source has to its parts; what is not divided is both."""
    path = Path(source)
    if source.partition(":")[0] == "toy":
        return _toy_parts(source)
    if source.startswith("hub:"):
        parts = _hub_parts(source, field, stream)
    elif path.is_dir():
        parts = _directory_parts(path, field)
    elif not path.is_file():
        raise CorpusError(
            f"{source}: no such file or directory; a source is toy, a {_endings()} file,"
            " a directory with train.* and valid.*, or hub:NAME"
        )
    elif path.suffix not in READERS:
        raise CorpusError(f"{source}: unknown kind of file; the name must end in {_endings()}")
    else:
        parts = dict.fromkeys(SPLITS, _files_part([path], field))

    train, valid = parts.get("train"), parts.get("valid")
    if train is None or valid is None or train == valid:
        return parts

    def read() -> Iterator[str]:
        held = set(map(digest, valid.stories()))
        return (story for story in train.stories() if digest(story) not in held)

    return parts | {"train": Texts(read, train.count)}


def _toy_parts(source: str) -> dict[str, Texts]:
    """Read `toy:STORIES:SEED`; for validation there are a twentieth as many, at least 2."""
    match = re.fullmatch(r"toy(?::(\d+)(?::(\d+))?)?", source)
    stories = int(match[1] or TOY_STORIES) if match else 0
    if match is None or stories < 2:
        raise CorpusError(f"{source}: must be toy, toy:STORIES or toy:STORIES:SEED, STORIES >= 2")
    seed = int(match[2] or 0)
    return {
        split: Texts(partial(toy_stories, n, seed, split), partial(int, n))
        for split, n in (("train", stories), ("valid", max(2, stories // 20)))
    }


def _directory_parts(folder: Path, field: str) -> dict[str, Texts]:
    """Read packed data, `train.txt`, or parts such as `train-00000-of-00004.parquet` in order.

    Where no name tells of a split, all files of the folder and the folders in it are one part.
    """
    if PackedData.stands_in(folder):
        data = PackedData(folder)
        return {
            split: Texts(
                partial(data.stories, split), partial(int, data.meta["splits"][split]["stories"])
            )
            for split in SPLITS
        }
    parts: dict[str, Texts] = {}
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
    return dict.fromkeys(SPLITS, _files_part(_one_kind(folder, "train", files), field))


def _one_kind(folder: Path, split: str, files: list[Path]) -> list[Path]:
    if len({file.suffix for file in files}) > 1:
        seen = ", ".join(file.name for file in files[:8]) + (", ..." if len(files) > 8 else "")
        raise CorpusError(f"{folder}: several kinds of file for {split} ({seen}); keep one")
    return files


def _files_part(files: list[Path], field: str) -> Texts:
    return Texts(
        lambda: chain.from_iterable(READERS[file.suffix](file, field) for file in files),
        lambda: sum(map(_count_texts, files)),
    )


def _read_text(path: Path, field: str) -> Iterator[str]:
    """Yield what `<|endoftext|>` divides in a `.txt` file, or passages where it has none."""
    with path.open("rb") as file:
        start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0  # a mark some editors put first
        file.seek(start)
        if not _has_separator(path):
            yield from _passages(path, file, start)
            return
        pending = b""
        while len(pending) <= LONGEST_STORY and (block := file.read(BLOCK)):
            *whole, pending = (pending + block).split(SEPARATOR)
            for story in whole:
                yield _decode(story, path, start)
                start += len(story) + len(SEPARATOR)
    if len(pending) > LONGEST_STORY:  # and maybe cut within a letter
        raise CorpusError(
            f"{path}: no separator after byte {start}; end each story with a line {END_OF_TEXT}"
        )
    yield _decode(pending, path, start)


def _has_separator(path: Path) -> bool:
    with path.open("rb") as file:
        end = b""
        while block := file.read(BLOCK):
            if SEPARATOR in end + block:
                return True
            end = (end + block)[1 - len(SEPARATOR) :]
    return False


def _passages(path: Path, lines: Iterable[bytes], start: int) -> Iterator[str]:
    """Yield whole paragraphs of plain text, `PASSAGE` letters or more; long ones are cut."""
    _say_plain(path)
    passage = ""
    for line in lines:
        text = _decode(line, path, start)
        start += len(line)
        for i in range(0, len(text), LONGEST_LINE):
            part = text[i : i + LONGEST_LINE]
            passage += part
            if len(passage) >= (PASSAGE if part.isspace() else LONGEST_PASSAGE):
                yield passage
                passage = ""
    yield passage


@cache
def _say_plain(path: Path) -> None:
    """Log, once a file, how a text without separators is divided."""
    logging.getLogger(__name__).warning(
        "%s: plain text without %s; read as passages of %d letters or more, cut at blank lines",
        path, END_OF_TEXT, PASSAGE,
    )  # fmt: skip


def _read_jsonl(path: Path, field: str) -> Iterator[str]:
    """Yield a field of every line of a `.jsonl` file."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            content = _decode(line, path, start)
            start += len(line)
            if not content.strip():
                continue
            about: Any = None
            try:
                about = json.loads(content)
                text = about[field]
                text.encode()  # half of a surrogate pair is no text
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if isinstance(about, dict):
                    _check_column(f"{path}: line {number}", list(about), field)
                raise CorpusError(
                    f"{path}: line {number} is not an object with a {field}: "
                    f'{{"{field}": "Once ..."}}'
                ) from error
            yield text


def _decode(content: bytes, path: Path, start: int) -> str:
    """Decode a part of the file that begins at byte `start`, or say where it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        offset = start + error.start
        with path.open("rb") as file:
            line = file.read(offset).count(b"\n") + 1
        raise CorpusError(
            f"{path}: byte {offset} (line {line}) is 0x{content[error.start]:02x}, not valid UTF-8;"
            " convert the file to UTF-8"
        ) from error


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_column(str(path), file.schema_arrow.names, field)
            yield from _column(str(path), file.iter_batches(columns=[field]))
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{path}: not a Parquet file ({reason}); write it again") from error


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_text,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _endings(between: str = ", ") -> str:
    return between.join(READERS)


def _count_texts(path: Path) -> int:
    """Return about how many texts a file holds, without reading them."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_metadata(path).num_rows
    mark = SEPARATOR if path.suffix == ".txt" else b"\n"
    with path.open("rb") as file:
        count = sum(block.count(mark) for block in iter(lambda: file.read(BLOCK), b""))
    return count or path.stat().st_size // PASSAGE


def _hub_parts(source: str, field: str, stream: bool) -> dict[str, Texts]:
    """Load a dataset of the hub, or a local directory of the same shape."""
    import datasets

    name, _, subset = source.removeprefix("hub:").partition(":")
    try:
        loaded = datasets.load_dataset(name, subset or None, streaming=stream)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise CorpusError(
            f"{source}: cannot be loaded ({reason}); check the name and the network"
        ) from error
    except ValueError as error:
        known = datasets.get_dataset_config_names(name)
        if subset in known:
            raise
        raise CorpusError(f"{source}: no such subset; allowed: {', '.join(known)}") from error
    splits: dict[str, Any] = {str(split): rows for split, rows in loaded.items()}

    def part(split: str, rows: Any) -> Texts:
        if rows.column_names is not None:  # a stream may not know before it is read
            _check_column(f"{source}: split {split}", rows.column_names, field)
        column = rows.select_columns([field]).with_format("arrow")
        return Texts(
            lambda: _column(source, column.iter(batch_size=1000)), partial(_count_rows, rows)
        )

    parts = {
        split: part(name, splits[name])
        for split, names in NAMES.items()
        for name in names
        if name in splits
    }
    if not parts:
        raise CorpusError(f"{source}: has no train or validation split, only {', '.join(splits)}")
    return parts


def _count_rows(rows: Any) -> int | None:
    """Return how many rows a split of a dataset has, if the dataset says so."""
    if hasattr(rows, "__len__"):
        return len(rows)
    split = (rows.info.splits or {}).get(str(rows.split))
    return split.num_examples if split else None


def _check_column(where: str, names: list[str], field: str) -> None:
    if field not in names:
        raise CorpusError(
            f"{where}: no column {field}, only {', '.join(names)}; rename the stories' column, or"
            f" tell the tokenizer its name: --field {names[0] if len(names) == 1 else 'NAME'}"
        )


def _column(where: str, batches: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of batches of one Arrow column."""
    row = 0
    try:
        for value in chain.from_iterable(batch.column(0) for batch in batches):
            row += 1
            text = value.as_py()
            if not isinstance(text, str):
                raise CorpusError(
                    f"{where}: row {row} holds {text!r}, not a text; drop it or fill it in"
                )
            yield text
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where}: row {row} is not valid UTF-8; convert it to UTF-8") from error
    except (OSError, KeyError) as error:  # KeyError: a stream's file without the column
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"{where}: row {row + 1} cannot be read ({reason}); start again"
        ) from error
