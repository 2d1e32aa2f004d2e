"""One reader per kind of file: each yields the raw texts it finds, in order, in little memory.

A reader never changes a text. What is wrong with a file is told with the place where it is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizer.bpe import END_OF_TEXT, CorpusError

SEPARATOR = END_OF_TEXT.encode()
BLOCK = 1 << 20
COLUMN = "rename the stories' column, or tell the tokenizer its name: --field NAME"
LONGEST_STORY = 64 << 20  # bytes without a separator after which a file is not a list of stories


def read_text(path: Path, field: str = "text") -> Iterator[str]:
    """Yield what stands between the `<|endoftext|>` lines of a `.txt` file; it has no fields."""
    with path.open("rb") as file:
        start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0  # a mark some editors put first
        file.seek(start)
        pending, separated = b"", False
        while len(pending) <= LONGEST_STORY and (block := file.read(BLOCK)):
            *whole, pending = (pending + block).split(SEPARATOR)
            separated = separated or bool(whole)
            for story in whole:
                yield _decode(story, path, start)
                start += len(story) + len(SEPARATOR)
    endless = len(pending) > LONGEST_STORY  # and maybe cut within a letter
    text = "" if endless else _decode(pending, path, start)
    if endless or (text.strip() and not separated):
        raise CorpusError(
            f"{path}: no separator after byte {start}; end each story with a line {END_OF_TEXT}"
        )
    yield text


def read_jsonl(path: Path, field: str = "text") -> Iterator[str]:
    """Yield a field of every line of a `.jsonl` file."""
    with path.open("rb") as file:
        start = 0
        for number, line in enumerate(file, 1):
            content = _decode(line, path, start)
            start += len(line)
            if not content.strip():
                continue
            try:
                text = json.loads(content)[field]
                text.encode()  # half of a surrogate pair is no text
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorpusError(
                    f"{path}: line {number} is not an object with a {field}: "
                    f'{{"{field}": "Once ..."}}'
                ) from error
            yield text


def read_parquet(path: Path, field: str = "text") -> Iterator[str]:
    """Yield a column of a `.parquet` file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise CorpusError(f"{path}: no column {field}, only {', '.join(names)}; {COLUMN}")
            for batch in file.iter_batches(columns=[field]):
                for value in batch.column(0):
                    row += 1
                    yield _as_text(value.as_py(), path, row)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{path}: not a Parquet file ({reason}); write it again") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: row {row} is not valid UTF-8; convert it to UTF-8") from error


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


def count_texts(path: Path) -> int:
    """Return about how many texts a file holds, without reading them."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_metadata(path).num_rows
    mark = SEPARATOR if path.suffix == ".txt" else b"\n"
    with path.open("rb") as file:
        return sum(block.count(mark) for block in iter(lambda: file.read(BLOCK), b""))


def load_hub(
    name: str, subset: str | None = None, field: str = "text", stream: bool = False
) -> dict[str, Any]:
    """Load a dataset of the hub, or a local directory of the same shape: split name -> rows.

    Args:
        name: Of the dataset.
        subset: One of its configurations; its default one when not given.
        field: Name of the stories' column.
        stream: Whether its rows are read over the network as they are used.

    Raises:
        CorpusError: It cannot be found or reached, or has no such column.
    """
    import datasets

    where = f"hub:{name}" + (f":{subset}" if subset else "")
    try:
        found = datasets.load_dataset(name, subset, streaming=stream)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise CorpusError(
            f"{where}: cannot be loaded ({reason}); check the name and the network"
        ) from error
    except ValueError as error:
        known = datasets.get_dataset_config_names(name)
        if subset in known:
            raise
        raise CorpusError(f"{where}: no such subset; allowed: {', '.join(known)}") from error
    loaded: dict[str, Any] = {str(split): rows for split, rows in found.items()}
    for split, rows in loaded.items():
        names = rows.column_names  # None, in a stream that does not know before it is read
        if names is not None and field not in names:
            raise CorpusError(
                f"{where}: split {split} has no column {field}, only {', '.join(names)}; {COLUMN}"
            )
    return loaded


def read_hub(name: str, rows: Any, field: str = "text") -> Iterator[str]:
    """Yield a column of one split that `load_hub` returned.

    Raises:
        CorpusError: The network fails for long, or a row has no text.
    """
    number = 0
    try:
        for batch in rows.select_columns([field]).iter(batch_size=1000):
            for text in batch[field]:
                number += 1
                yield _as_text(text, f"hub:{name}", number)
    except (OSError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"hub:{name}: row {number + 1} cannot be read ({reason}); start again"
        ) from error


def count_hub(rows: Any) -> int | None:
    """Return how many rows a split has, if the dataset says so."""
    if hasattr(rows, "__len__"):
        return len(rows)
    split = (rows.info.splits or {}).get(str(rows.split))
    return split.num_examples if split else None


def _as_text(value: object, where: object, row: int) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{where}: row {row} holds {value!r}, not a text; drop it or fill it in")
    return value


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
