"""One reader per kind of file: each yields the raw texts it finds, in order, in little memory.

A reader never changes a text. What is wrong with a file is told with the place where it is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizer.bpe import END_OF_TEXT
from tokenizer.errors import CorpusError

SEPARATOR = END_OF_TEXT.encode()
BLOCK = 1 << 20
LONGEST_STORY = 64 << 20  # bytes without a separator after which a file is not a list of stories


def read_text(path: Path) -> Iterator[str]:
    """Yield what stands between the `<|endoftext|>` lines of a `.txt` file."""
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
    text = _decode(pending, path, start)
    if len(pending) > LONGEST_STORY or (text.strip() and not separated):
        raise CorpusError(
            f"{path}: no separator after byte {start}; end each story with a line {END_OF_TEXT}"
        )
    yield text


def read_jsonl(path: Path) -> Iterator[str]:
    """Yield the field `text` of every line of a `.jsonl` file."""
    with path.open("rb") as file:
        start = 0
        for number, line in enumerate(file, 1):
            content = _decode(line, path, start)
            start += len(line)
            if not content.strip():
                continue
            try:
                text = json.loads(content)["text"]
                text.encode()  # half of a surrogate pair is no text
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorpusError(
                    f'{path}: line {number} is not an object with a text: {{"text": "Once ..."}}'
                ) from error
            yield text


def read_parquet(path: Path) -> Iterator[str]:
    """Yield the column `text` of a `.parquet` file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if "text" not in names:
                raise CorpusError(
                    f"{path}: no column text, only {', '.join(names)}; rename the stories' column"
                )
            for batch in file.iter_batches(columns=["text"]):
                for value in batch.column(0):
                    row += 1
                    yield _as_text(value.as_py(), path, row)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{path}: not a Parquet file ({reason}); write it again") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: row {row} is not valid UTF-8; convert it to UTF-8") from error


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
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


def load_hub(name: str) -> dict[str, Any]:
    """Load a dataset of the hub, or a local directory of the same shape: split name -> rows.

    Raises:
        CorpusError: It cannot be found or reached, or has no column `text`.
    """
    import datasets

    try:
        found = datasets.load_dataset(name)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise CorpusError(
            f"hub:{name}: cannot be loaded ({reason}); check the name and the network"
        ) from error
    loaded: dict[str, Any] = {str(split): rows for split, rows in found.items()}
    for split, rows in loaded.items():
        if "text" not in rows.column_names:
            columns = ", ".join(rows.column_names)
            raise CorpusError(
                f"hub:{name}: split {split} has no column text, only {columns}; rename the column"
            )
    return loaded


def read_hub(name: str, rows: Any) -> Iterator[str]:
    """Yield the column `text` of one split that `load_hub` returned."""
    number = 0
    for batch in rows.select_columns(["text"]).iter(batch_size=1000):
        for text in batch["text"]:
            number += 1
            yield _as_text(text, f"hub:{name}", number)


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
