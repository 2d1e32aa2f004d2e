"""Rows of evidence on the disk: the JSONL file that keeps them, and its readers and writers.

The file `rows.jsonl` of a results directory is append-only, and resumable by key: a row is on the
disk before the next one is computed. A torn last line (a crash in the middle of a write, or a write
under way) is no row yet: readers leave it out, and the next writer cuts it off. `eval.schema`
declares the fields of each kind of row.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eval import RequestError
from eval.schema import KINDS, SCHEMA, UNKNOWN, OfClaim, Row

ROWS = "rows.jsonl"


def row_key(*parts: object) -> str:
    """A short stable name of a question; equal questions have equal keys."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """A results directory open for appending.

    Args:
        directory: made when missing, and written to once before anything is computed.
        shard: number of this process, if several write; each has a file of its own then.

    Raises:
        RequestError: it is a file, or cannot be written.
    """

    def __init__(self, directory: str | Path, shard: int | None = None) -> None:
        self.directory = Path(directory)
        self.path = self.directory / (ROWS if shard is None else f"rows.{shard}.jsonl")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise RequestError(
                f"--out {directory}: cannot be written ({error.strerror}); give another directory"
            ) from None
        _cut_torn_line(self.path)
        whole = self.directory / ROWS
        self.keys = {row["key"] for row in read_rows([whole])} if whole.is_file() else set()

    def append(self, rows: Iterable[Row]) -> None:
        """Adds rows and flushes them to the disk; rows whose key is there already are left out.

        Raises:
            ValueError: a kind that is not declared, or a number that is not finite, which JSON
                lacks: give None, and the reason in another field.
        """
        new = list({row["key"]: row for row in rows if row["key"] not in self.keys}.values())
        lines = "".join(_line({"schema": SCHEMA, **row}) for row in new)
        start = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            os.truncate(self.path, start)  # a full disk leaves no half line
            error.filename = str(self.path)
            raise
        self.keys.update(row["key"] for row in new)

    @property
    def note(self) -> str:
        """The path of the rows, for the end of a command."""
        return f"rows: {self.directory / ROWS}"

    def rows(self) -> list[Row]:
        """All rows that were there, and those that this process has added."""
        places = dict.fromkeys([self.directory / ROWS, self.path])
        return read_rows(place for place in places if place.is_file())

    def merge(self) -> None:
        """Moves the rows of every shard's file into this one."""
        for path in sorted(self.directory.glob("rows.*.jsonl")):
            _cut_torn_line(path)
            self.append(read_rows([path]))
            path.unlink()


def write_rows(path: str | Path, rows: Iterable[Row]) -> None:
    """Writes rows into a file: JSONL, or Parquet where its name ends so.

    Parquet has the columns key and kind, and each row whole as JSON.
    """
    from arch.files import write_file

    rows = [{"schema": SCHEMA, **row} for row in rows]
    lines = [_line(row) for row in rows]
    if Path(path).suffix != ".parquet":
        write_file(Path(path), "".join(lines).encode())
        return
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in ("key", "kind")}
    table = pyarrow.table(columns | {"row": lines})
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd", compression_level=19)
    write_file(Path(path), buffer.getvalue().to_pybytes())


def read_rows(places: Iterable[str | Path]) -> list[Row]:
    """Reads the rows of results directories, or of JSONL or Parquet files, up to a torn last line.

    Raises:
        RequestError: nothing there, a line that is not a row, or a schema of another version.
    """
    rows: list[Row] = []
    for place in map(Path, places):
        path = place / ROWS if place.is_dir() else place
        if not path.is_file():
            raise RequestError(f"{place}: no results here; give a directory that holds {ROWS}")
        for number, line in enumerate(_lines(path), start=1):
            rows.append(_parse(line, path, number))
    return rows


def migrate(row: Row) -> Row:
    """A row of an earlier schema as one of this version; rows of this version as they are.

    Schema 1 named the kind of a row only if it was no recovery, and its first rows lack fields.

    Raises:
        RequestError: a schema that this version does not know.
    """
    if row["schema"] == SCHEMA:
        return row
    if row["schema"] != 1:
        raise RequestError(f"schema {row['schema']}, this version reads 1 and {SCHEMA}")
    if row.get("kind") == "claim":  # its rows are there, but not which
        return row | {"schema": SCHEMA, "bench": 0, "of": 1, "keys": []}
    if "question" in row:  # a copy that a claim had of a row
        tags = {"question", *OfClaim.__annotations__}
        row = {name: value for name, value in row.items() if name not in tags} | {
            "key": row["question"]
        }
    if row.get("kind", "recovery") != "recovery" or "found" not in row:
        return {"kind": UNKNOWN} | row | {"schema": SCHEMA}
    families = {"descent": "gradient", "adam": "gradient",
                "sweep": "search", "alternating": "search"}  # fmt: skip
    unknown = ("control", "criterion", "certificate", "uncertified", "set_recall", "permuted",
               "margin", "margin_floor", "margin_bits", "steps_to_solve")  # fmt: skip
    return {
        **dict.fromkeys(unknown),
        "padded": False,
        "noise": 0.0,
        "diverged": False,
        "notes": {},
        **row,
        "schema": SCHEMA,
        "kind": "recovery",
        "site": {"part": "block", "without": [], **row["site"]},
        "family": row.get("family") or families.get(row["method"], "other"),
    }


def finite_or_none(value: float) -> float | None:
    """A figure as a row holds it: None where it is infinite or no number."""
    return value if math.isfinite(value) else None


def _lines(path: Path) -> list[bytes]:
    if path.suffix == ".parquet":
        from pyarrow import ArrowException, parquet

        try:
            column = parquet.read_table(path, columns=["row"])["row"]
        except (ArrowException, KeyError, OSError) as error:
            raise RequestError(f"{path}: no Parquet file of rows ({error})") from None
        return [str(line).encode() for line in column.to_pylist()]
    content = path.read_bytes()
    return content[: _whole(content)].splitlines()


def _line(row: Row) -> str:
    if row.get("kind") not in {*KINDS, UNKNOWN}:
        raise ValueError(f"row {row['key']}: kind {row.get('kind')!r}; it is one of {[*KINDS]}")
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        wrong = ", ".join(_not_finite(row, ""))
        raise ValueError(
            f"row {row['key']}: {wrong} not finite; write None, and the reason beside it"
        ) from None


def _not_finite(value: Any, path: str) -> Iterator[str]:
    """The paths of numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value},"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _not_finite(inner, f"{path}[{i}]")


def _parse(line: bytes, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
        if not {"schema", "key"} <= row.keys():
            raise KeyError
    except (AttributeError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise RequestError(
            f"{path}, line {number}: not a row of results; delete that line and run the eval again"
        ) from None
    try:
        return migrate(row)
    except RequestError as error:
        raise RequestError(f"{path}, line {number}: {error}; run the eval anew") from None


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    if _whole(content) < len(content):
        os.truncate(path, _whole(content))


def _whole(content: bytes) -> int:
    """The length of the lines that were written to their end."""
    return content.rfind(b"\n") + 1
