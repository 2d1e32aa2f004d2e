"""Rows of evidence: what each kind of row holds, and the JSONL file that keeps them.

A row is what one question gave: a dictionary whose `kind` says which of the types below it is. The
file `rows.jsonl` of a results directory is append-only, and resumable by key: a row is on the disk
before the next one is computed. A torn last line (a crash in the middle of a write, or a write
under way) is no row yet: readers leave it out, and the next that appends cuts it off.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from eval.errors import RequestError

SCHEMA = 2
ROWS = "rows.jsonl"

Row = dict[str, Any]
"""A row of any kind, as JSON gives it: one of the types of `KINDS`, by its `kind`."""


class OfModel(TypedDict):
    """Fields of every row that is about a model.

    `checkpoint` says which: name, model_id, path, step, trained, weights_sha256, and its sizes.
    """

    schema: int
    key: str
    kind: str
    checkpoint: dict[str, Any]


class Recovery(OfModel):
    """One prompt recovered by one solver from one slice of one site.

    `site` is layer, part and what is left out; `hidden` and `observed` count positions; `truth`,
    `found`, `rank` and `verdict` go by position; `self` and `nonself` tally tokens.
    """

    site: dict[str, Any]
    slice: str
    length: int
    observed: int
    hidden: int
    padded: bool
    noise: float
    control: str | None
    method: str
    family: str
    settings: dict[str, Any]
    batch: int
    prompts: str
    prompt: int
    seed: int
    text: str
    truth: list[int]
    found: list[int]
    truth_text: list[str]
    found_text: list[str]
    rank: list[float]
    self: dict[str, Any] | None
    nonself: dict[str, Any] | None
    exact: bool
    set_recall: float | None
    permuted: bool | None
    residual: float
    floor: float
    margin: float | None
    margin_floor: float | None
    margin_bits: float | None
    at_floor: bool
    diverged: bool
    criterion: bool | None
    certificate: str | None
    uncertified: str | None
    verdict: list[str]
    collisions: list[dict[str, Any]]
    steps_to_solve: int | None
    evaluations: int
    seconds: float
    notes: dict[str, Any]


class Curve(OfModel):
    """Where on an axis half of the tokens are recovered; `values` and `top1` are its points.

    Curves over noise have `snr50` too, in dB, between `snr50_low` and `snr50_high`.
    """

    site: dict[str, Any]
    axis: str
    method: str
    family: str
    settings: dict[str, Any]
    prompts: str
    count: int
    length: int
    values: list[float]
    top1: list[float]
    exact: list[float]
    ambiguous: list[float]
    threshold: float
    bracket: list[float] | None
    value: float | None
    low: float | None
    high: float | None


class Probe(OfModel):
    """What a trained reader makes of a layer: a linear probe at an offset, or an inverter."""

    site: dict[str, Any]
    method: str
    settings: dict[str, Any]
    seconds: float


class Linear(Probe):
    """A linear probe: top-1, nats, information and gain, beside the unigram's."""

    offset: int
    top1: float
    nats: float | None
    information: float | None
    gain: float | None
    unigram: dict[str, Any]


class Inverter(Probe):
    """A trained inverter: the figures of a linear probe, of shown and of hidden tokens."""

    slice: str
    length: int
    hidden: int
    self: dict[str, Any] | None
    nonself: dict[str, Any] | None


class Local(OfModel):
    """What surrounds one prompt in a layer: its Jacobian, or a basin of descent."""

    site: dict[str, Any]
    length: int
    hidden: int
    prompts: str
    prompt: int
    truth: list[int]
    seconds: float


class Retrieval(OfModel):
    """Which story a sentence belongs to, by the states of one layer."""

    corpus: str
    sentence: str
    layer: int
    pool: str
    method: str
    candidates: int
    queries: int
    top1: float
    low: float
    high: float
    chance: float


class Loss(OfModel):
    """How well a model predicts text; `parts` are the sums of each story, or of several."""

    corpus: str | None
    stories: int
    tokens: int
    bytes: int
    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    tokens_per_second: float
    parts: dict[str, list[Any]]


class Lens(OfModel):
    """One figure of one lens; further fields say of what it is: a layer, a head, a word."""

    lens: str
    figure: str
    value: float | None
    prompts: int
    prompt_kind: str
    length: int
    look: str


class Bits(OfModel):
    """What outputs say of one token at given precisions; see `eval.information.figures.lines`.

    `truth` is the token asked about, alone; figures go by `distances`.
    """

    site: dict[str, Any]
    corpus: str
    prompts: str
    prompt: int
    truth: list[int]
    tokens: list[int]
    place: int
    candidates: int
    draws: int
    seed: int
    distances: list[int]
    rms: list[float | None]
    effect: list[float | None]
    effect_sampled: list[float | None]
    prior_bits: dict[str, float | None]
    margin_bits: dict[str, list[float | None]]
    bits: dict[str, Any]
    channels: dict[str, Any]


class OfClaim(TypedDict):
    """Which rows answer one arm of a claim under one protocol, of one of `of` models.

    `entry` and `setting` are hashes of what was asked, and of which models and stories; `bench` is
    the version that asked, `keys` are those of the rows. The curves are asked as a claim too.
    """

    claim: int | str
    arm: str
    protocol: str
    entry: str
    bench: int
    setting: str
    of: int
    keys: list[str]


KINDS: dict[str, type] = {
    "recovery": Recovery,
    "curve": Curve,
    "probe": Probe,
    "geometry": Local,
    "basin": Local,
    "retrieval": Retrieval,
    "loss": Loss,
    "bits": Bits,
    "lens": Lens,
    "claim": OfClaim,
    "claim record": dict,
    "curve record": dict,
}
"""What a row of each kind holds, at least; records are rows summed up, where those are gone."""

UNKNOWN = "unknown"
"""The kind of rows of schema 1 that do not say theirs, and are of none of these."""


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
    return {
        **dict.fromkeys(("control", "criterion", "certificate", "uncertified")),
        **dict.fromkeys(
            ("set_recall", "permuted", "margin", "margin_floor", "margin_bits", "steps_to_solve")
        ),
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


def row_key(*parts: object) -> str:
    """A short stable name of what a row answers; equal questions have equal keys."""
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
            ValueError: a kind that is not declared, or a number that is not finite, which JSON has
                not: give None, and say why.
        """
        new = list({row["key"]: row for row in rows if row["key"] not in self.keys}.values())
        lines = "".join(_line({"schema": SCHEMA, **row}) for row in new)
        start = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(self.path, start)  # a full disk leaves no half line
            raise
        self.keys.update(row["key"] for row in new)

    @property
    def note(self) -> str:
        """Where the rows are, for the end of a command."""
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
    """Writes rows into a file of their own: JSONL, or Parquet where its name ends so.

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


def finite_or_none(value: float) -> float | None:
    """A figure as a row can hold it: None where it is infinite or no number."""
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
