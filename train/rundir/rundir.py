"""The run directory: its files, its lock, and who writes them.

config.yaml     every setting of its last start: `--config RUN/config.yaml` repeats the run, or goes
                on with it; settings that were changed on the way are named at its top; of a run
                that was copied or moved, give --run RUN as well
metrics.jsonl   a row per line of progress and per validation
checkpoints/    step-000500.ckpt ..., for resuming only
models/         step-000000 ..., model directories
data/           of a text that was given as --data: packed, by tokenizer.json beside it
eval/           with --eval_every, the results of `python -m eval` on the saved models
best/           with --save_best true, the model directory of the lowest validation loss
models/.step-000900.1, .best.1  models of later steps than the run went on from, with other settings
csv/, tensorboard/  what Lightning's loggers wrote, with --loggers
wandb/          what W&B wrote offline; its run id stands in wandb_id, and in trackio_id the name
                that the run has there
logged.json     the last steps that W&B and trackio were given before the run last went on
.lock           held by the process that trains
"""

import contextlib
import fcntl
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from arch.storage.files import make_directory, read_json, remove_leftovers, write_file
from arch.storage.runs import saved_steps
from train.recipe import flat
from train.rundir.checkpoints import weights_are_good
from train.settings import RunError

FAILED_START = {"config.yaml", "metrics.jsonl", "wandb", "wandb_id", "trackio_id", ".lock"}
FAILED_START |= {"logged.json", "data", "tokenizer.json", ".data.partial", ".data.lock"}
"""What a start that failed may leave behind."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best, self.metrics = path / "best", path / "metrics.jsonl"
        self.logged = path / "logged.json"
        self._lock: int | None = None

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step goes."""
        return self.path / "checkpoints" / f"step-{step:06d}.ckpt"

    def model(self, step: int) -> Path:
        """Where the model directory of a step goes."""
        return self.path / "models" / f"step-{step:06d}"

    def checkpoints(self, until: float = math.inf) -> list[Path]:
        """The run's checkpoints up to a step, oldest first; a copy of another name is none."""
        found = (self.path / "checkpoints").glob("step-*.ckpt")
        steps = (int(m[1]) for path in found if (m := re.fullmatch(r"step-(\d+)", path.stem)))
        return [self.checkpoint(step) for step in sorted(steps) if step <= until]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the record; none where there is no file, nor where a line is no row."""
        rows = []
        if self.metrics.is_file():
            for line in self.metrics.read_bytes().splitlines():
                with contextlib.suppress(ValueError, RecursionError):  # of a killed run, the last
                    row = json.loads(line)
                    rows += [row] if _is_row(row) else []
        return rows

    def last_settings(self) -> dict[str, Any]:
        """The settings of the last start, by their names as flags; none without a config."""
        try:
            content = yaml.safe_load((self.path / "config.yaml").read_text("utf-8"))
            return flat(content) if isinstance(content, dict) else {}
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):  # edited by hand
            return {}

    def validated_steps(self) -> set[int]:
        """The steps whose validation is on record."""
        return {row["step"] for row in self.rows() if "val_loss" in row}

    def comparable(self, tokens: int | None = None) -> dict[int, float]:
        """The losses, in nats, of validations over so many tokens, or as many as the last had.

        They are by their steps, oldest first; that of `best/` counts also where no row has it.
        """
        meta = self.best / "meta.json"
        best = [read_json(meta)] if meta.is_file() else []
        rows = [row for row in [*best, *self.rows()] if _is_row(row) and "val_loss" in row]
        if tokens is None and rows:
            tokens = rows[-1].get("val_tokens")
        found = {r["step"]: r["val_loss"] for r in rows if r.get("val_tokens", tokens) == tokens}
        return dict(sorted(found.items()))

    def begun(self) -> bool:
        """Whether there is more than a start that failed may leave behind, or a file."""
        if not self.path.is_dir():
            return self.path.exists()
        return bool({path.name for path in self.path.iterdir()} - FAILED_START)

    def refuse_begun(self) -> None:
        """Refuses a directory in which a new run would join another.

        Raises:
            RunError: a run is there already.
        """
        if self.begun():
            raise RunError(
                f"--run {self.path}: exists already; go on with --resume auto, or choose "
                "another --run"
            )

    def content(self) -> tuple[list[int], list[Path]]:
        """What tells that another start has written here: its models and its checkpoints."""
        return sorted(saved_steps(self.path)), self.checkpoints()

    def prepare(
        self, config: str, unreadable: Iterable[Path], found: tuple[list[int], list[Path]]
    ) -> None:
        """Locks the directory, clears what a killed process left, and writes the config.

        Args:
            config: the content of its `config.yaml`.
            unreadable: checkpoints, which get another ending.
            found: its `content` when this start was planned.

        Raises:
            RunError: another process is training it or has trained it since, or the place cannot be
                written.
        """
        try:
            make_directory(self.path)
            self._take()
            if self.content() != found:
                raise RunError(
                    f"--run {self.path}: was trained since this start read it; start again, with "
                    "--resume auto to go on, or choose another --run"
                )
            for folder in (self.path, self.path / "checkpoints", self.path / "models"):
                remove_leftovers(folder)
            for path in unreadable:
                path.rename(path.with_suffix(".unreadable"))
            write_file(self.path / "config.yaml", config.encode())
        except OSError as error:
            raise RunError(
                f"--run {self.path}: cannot be written ({error.strerror}); choose another place"
            ) from None

    def hide_models(self, step: int, alike: Callable[[dict[str, Any]], bool]) -> list[Path]:
        """Renames models of later steps that the run does not train so again; the new names.

        Args:
            step: from which the run goes on.
            alike: whether a model is trained so again, by its meta.json.

        Raises:
            RunError: one cannot be renamed.
            arch.ModelError: nor read.
        """
        hidden = []
        for path in (*saved_steps(self.path).values(), self.best):
            meta = read_json(path / "meta.json") if (path / "meta.json").is_file() else {}
            if meta.get("step", 0) > step and not alike(meta):
                names = (path.with_name(f".{path.name}.{number}") for number in itertools.count(1))
                hidden.append(next(name for name in names if not name.exists()))
                with self.writing(path):
                    path.rename(hidden[-1])
        return hidden

    def release(self) -> None:
        """Lets other processes train it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Makes one line of a file that cannot be written in the middle of a run.

        Raises:
            RunError: that line.
        """
        try:
            yield
        except OSError as error:
            good = self.checkpoints()
            last = f"the last checkpoint is {good[-1].name}" if good else "there is no checkpoint"
            raise RunError(
                f"{path}: cannot be saved ({error.strerror}); {last}; mend that, then go on with "
                "--resume auto"
            ) from error

    def broken(self, what: str, good_until: int) -> RunError:
        """The one line for a training that went wrong after the step `good_until`."""
        last, advice = "there is no good checkpoint yet", "train again"
        if good := next(filter(weights_are_good, reversed(self.checkpoints(good_until))), None):
            last = f"the last good checkpoint is {good}"
            advice = f"go on from it with --resume {good}"
        return RunError(f"{what}; {last}; {advice}, a lower --optimizer.lr and another --run")

    def _take(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # POSIX locks: those of a killed process are gone at once.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self.release()
            raise RunError(
                f"--run {self.path}: another process is training it; wait for that one, or choose "
                "another --run"
            ) from None
        except OSError:  # a file system without locks
            pass


def _is_row(row: Any) -> bool:
    """Whether a line of the record is one of a run: it has a step, and if a loss, a number."""
    numbers = isinstance(row, dict) and type(row.get("val_loss", 0.0)) in (int, float)
    return numbers and type(row.get("step")) is int
