"""The run directory.

config.yaml     every setting of its last start: `--config RUN/config.yaml` repeats the run, or goes
                on with it; settings that were changed on the way are named at its top
metrics.jsonl   a row per line of progress and per validation
checkpoints/    step-000500.ckpt ..., for resuming only
models/         step-000000 ..., model directories
data/           of a text file that was given as --data: packed, by tokenizer.json beside it
best/           with --save_best true, the model directory of the lowest validation loss
csv/, tensorboard/  what Lightning's loggers wrote, with --loggers
wandb/          what W&B wrote offline; its run id stands in wandb_id
.lock           held by the process that trains
"""

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arch.files import make_directory, remove_leftovers, write_file
from train.checkpoints import (
    FindFault,
    Start,
    Unreadable,
    changed_settings,
    read_start,
    weights_are_good,
)
from train.settings import RunError

FAILED_START = {"config.yaml", "metrics.jsonl", "wandb", "wandb_id", ".lock"}
FAILED_START |= {"data", "tokenizer.json", ".data.partial", ".data.lock"}
"""What a start that failed may leave behind."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best, self.metrics = path / "best", path / "metrics.jsonl"
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

    def validations(self) -> dict[int, float]:
        """The loss of every validation on record, in nats, by its step, oldest first."""
        return {row["step"]: row["val_loss"] for row in self.rows() if "val_loss" in row}

    def start_from(
        self, resume: str, settings: dict[str, Any], fixed: dict[str, Any], find_fault: FindFault
    ) -> Start:
        """Which checkpoint to start from, if any; with auto, the last that can be read.

        Args:
            resume: never, auto or a checkpoint.
            settings: that this start is given.
            fixed: the model and the data, which a resumed run must share with its checkpoint.
            find_fault: says what is wrong with the tensors of a checkpoint, if anything.

        Raises:
            RunError: a run is there already, or has gone on from the chosen checkpoint; or as
                `read_start`.
        """
        checkpoints, beginning = self.checkpoints(), Start(None, 0, settings, [], None, {})
        if resume == "never":
            if self.path.exists() and (not self.path.is_dir() or self._begun()):
                raise RunError(
                    f"--run {self.path}: exists already; go on with --resume auto, or choose "
                    "another --run"
                )
            return beginning
        if resume != "auto":
            chosen = Path(resume)
            if checkpoints and chosen.resolve() != checkpoints[-1].resolve():
                raise RunError(
                    f"--resume {chosen}: {self.path} has a last checkpoint of its own, "
                    f"{checkpoints[-1].name}; use --resume auto, or another --run"
                )
            return read_start(chosen, settings, fixed, find_fault)
        unreadable: dict[Path, str] = {}
        for path in reversed(checkpoints):
            try:
                start = read_start(path, settings, fixed, find_fault)
                return start._replace(unreadable=unreadable)
            except Unreadable as error:
                unreadable[path] = error.reason
        if unreadable:
            names = ", ".join(path.name for path in unreadable)
            raise RunError(
                f"--resume auto: no checkpoint in {self.path} can be read ({names}); "
                "start anew in another --run"
            )
        return beginning

    def prepare(self, config: str, start: Start) -> None:
        """Locks the directory, clears what a killed process left, and writes the config.

        Raises:
            RunError: another process is training it, or the place cannot be written.
        """
        try:
            make_directory(self.path)
            self._take()
            for folder in (self.path, self.path / "checkpoints", self.path / "models"):
                remove_leftovers(folder)
            for path in start.unreadable:
                path.rename(path.with_suffix(".unreadable"))
            changes = "".join(f"# {line}\n" for line in changed_settings(start.history))
            write_file(self.path / "config.yaml", (changes + config).encode())
        except OSError as error:
            raise RunError(
                f"--run {self.path}: cannot be written ({error.strerror}); choose another place"
            ) from None

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
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
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

    def _begun(self) -> bool:
        return bool({path.name for path in self.path.iterdir()} - FAILED_START)


def _is_row(row: Any) -> bool:
    """Whether a line of the record is one of a run: it has a step, and if a loss, a number."""
    numbers = isinstance(row, dict) and type(row.get("val_loss", 0.0)) in (int, float)
    return numbers and type(row.get("step")) is int
