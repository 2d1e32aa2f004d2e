"""Work that gives rows, and the one runner of it: resumed by key, shared out, watched.

A task's rows are on the disk before the next task begins. Several processes may share the work: of
N shards, shard I takes every N-th lot of tasks from the I-th on, and appends to a rows file of its
own. Neighbouring tasks with an equal `lot` form one lot; any other task is a lot by itself. Batches
of one question have an equal `lot`.
"""

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from tqdm import tqdm

from eval.drawing.tables import duration_text
from eval.messages import RequestError, say
from eval.models.corpora import corpus_hash, hashed_files
from eval.models.identity import CHANGED, refuse_two_trainings
from eval.rows.progress import Progress, report_progress, watched
from eval.rows.store import Results, Row

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

LONG = 60.0
"""Seconds: of a job that is expected to take longer it is said how long."""
SECONDS_BETWEEN_LINES = 15.0  # of progress, on a pipe
NO_ROWS = "no rows yet"
"""What a command says whose shard has no task, or whose limit is below the first."""


class Task(Protocol):
    """A piece of work that gives rows."""

    @property
    def checkpoint(self) -> "Checkpoint":
        """The model that it is about; what was computed of it goes when the next is of another."""
        ...

    @property
    def keys(self) -> Collection[str]:
        """The keys of its rows. It is not run where all are there; without keys, it always is."""
        ...

    def run(self, results: Results) -> Iterable[Row]:
        """Gives its rows, at least those that are not in the results yet.

        A list is written whole; of anything else each row is, as it comes.
        """
        ...


@contextmanager
def open_results(
    out: str | None, resume: bool = True, shard: str | None = None
) -> Iterator[Results]:
    """Opens a results directory for tasks.

    Args:
        out: the directory; None for one that is deleted when the block ends.
        resume: whether there may be rows in it.
        shard: I/N of N processes that share the work; None for one alone.

    Raises:
        RequestError: it cannot be written, it holds rows and may not, or there is no such shard.
    """
    missing = [] if out is None else [p for p in (Path(out), *Path(out).parents) if not p.exists()]
    with TemporaryDirectory(prefix="eval-") if out is None else nullcontext(out) as directory:
        results = Results(directory, read_shard(shard))
        try:
            if results.keys and not resume:
                raise RequestError(
                    f"--no-resume: {out} holds {len(results.keys)} rows; give another directory"
                )
            yield results
        except Exception:  # where nothing was measured, no directory is left that was made here
            if missing and not results.keys:
                results.path.unlink(missing_ok=True)
                with suppress(OSError):
                    for path in missing:
                        path.rmdir()
            raise
        finally:  # a notebook keeps an error, and with it what the error has seen
            results.close()


def read_shard(shard: str | None) -> tuple[int, int]:
    """The number of a shard, from 1, and how many there are.

    Raises:
        RequestError: there is no such shard.
    """
    number, _, count = (shard or "1/1").partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise RequestError(f"--shard {shard}: give I/N with I from 1 to N, as in 1/2")
    return int(number), int(count)


def answered(
    tasks: Sequence[Task], out: str | None, what: str, shard: str | None = None
) -> tuple[list[Row], str]:
    """The tasks' rows after they are run, in their order, and where they are, if they are kept."""
    with open_results(out, shard=shard) as results:
        run_tasks(tasks, results, what)
        return rows_of(tasks, results), results.note if out else ""


def rows_of(tasks: Sequence[Task], results: Results) -> list[Row]:
    """The rows of a results directory that answer the tasks, in their order."""
    rows = {row["key"]: row for row in results.rows()}
    return [rows[key] for key in dict.fromkeys(k for t in tasks for k in t.keys) if key in rows]


def run_tasks(tasks: Sequence[Task], results: Results, what: str, limit: int | None = None) -> None:
    """Runs this shard's tasks whose rows are not there yet, under a progress bar on stderr.

    Args:
        tasks: those of one model stand together.
        results: as `open_results` gives them.
        limit: no more tasks than it takes for so many rows.
    """
    _refuse_other_questions(tasks, results)
    remaining = _remaining(tasks, results, limit)
    if remaining and results.refusal:
        raise RequestError(results.refusal)
    if not remaining:
        whole = results.keys.issuperset(key for task in tasks for key in task.keys)
        left = "every row is there already" if whole else "nothing is left for this --shard"
        say(f"{results.directory}: {left}")
    closed = sys.stderr is None
    seconds = SECONDS_BETWEEN_LINES if closed or not sys.stderr.isatty() else 0.1
    bar = _Bar(remaining, what, disable=watched() or closed or not remaining, mininterval=seconds,
               delay=seconds, dynamic_ncols=True)  # fmt: skip
    started = time.monotonic()
    with _cleared(bar):
        for task, following in zip(remaining, [*remaining[1:], None], strict=False):
            report_progress(Progress())
            rows = task.run(results)
            for batch in [rows] if isinstance(rows, list) else ([row] for row in rows):
                results.append(batch)
            if task is remaining[0] and task.keys and not bar.disable:
                rest = sum(len(task.keys) for task in remaining[1:])
                expected = (time.monotonic() - started) * rest / len(task.keys)
                if expected > LONG:
                    duration = duration_text(expected)
                    line = f"{what}: about {duration} for {rest} more rows, by the first"
                    tqdm.write(line, file=sys.stderr)
            if following and following.checkpoint is not task.checkpoint:
                task.checkpoint.release()
            bar.update()


def _refuse_other_questions(tasks: Sequence[Task], results: Results) -> None:
    """Refuses rows of a model or a corpus that has other settings or another text now.

    Rows that lie among the files of a corpus would make it another text. Models whose rows could
    not be pooled are refused before they are asked.

    Raises:
        RequestError: naming it.
    """
    for corpus in filter(None, {getattr(task, "corpus", None) for task in tasks}):
        if results.path.resolve() in map(Path.resolve, hashed_files(corpus)):
            raise RequestError(
                f"--out {results.directory}: its rows would lie among the files of --corpus "
                f"{corpus}, and make it another text; give a directory elsewhere"
            )
    checkpoints = {id(task.checkpoint): task.checkpoint for task in tasks}
    trained = (checkpoint.provenance for checkpoint in checkpoints.values())
    refuse_two_trainings(trained, by_name=True)
    settings: dict[str, str] = {}
    for task in tasks:
        checkpoint = task.checkpoint
        own = checkpoint.settings_sha256
        if {results.settings.get(key) for key in task.keys} - {None, own}:
            raise RequestError(
                f"--out {results.directory}: its rows of {checkpoint.path} are of {CHANGED} beside "
                "the same weights; give another directory"
            )
        if {settings.setdefault(key, own) for key in task.keys} - {own}:
            raise RequestError(
                f"{checkpoint.path}: has the name and weights of another model that is asked, and "
                f"{CHANGED}; ask it alone"
            )
    hash_of = cache(corpus_hash)  # once for all tasks
    for task in tasks:
        corpus = getattr(task, "corpus", None)
        measured = {results.corpora.get(key) for key in task.keys} - {None}
        if corpus and measured and (known := hash_of(corpus)) and measured != {known}:
            raise RequestError(
                f"--out {results.directory}: its rows on --corpus {corpus} are of another text "
                "of that name; give another directory"
            )


class _Bar(tqdm):
    """A progress bar that knows whether it was ever drawn, as other lines do before its delay."""

    drawn = False

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draws it."""
        self.drawn = True
        super().display(msg, pos)


@contextmanager
def _cleared(bar: _Bar) -> Iterator[None]:
    """Clears a progress bar where an error ends its work, whose line then stands alone.

    One that other lines drew before its delay ends with a line of its own.
    """
    try:
        yield
    except BaseException:
        if bar.drawn:
            bar.clear()
        raise
    else:
        if bar.drawn:
            bar.delay = 0
    finally:
        bar.close()


def _remaining(tasks: Sequence[Task], results: Results, limit: int | None) -> list[Task]:
    """This shard's tasks whose rows are not all there, as many as give `limit` rows."""
    number, count = results.shard
    lots = [[*lot] for _, lot in groupby(tasks, lambda task: getattr(task, "lot", id(task)))]
    remaining, rows = [], 0
    for task in chain.from_iterable(lots[number - 1 :: count]):
        if task.keys and results.keys.issuperset(task.keys):
            continue
        if limit is None or rows < limit:
            remaining.append(task)
        rows += len(task.keys)
    return remaining
