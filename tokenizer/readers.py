"""Texts from files: one reader for each kind, which gives a text as it is, or refuses the file.

Rows are read one after the other, and of their columns only the one that is named, so that another
column never matters. Whatever is no text is refused with the number of its row.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any

from tokenizer.bpe import END_OF_TEXT, CorpusError, check_text, reason, refuse_pointer
from tokenizer.data import BLOCK
from tokenizer.splits import ENDINGS, PACKED, say_once

TEXT = ".txt"
SEPARATORS = (
    re.escape(END_OF_TEXT),
    r"\n[ \t\r]*\n|\r[ \t]*\r(?!\n)",
    r"\r\n?|\n",
)
"""What divides a text file: the first of them that it has."""
ROWS = 1000  # of a table, at a time


def read_file(path: Path, field: str, source: Path | None = None) -> Iterator[str]:
    """Yield the texts of a file; `field` is the column of those that have columns.

    `source` is the folder of several files, of which it is said once how plain text is read.

    Raises:
        CorpusError: It cannot be read, or a row holds no text; the row and the file are named.
    """
    kind = path.suffix.lower()
    return _read_text(path, source or path) if kind == TEXT else READERS[kind](path, field)


def check_kind(path: Path) -> str:
    """Return the ending of a file, in small letters.

    Raises:
        CorpusError: It is none of a kind that can be read.
    """
    kind = path.suffix.lower()
    if kind in PACKED:
        raise CorpusError(f"{path}: is compressed, which is not read; unpack it")
    if kind not in ENDINGS:
        known = ", ".join(ENDINGS)
        raise CorpusError(f"{path}: unknown kind of file; the name must end in {known}")
    return kind


def read_batches(about: object, batches: Iterable[Any], field: str, stored: str) -> Iterator[str]:
    """Yield the texts of one column of Arrow's batches; `stored` says how datasets types it.

    datasets has the type Json for a column of several types: there a text is its JSON source.

    Raises:
        CorpusError: There is no such column, a row holds no text, or it cannot be read.
    """
    number = 0
    try:
        for batch in batches:
            if field not in batch.column_names:
                raise _no_column(about, field, batch.column_names)
            column = batch.column(field)
            is_json = stored == "Json" or "arrow.json" in str(column.type)
            for value in column:
                number += 1
                held = value.as_py()
                story = json.loads(held) if is_json and held else held
                yield check_text(f"{about}: row {number}", story)
    except (CorpusError, GeneratorExit):
        raise
    except Exception as error:  # a reader of tables raises what its library happens to raise
        raise CorpusError(
            f"{about}: cannot be read after row {number} ({reason(error)}); mend or convert it"
        ) from error


def _no_column(about: object, field: str, names: Iterable[str]) -> CorpusError:
    return CorpusError(
        f"{about}: no column {field}, only {_listed(names)}; name the stories' column {field}, or "
        "pack it by --field NAME"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names))[:200] or "none"


def _read_text(path: Path, source: Path) -> Iterator[str]:
    """Yield, stripped, what `<|endoftext|>` divides in a `.txt` file, else paragraphs or lines."""
    stat = path.stat()
    separator = _separator(path, stat.st_size, stat.st_mtime_ns)
    if separator.pattern != SEPARATORS[0]:
        what = "paragraph" if separator.pattern == SEPARATORS[1] else "line"
        like = "" if source == path else "some files are "
        say_once(
            f"{source}: {like}plain text without {END_OF_TEXT}, each {what} is a story; to join "
            "them, pack it with --story-tokens N"
        )
    pending, fresh, size = "", [], 0
    for block in _blocks(path):
        fresh.append(block)
        size += len(block)
        if size >= len(pending):  # else a text of many blocks would be searched at each of them
            *whole, pending = separator.split("".join([pending, *fresh]))
            yield from map(str.strip, whole)
            fresh, size = [], 0
    yield from map(str.strip, separator.split("".join([pending, *fresh])))


@cache
def _separator(path: Path, size: int, changed: int) -> re.Pattern[str]:
    """What divides a text file."""
    marks, before = [re.compile(mark) for mark in SEPARATORS], ""
    found = marks[-1]
    for block in _blocks(path):
        read = before + block if before else block.lstrip()
        text = read.rstrip()  # what is blank at either end of a file divides nothing
        if marks[0].search(text):
            return marks[0]
        if marks[1].search(text):
            found = marks[1]
        before = read[max(0, len(text) - 100) :]
    return found


def _blocks(path: Path) -> Iterator[str]:
    """Yield a text file, a block at a time, without its byte-order mark."""
    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            held = len(decoder.getstate()[0])
            _refuse_other_than_text(path, block, done)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, error, done - held) from None
            yield text.removeprefix("\ufeff") if done - held == 0 else text
            done += len(block)
            if not block:
                return


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their ends, without its byte-order mark."""
    done = 0
    with path.open("rb") as file:
        for line in file:
            _refuse_other_than_text(path, line, done)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, error, done) from None
            yield text if done else text.removeprefix("\ufeff")
            done += len(line)


def _refuse_other_than_text(path: Path, block: bytes, start: int) -> None:
    if start == 0 and block[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise CorpusError(f"{path}: UTF-16, not UTF-8; convert the file to UTF-8")
    if start == 0:
        refuse_pointer(path)
    if (position := block.find(0)) >= 0:
        raise CorpusError(
            f"{path}: holds a NUL byte at {start + position} (UTF-16, or no text); convert the "
            "file to UTF-8"
        )


def _not_utf8(path: Path, error: UnicodeDecodeError, start: int) -> CorpusError:
    return CorpusError(
        f"{path}: {error.reason} (0x{error.object[error.start]:02x}) at byte {start + error.start},"
        " not valid UTF-8; convert the file to UTF-8"
    )


def _read_json_lines(path: Path, field: str) -> Iterator[str]:
    number = 0
    for line, source in enumerate(_lines(path), 1):
        if source.isspace():
            continue
        number += 1
        try:
            row = _load_json(source, field)
        except (ValueError, RecursionError) as error:
            said = f"{getattr(error, 'msg', error)} at character {getattr(error, 'pos', 0)}"
            raise CorpusError(f"{path}: line {line} is not JSON ({said}); mend it") from None
        yield _cell(path, number, row, field)


def _read_json(path: Path, field: str) -> Iterator[str]:
    """Yield the rows of an array of objects, of an object of columns, or of lines."""
    rows = _whole_json(path, field)
    if rows is None:
        yield from _read_json_lines(path, field)
        return
    for number, row in enumerate(rows, 1):
        yield _cell(path, number, row, field)


def _whole_json(path: Path, field: str) -> list[Any] | None:
    """Return the rows of a file that is one array or object; nothing where each line is a row.

    Raises:
        CorpusError: It is an array that is no JSON, or an object without the column.
    """
    lines = dropwhile(str.isspace, _lines(path))
    first = next(lines, "")
    is_array = first.lstrip().startswith("[")
    if not is_array:
        with suppress(ValueError, RecursionError):
            row = _load_json(first, field)
            if isinstance(row, dict) and isinstance(row.get(field), str):
                return None  # and the other lines need not be held
    try:
        whole = _load_json(first + "".join(lines), field)
    except (ValueError, RecursionError) as error:
        if is_array:
            raise CorpusError(f"{path}: not JSON ({error}); mend it") from None
        return None
    if not isinstance(whole, dict):
        return whole if is_array else None
    if field not in whole:
        raise CorpusError(
            f"{path}: an object without {field}, of {_listed(whole)}; give an array of objects "
            f"with {field}, an object a line, or a column of texts by --field NAME"
        )
    column = whole[field]
    values = list(column.values()) if isinstance(column, dict) else column  # as pandas writes it
    return [{field: value} for value in values] if isinstance(values, list) else [whole]


def _load_json(source: str, field: str) -> Any:
    """Read JSON, whose objects name the field once.

    Raises:
        ValueError: It is none, or an object names it twice, of which one would be lost.
    """

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs) and [name for name, _ in pairs].count(field) > 1:
            raise ValueError(f"{field} stands twice in an object")
        return row

    return json.loads(source, object_pairs_hook=read_object)


def _cell(path: Path, number: int, row: object, field: str) -> str:
    if not isinstance(row, dict):
        raise CorpusError(f"{path}: row {number} holds {row!r:.80}, not an object with {field}")
    if field not in row:
        raise _no_column(f"{path}: row {number}" if number > 1 else path, field, row)
    return check_text(f"{path}: row {number}", row[field])


def _read_csv(path: Path, field: str) -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)  # a story may be longer than 128 KiB
    lines = _lines(path)
    first = next(lines, "")
    lines = chain([first], lines)
    if "\r" in first.rstrip("\r\n"):  # as of Excel for Mac; else a CR is in a cell
        lines = chain.from_iterable(io.StringIO(line, newline="") for line in lines)
    _refuse_other_marks(path, re.split("[\r\n]", first, maxsplit=1)[0], field)
    rows = csv.reader(lines, strict=True)
    try:
        names = next(rows, [])
        if names.count(field) > 1:
            raise CorpusError(f"{path}: {field} heads {names.count(field)} columns; keep one")
        if field not in names:
            raise _no_column(path, field, names)
        for number, row in enumerate(filter(None, rows), 1):
            if len(row) != len(names):
                raise CorpusError(
                    f"{path}: row {number} has {len(row)} cells, the first line {len(names)}; mend "
                    "it"
                )
            yield check_text(f"{path}: row {number}", row[names.index(field)])
    except csv.Error as error:
        raise CorpusError(f"{path}: line {rows.line_num}: {error}; mend it") from None


def _refuse_other_marks(path: Path, head: str, field: str) -> None:
    """Refuse a table that has the column, bare or in quotes, where another mark divides its head.

    Raises:
        CorpusError: It names the mark.
    """
    marks = (mark for mark in ",;\t|" if field in next(csv.reader([head], delimiter=mark), []))
    if (mark := next(marks, ",")) != ",":
        raise CorpusError(f"{path}: its cells are divided by {mark!r}; save it with commas")


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
        names = file.schema_arrow.names
        about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        kinds = about.get("info", {}).get("features") or {}
        kind = kinds.get(field)  # a list, where datasets before 4 describes one
        stored = kind.get("_type", "") if isinstance(kind, dict) else ""
    except Exception as error:  # the library raises many kinds, OSError and ValueError among them
        refuse_pointer(path)
        raise CorpusError(
            f"{path}: cannot be loaded ({reason(error)}); mend or convert it"
        ) from error
    with file:
        if field not in names:
            raise _no_column(path, field, names)
        batches = file.iter_batches(ROWS, columns=[field], use_threads=False)
        yield from read_batches(path, batches, field, stored)


READERS = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
"""Of files with columns, by the ending of the name; `ENDINGS` lists these and `TEXT`."""
