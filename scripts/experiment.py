"""Experiments that were registered before their data: docs/results/experiments/NAME.yaml.

    python -m scripts.experiment e1 --corpus STORIES --out DIR     # goes on where it stopped
    python -m scripts.experiment e1 --out DIR --save               # its rows into docs/results
    python -m scripts.experiment e1 --page docs/results/bits.md    # the page of those rows

The first trains the models that the registration names, one seed after another, and measures each
as soon as it is trained. Rows are on the disk as they come, in DIR/rows.jsonl; each holds the hash
of its registration. Models that are trained again elsewhere differ in their last bits: they are
other seeds.
"""

import argparse
import contextlib
import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from arch.files import write_text
from eval import RequestError
from eval.drawing import Figure, write_figures
from eval.information.measure import Question
from eval.information.page import figures, page
from eval.information.task import Design, plan_bits
from eval.models import Checkpoint, open_models
from eval.rows import Results, Row, read_rows, write_rows
from eval.tables import Table
from eval.tasks import Task, open_results, run_tasks
from scripts import recall, recoveries, repeats
from scripts.recall import Asked, Recall, RecallTask
from scripts.repeats import RepeatsTask
from tokenizer import PackedData

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "experiments"


Built = TypeVar("Built")


@dataclass(frozen=True)
class Registration:
    """What an experiment asks, as it was written down before any of its rows.

    Attributes:
        name: of its file.
        hash: of the file's content; rows hold it.
        plain: the content.
    """

    name: str
    hash: str
    plain: dict[str, Any]

    @classmethod
    def read(cls, name: str, folder: Path | None = None) -> "Registration":
        """The registration of an experiment.

        Raises:
            RequestError: there is none of that name.
        """
        folder = folder or FOLDER
        path = folder / f"{name}.yaml"
        if not path.is_file():
            names = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
            raise RequestError(f"experiment {name!r}: none is registered so; there are {names}")
        content = path.read_bytes()
        return cls(name, hashlib.sha256(content).hexdigest()[:16], yaml.safe_load(content))

    @property
    def design(self) -> dict[str, Any]:
        """What is trained and measured."""
        return self.plain["design"]


class Run(NamedTuple):
    """A model that is trained, and at which steps it is measured."""

    architecture: str
    seed: int
    words: list[str]
    steps: list[int]

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.architecture}-s{self.seed}"


def runs(registration: Registration) -> Iterator[Run]:
    """All models, one seed after another.

    An architecture is its flags, or `{flags: ..., steps: [...]}` where its steps are its own.
    """
    design = registration.design
    for seed in design["seeds"]:
        for architecture, given in design["architectures"].items():
            each = given if isinstance(given, dict) else {"flags": given}
            words = [*shlex.split(design["fit"]), *shlex.split(each["flags"]), "--seed", str(seed)]
            yield Run(architecture, seed, words, each.get("steps") or design["steps"])


class Measure(NamedTuple):
    """A kind of measurement: what a design's entry of that name asks.

    Attributes:
        tasks: of a design, a corpus, and a run's model at one step; each with what else its rows
            say of the experiment.
        figures: of the page, from a registration as it is written and its rows.
        cells: of the page, a table of everything that was measured; None for none.
    """

    tasks: Callable[[dict[str, Any], str, Checkpoint, Run], Iterable[tuple[Task, dict[str, Any]]]]
    figures: Callable[[dict[str, Any], Sequence[Row]], list[Figure]]
    cells: Callable[[Sequence[Row]], Table] | None = None


def from_plain(kind: type[Built], data: dict[str, Any], where: str, **given: Any) -> Built:
    """A dataclass of plain data, whose lists become tuples, and of fields that are given as such.

    Raises:
        RequestError: a field that it has not, or one that it needs and is not there.
    """
    known = {each.name: each for each in fields(kind) if each.name not in given}  # pyright: ignore
    for name in data:
        if name not in known:
            allowed = ", ".join(sorted(known))
            raise RequestError(f"{where}: unknown field {name!r}; allowed: {allowed}")
    for name, each in known.items():
        if each.default is each.default_factory is MISSING and data.get(name) in (None, ""):
            raise RequestError(f"{where}: has no {name}; give it")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return kind(**plain, **given)


def _bits(design: dict[str, Any], corpus: str, checkpoint: Checkpoint, run: Run) -> Iterator[Any]:
    """Bits of the last block's outputs."""
    question = from_plain(Question, design["measured"], "measured")
    for task in plan_bits(checkpoint, None, Design(corpus, question, **design["passages"])):
        yield task, {}


def _recoveries(
    design: dict[str, Any], corpus: str, checkpoint: Checkpoint, run: Run
) -> Iterator[Any]:
    """Prompts recovered from the last block's outputs."""
    yield from recoveries.jobs(design["recovered"], corpus, checkpoint, run.architecture)


def _recall(design: dict[str, Any], corpus: str, checkpoint: Checkpoint, run: Run) -> Iterator[Any]:
    """Recall, and what readers make of the outputs at the queries."""
    task = from_plain(Recall, design["recall"], "recall")
    asked = from_plain(Asked, design["asked"], "asked")
    for pairs in task.pairs:
        yield RecallTask(checkpoint, task, asked, pairs), {}


def _prices(design: dict[str, Any], corpus: str, checkpoint: Checkpoint, run: Run) -> Iterator[Any]:
    """Bits, and the loss of windows; rows hold what an architecture is `of`."""
    about = design["architectures"][run.architecture]["of"]
    yield RepeatsTask(checkpoint, corpus, **design["windows"]), about
    for task, _ in _bits(design, corpus, checkpoint, run):
        yield task, about


MEASURES = {
    "recall": Measure(_recall, recall.figures, recall.readings),
    "windows": Measure(_prices, repeats.figures, repeats.prices),
    "measured": Measure(_bits, figures),
    "recovered": Measure(_recoveries, recoveries.figures, recoveries.every_cell),
}
"""By the first entry of a design that is among them."""


def measure_of(registration: Registration) -> Measure:
    """What an experiment measures.

    Raises:
        RequestError: nothing that there is a command for.
    """
    for name, measure in MEASURES.items():
        if name in registration.design:
            return measure
    raise RequestError(f"{registration.name}: is registered, and has no command yet")


class Registered(NamedTuple):
    """A task whose rows say which experiment they are of; `eval.tasks.Task`."""

    task: Task
    about: dict[str, Any]
    checkpoint: Checkpoint | None
    keys: Collection[str]
    cost: float

    def run(self, results: Results) -> Iterable[Row]:
        """The task's rows."""
        for row in self.task.run(results):
            yield {**row, "experiment": self.about}


def run(registration: Registration, corpus: str, out: Path) -> None:
    """Trains and measures what is not there yet.

    Raises:
        RequestError: a step failed; its output is in `out`/log.txt.
    """
    measure = measure_of(registration)
    data = _data(registration, corpus, out)
    with open_results(str(out)) as results:
        for each in runs(registration):
            place = out / each.name
            steps = [place / "models" / f"step-{step:06d}" for step in each.steps]
            if not all((step / "meta.json").is_file() for step in steps):
                where = ("--data", data, "--run", place, "--resume", "auto", "--wandb", "disabled")
                _give(["train", "fit", *each.words, *where, "--validate_tokens", 32768], out)
            about = {"name": registration.name, "registration": registration.hash}
            about |= {"architecture": each.architecture, "seed": each.seed}
            tasks = [
                Registered(task, about | more, task.checkpoint, task.keys, task.cost)
                for checkpoint in open_models([str(step) for step in steps], "cpu")
                for task, more in measure.tasks(registration.design, corpus, checkpoint, each)
            ]
            run_tasks(tasks, results, each.name)


def save(registration: Registration, out: Path, path: Path) -> int:
    """Writes the rows of this registration that there are into one file; how many."""
    rows = [
        row
        for row in read_rows([out])
        if row.get("experiment", {}).get("registration") == registration.hash
    ]
    for row in rows:  # nothing of the machine they were made on
        if row.get("corpus") not in (None, "recall"):
            row["corpus"] = "TinyStories"
        row["checkpoint"]["path"] = str(Path(*Path(row["checkpoint"]["path"]).parts[-3:]))
    write_rows(path, rows)
    return len(rows)


def write_page(registration: Registration, rows: list[Row], path: Path) -> None:
    """Writes an experiment's page, and its figures beside the registration.

    Raises:
        RequestError: rows of another registration.
    """
    if {row["experiment"]["registration"] for row in rows} != {registration.hash}:
        raise RequestError(
            f"{registration.name}: rows are not of this registration (hash {registration.hash}); "
            "a registration that was changed is another one: give it another name"
        )
    start = f"{registration.name}-"
    text, drawn = page_of(registration, rows, f"{os.path.relpath(FOLDER, path.parent)}/{start}")
    write_figures(FOLDER, [replace(each, name=start + each.name) for each in drawn], "svg")
    write_text(path, text)


def page_of(registration: Registration, rows: list[Row], beside: str) -> tuple[str, list[Figure]]:
    """An experiment's page and figures, with what has changed since its rows (NAME-since.md).

    Args:
        registration: of the rows.
        rows: all that are kept.
        beside: what the names of the figures' files begin with, seen from the page.
    """
    measure = measure_of(registration)
    drawn = measure.figures(registration.plain, rows)
    cells = measure.cells(rows) if measure.cells else None
    text = page(registration.plain, registration.hash, rows, drawn, beside, cells)
    since = FOLDER / f"{registration.name}-since.md"
    if since.is_file():
        text = text.replace("\n## ", f"\n{since.read_text(encoding='utf-8')}\n## ", 1)
    return text, drawn


def main(arguments: list[str] | None = None) -> int:
    """Runs or saves an experiment, or writes its page; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the registration")
    parser.add_argument("--out", type=Path, help="models and rows")
    parser.add_argument("--corpus", help="stories: a directory with train.txt and valid.txt")
    parser.add_argument("--save", action="store_true", help="rows so far into docs/results")
    parser.add_argument("--page", type=Path, help="write the page of the rows in docs/results")
    options = parser.parse_args(arguments)
    try:
        registration = Registration.read(options.name)
        stored = FOLDER / f"{registration.name}.parquet"
        out: Path | None = options.out
        if out is None and (options.save or not options.page):
            raise RequestError("--out: missing; give the directory of models and rows")
        if out and options.save:
            print(f"{save(registration, out, stored)} rows: {stored}")
        elif out and options.corpus is None and "recall" not in registration.design:
            raise RequestError("--corpus: missing; give the stories to train on and ask about")
        elif out:
            run(registration, options.corpus or "", out)
        if options.page:
            write_page(registration, read_rows([stored]), options.page)
    except (RequestError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _data(registration: Registration, corpus: str, out: Path) -> Path:
    """The corpus packed with a tokenizer of its own; of recall, sequences that are made here."""
    tokenizer, data = out / "tokenizer.json", out / "data"
    if "recall" in registration.design and not PackedData.stands_in(str(data)):
        return from_plain(Recall, registration.design["recall"], "recall").pack(out)
    if not tokenizer.is_file():
        size = ("--vocab-size", registration.design["vocabulary"])
        _give(["tokenizer", "train", corpus, "--out", tokenizer, *size], out)
    if not PackedData.stands_in(str(data)):
        _give(["tokenizer", "pack", corpus, "--tokenizer", tokenizer, "--out", data], out)
    return data


def _give(words: list[Any], out: Path) -> None:
    """Gives a command of a room in this process, its output in the log.

    Raises:
        RequestError: it failed.
    """
    room, *rest = map(str, words)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "log.txt"
    with (
        log.open("a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        print(f"\n$ python -m {room} {shlex.join(rest)}")
        code = import_module(f"{room}.__main__").main(rest)
    if code:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1]
        raise RequestError(f"python -m {room} {rest[0]} ended with {code}: {last} (see {log})")


if __name__ == "__main__":
    sys.exit(main())
