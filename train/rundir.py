"""The run directory.

config.yaml     every setting, so that `--config RUN/config.yaml` repeats the run
metrics.jsonl   a row per line of progress and per validation
samples.jsonl   what the model wrote while it was trained
checkpoints/    step-000500.ckpt ..., for resuming only
models/         step-000000 ..., model directories
best/           with --save_best true, the model directory of the lowest validation loss
csv/, tensorboard/  what Lightning's loggers wrote, with --loggers
wandb/          what W&B wrote offline; its run id stands in wandb_id
.lock           held by the process that trains
"""

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.files import make_directory, sweep, write_file
from train.checkpoints import Unreadable, check_identity, read_whole_checkpoint, step_of
from train.settings import RunError

FAILED_START = {"config.yaml", "metrics.jsonl", "samples.jsonl", "wandb", "wandb_id", ".lock"}


@dataclass
class Start:
    """Where a run starts.

    Attributes:
        checkpoint: to go on from, or None for a new run.
        step: how many steps are done.
        unreadable: later checkpoints that cannot be read, and why.
    """

    checkpoint: Path | None = None
    step: int = 0
    unreadable: dict[Path, str] = field(default_factory=dict)


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def start_from(self, resume: str, identity: dict[str, Any]) -> Start:
        """Which checkpoint to start from, if any; with auto, the last that can be read.

        Args:
            resume: never, auto, or the path of a checkpoint.
            identity: the model and data that it must belong to.

        Raises:
            RunError: a run is there already, or has gone on from the chosen checkpoint; a
                checkpoint cannot be read, or belongs to another model or other data.
        """
        found = self.checkpoints()
        if resume == "never":
            if self.path.exists() and (not self.path.is_dir() or self._begun()):
                raise RunError(
                    f"--run {self.path}: exists already; go on with --resume auto, or choose "
                    "another --run"
                )
            return Start()
        if resume == "auto":
            return self._last_readable(found, identity)
        chosen = Path(resume)
        if found and chosen.resolve() != found[-1].resolve():
            raise RunError(
                f"--resume {chosen}: {self.path} has a last checkpoint of its own, "
                f"{found[-1].name}; use --resume auto, or another --run"
            )
        return Start(chosen, _steps_done(chosen, identity))

    def prepare(self, config: str, start: Start) -> None:
        """Makes the directory this process's own, clears what a killed one left, writes the config.

        Raises:
            RunError: another process is training it, or the place cannot be written.
        """
        try:
            make_directory(self.path)
            self._take()
            for folder in (self.path, self.path / "checkpoints", self.path / "models"):
                sweep(folder)
            for path in start.unreadable:
                path.rename(path.with_suffix(".unreadable"))
            write_file(self.path / "config.yaml", config.encode())
        except OSError as error:
            raise RunError(
                f"--run {self.path}: cannot be written ({error.strerror}); choose another place"
            ) from None

    def release(self) -> None:
        """Lets other processes train it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def checkpoints(self) -> list[Path]:
        """The run's checkpoints, oldest first."""
        return [path for _, path in self._checkpoints()]

    def checkpoints_until(self, step: int) -> list[Path]:
        """Those of them that were taken at `step` or before."""
        return [path for taken, path in self._checkpoints() if taken <= step]

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step goes."""
        return self.path / "checkpoints" / f"step-{step:06d}.ckpt"

    def model(self, step: int) -> Path:
        """Where the model directory of a step goes."""
        return self.path / "models" / f"step-{step:06d}"

    @property
    def best(self) -> Path:
        """Where the model directory of the lowest validation loss goes."""
        return self.path / "best"

    def validations(self, until: int) -> list[float]:
        """The losses of the validations up to a step, in nats, oldest first."""
        rows = read_rows(self.path / "metrics.jsonl")
        return [row["val_loss"] for row in rows if "val_loss" in row and row["step"] <= until]

    def validated(self, step: int) -> bool:
        """Whether the validation of a step is on record."""
        rows = read_rows(self.path / "metrics.jsonl")
        return any(row["step"] == step and "val_loss" in row for row in rows)

    def prune(self, keep: int) -> None:
        """Removes all but the last checkpoints; one that cannot be removed stays."""
        for path in self.checkpoints()[:-keep]:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def unsaved(self, path: Path, error: OSError) -> RunError:
        """The one line for a file that cannot be written in the middle of a run."""
        good = self.checkpoints()
        last = f"the last checkpoint is {good[-1].name}" if good else "there is no checkpoint yet"
        return RunError(
            f"{path}: cannot be saved ({error.strerror}); {last}; mend that, then go on with "
            "--resume auto"
        )

    def _checkpoints(self) -> list[tuple[int, Path]]:
        """Each with its step, oldest first."""
        paths = (self.path / "checkpoints").glob("step-*.ckpt")
        return sorted((step, path) for path in paths if (step := step_of(path)) is not None)

    def _last_readable(self, found: list[Path], identity: dict[str, Any]) -> Start:
        unreadable: dict[Path, str] = {}
        for path in reversed(found):
            try:
                return Start(path, _steps_done(path, identity), unreadable)
            except Unreadable as error:
                unreadable[path] = error.reason
        if unreadable:
            names = ", ".join(path.name for path in unreadable)
            raise RunError(
                f"--resume auto: no checkpoint in {self.path} can be read ({names}); "
                "start anew in another --run"
            )
        return Start()

    def _take(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # POSIX locks: a killed process's are gone at once, its loader workers have none.
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
        """Whether more is there than a start that failed leaves behind."""
        return bool({p.name for p in self.path.iterdir()} - FAILED_START)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; none where there is no file."""
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed run
                rows.append(json.loads(line))
    return rows


def _steps_done(checkpoint: Path, identity: dict[str, Any]) -> int:
    content = read_whole_checkpoint(checkpoint)
    check_identity(checkpoint, content["remnant"], identity)
    return content["global_step"]
