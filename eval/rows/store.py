"""Rows of evidence on the disk: the JSONL file that keeps them, and its readers and writers.

The file `rows.jsonl` of a results directory is append-only, and resumable by key: a row is on the
disk before the next one is computed. A torn last line (a crash in the middle of a write, or a write
under way) is no row yet: readers leave it out, and the next writer cuts it off. `eval.rows.schema`
declares the fields of each kind of row.
"""

import codecs
import fcntl
import fnmatch
import hashlib
import json
import math
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

from arch.errors import reason
from arch.storage.files import refuse_pointer
from arch.storage.runs import walk_folders
from eval.messages import RequestError, say_once
from eval.rows.misfits import find_fault, parse_json, to_json
from eval.rows.schema import KINDS, SCHEMA, Row

ROWS, SHARDS = "rows.jsonl", "rows*.jsonl"
CIRCUMSTANCES = {"seconds", "tokens_per_second", "checkpoint", "batch", "candidates_at_once"}
"""Fields that may differ where a question was asked twice."""
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""


def row_key(*parts: object) -> str:
    """A short stable name of a question; equal questions have equal keys."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """A results directory open for appending, by this process alone until it is let go.

    One that cannot be written is open for reading where its rows are there: `refusal` says why.

    Args:
        directory: made when missing, and written to once before anything is computed.
        shard: its number from 1 and how many there are, where several processes write; each has a
            file of its own.

    Raises:
        RequestError: it is a file, or cannot be written and holds no rows; another process is
            writing there.
    """

    def __init__(self, directory: str | Path, shard: tuple[int, int] = (1, 1)) -> None:
        self.directory = Path(directory)
        self.shard = number, count = shard
        self.path = self.directory / (ROWS if count == 1 else f"rows.{number}-of-{count}.jsonl")
        self.refusal: str | None = None
        self.close: Callable[[], object] = lambda: None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except (OSError, ValueError) as error:  # by a ValueError Python refuses NUL
            said = getattr(error, "strerror", None) or error
            self.refusal = f"--out {directory}: cannot be written ({said}); give another directory"
            if not (self.path.is_file() and os.access(self.path, os.R_OK)):
                raise RequestError(self.refusal) from None
        else:
            self.close = weakref.finalize(self, os.close, file)  # which lets the lock go
            _lock(file, directory)
            _cut_torn_line(self.path)
        known = self.rows()
        self.keys = {row["key"] for row in known}
        self.corpora = {row["key"]: row.get("corpus_hash") for row in known}
        self.settings = {
            row["key"]: row["checkpoint"].get("settings_sha256")
            for row in known
            if "checkpoint" in row
        }

    def append(self, rows: Iterable[Row]) -> None:
        """Adds rows and flushes them to the disk; rows whose key is there already are left out.

        Raises:
            RequestError: the directory cannot be written; a row that no reader would take, as
                where numbers grew too large: its file stays readable.
            ValueError: a kind that is not declared.
        """
        if self.refusal:
            raise RequestError(self.refusal)
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
        return f"rows: {self.path}"

    def rows(self) -> list[Row]:
        """All rows of the directory, those of every shard."""
        return read_rows(sorted(self.directory.glob(SHARDS)))


def read_rows(sources: Iterable[str | Path]) -> list[Row]:
    """Reads the rows of results directories, or of JSONL or Parquet files, up to a torn last line.

    A directory holds one file of rows, or one for each shard, and so do the directories in it; of
    equal keys the last row counts, and where it says otherwise than one before, a line says so.
    Beside others a directory may hold none, such as one of runs.

    Raises:
        RequestError: nothing there, a line that is not a row, or a schema of another version.
    """
    rows: dict[str, Row] = {}
    found = {Path(source): _files(Path(source)) for source in sources}
    for source, paths in found.items():
        if not paths and not (source.is_dir() and any(found.values())):
            raise RequestError(f"{source}: no results here; give a directory that holds {ROWS}")
        for path in paths:
            replaced = 0
            for number, line in enumerate(_lines(path), start=1):
                if line.strip():
                    row = _parse(line, path, number)
                    replaced += row["key"] in rows and _differ(rows[row["key"]], row)
                    rows[row["key"]] = row
            if replaced:
                say_once(
                    f"{path}: {replaced} rows differ from others of their keys; the last count"
                )
    return list(rows.values())


def _differ(first: Row, second: Row) -> bool:
    """Whether two rows give other answers, whatever time they took, and wherever a model lay."""
    return any(
        first.get(name) != value for name, value in second.items() if name not in CIRCUMSTANCES
    )


def results_in(directory: Path) -> list[Path]:
    """The results directories in a directory, itself among them, in the order of their paths."""
    found = walk_folders(directory)
    return sorted(folder for folder, _, files in found if fnmatch.filter(files, SHARDS))


def _files(source: Path) -> list[Path]:
    """The files of rows in a directory, or the one that is given."""
    if source.is_file():
        return [source]
    return [file for directory in results_in(source) for file in sorted(directory.glob(SHARDS))]


def finite_or_none(value: float) -> float | None:
    """A figure as a row holds it: None where it is infinite or no number."""
    return value if math.isfinite(value) else None


def _lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        start = file.read(len(PARQUET))
    if path.suffix == ".parquet" or start == PARQUET:
        import pandas

        refuse_pointer(path)
        try:
            return [line.encode() for line in pandas.read_parquet(path)["row"]]
        except Exception as error:  # of many kinds, by what is damaged
            raise RequestError(
                f"{path}: no Parquet file of rows ({reason(error)}); a column row holds the lines "
                f"of {ROWS}"
            ) from None
    return whole_lines(path)


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a JSONL file, but for a last one that is being written, and a mark of UTF-8.

    Raises:
        ModelError: as `refuse_pointer`.
    """
    refuse_pointer(path)
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    return content[: _whole(content)].splitlines()


def _line(row: Row) -> str:
    if row.get("kind") not in KINDS:
        raise ValueError(f"row {row['key']}: kind {row.get('kind')!r}; it is one of {[*KINDS]}")
    line = to_json(row)
    fault = find_fault(row)
    if not fault:
        try:
            parse_json(line.encode())
        except ValueError as error:
            fault = str(error)
    if fault:
        raise RequestError(
            f"a row of {row['kind']} cannot be kept ({fault}); where numbers grew too large, lower "
            "what was set, as --noise, --rate or --set"
        )
    return line + "\n"


def _parse(line: bytes, path: Path, number: int) -> Row:
    why = ""
    try:
        row = parse_json(line)
        version = row["schema"]
        fits = isinstance(row["key"], str)
        fits = fits and (version != SCHEMA or isinstance(row["kind"], str))
    except (ValueError, KeyError, TypeError) as error:
        fits, row, version = False, {}, None
        why = f" ({getattr(error, 'msg', error)})" if isinstance(error, ValueError) else ""
    if not fits:
        raise RequestError(
            f"{path}, line {number}: not a row of results{why}; delete that line and run the eval "
            "again"
        )
    if version != SCHEMA:
        raise RequestError(
            f"{path}, line {number}: schema {repr(version)[:40]}, allowed is {SCHEMA}; run the "
            "eval anew"
        )
    if row["kind"] in KINDS and (fault := find_fault(row)):
        raise RequestError(
            f"{path}, line {number}: {fault}; delete that line and run the eval again"
        )
    return row


def _lock(file: int, directory: str | Path) -> None:
    """Locks a file of rows; a disk that has no locks is written without."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(
            f"--out {directory}: another process is writing there; wait for it, give another "
            "directory, or share the work, as in --shard 1/2 and --shard 2/2"
        ) from None
    except OSError:
        return


def _cut_torn_line(path: Path) -> None:
    """Leaves whole lines alone in a file, each with its end."""
    content = path.read_bytes()
    whole = _whole(content)
    if whole < len(content):
        os.truncate(path, whole)
    elif content and not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")


def _whole(content: bytes) -> int:
    """The length of the lines that were written to their end.

    A last line without an end is torn if it begins as a row does and is no JSON, as no part of an
    object is, or if it holds zeros alone. Any other was not written here: its reader refuses it.
    """
    end = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
    last = content[end:]
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        if not last.strip(b"\0") or last == b"{" or last.startswith(b'{"'):
            return end
    return len(content)
