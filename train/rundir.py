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

A checkpoint is Lightning's own content, written by us: Lightning's save is not atomic where the
temporary folder is on another disk. It holds tensors and plain values only, and is read with
`weights_only=True`. Model directories, not these, are for everything else.
"""

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from arch import ModelConfig
from arch.files import make_directory, sweep, write_file
from train.settings import OptimizerSettings, RetentionSettings, RunError

IDENTITY = "remnant"
"""Key under which a checkpoint says which model and data it belongs to."""
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
        checkpoints = self.checkpoints()
        if resume == "never":
            if self.path.exists() and (not self.path.is_dir() or self._begun()):
                raise RunError(
                    f"--run {self.path}: exists already; go on with --resume auto, or choose "
                    "another --run"
                )
            return Start()
        if resume == "auto":
            return self._last_readable(checkpoints, identity)
        chosen = Path(resume)
        if checkpoints and chosen.resolve() != checkpoints[-1].resolve():
            raise RunError(
                f"--resume {chosen}: {self.path} has a last checkpoint of its own, "
                f"{checkpoints[-1].name}; use --resume auto, or another --run"
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

    def _last_readable(self, checkpoints: list[Path], identity: dict[str, Any]) -> Start:
        unreadable: dict[Path, str] = {}
        for path in reversed(checkpoints):
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


class AtomicCheckpointIO(CheckpointIO):
    """Writes a checkpoint to a temporary sibling, flushes it to the disk and renames it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialises in memory first: torch's own file writer would hide a full disk."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_file(Path(path), buffer.getbuffer())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Reads onto the CPU: a device that training fills has no room for a second copy."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """A checkpoint that cannot be removed is no reason to stop a run."""
        with contextlib.suppress(OSError):
            Path(path).unlink(missing_ok=True)


class Unreadable(RunError):
    """A checkpoint that is damaged, or is none."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"--resume {path}: cannot be read as a checkpoint ({reason}); "
            "use another one, or start anew in another --run"
        )
        self.reason = reason


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint, whose tensors stay on the disk until they are used.

    Raises:
        RunError: not there, or not a checkpoint of this project.
    """
    if not path.is_file():
        raise RunError(
            f"--resume {path}: no such checkpoint; allowed: auto, never, or a .ckpt file"
        )
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises what its unpickler happens to meet
        raise Unreadable(path, type(error).__name__) from None
    if not isinstance(checkpoint, dict) or IDENTITY not in checkpoint:
        raise RunError(f"--resume {path}: not a checkpoint of this project")
    return checkpoint


def read_whole_checkpoint(path: Path) -> dict[str, Any]:
    """As `read_checkpoint`, after comparing every byte with the sums that torch stored beside them.

    Raises:
        RunError: as there; `Unreadable` if a sum differs.
    """
    content = read_checkpoint(path)
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
    except Exception as error:  # as above
        raise Unreadable(path, type(error).__name__) from None
    if damaged:
        raise Unreadable(path, f"{damaged} is damaged")
    return content


def step_of(path: Path) -> int | None:
    """The step in a name such as `step-000800.ckpt`; a file of another name is no checkpoint."""
    match = re.fullmatch(r"step-(\d+)\.ckpt", path.name)
    return int(match[1]) if match else None


def check_identity(path: Path, recorded: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuses to resume with another model or other data.

    A setting that the checkpoint does not name is younger than it and has its default there.

    Raises:
        RunError: naming every key that differs.
    """
    new = _flat(wanted)
    old = {key: value for key, value in _defaults().items() if key in new} | _flat(recorded)
    differing = [
        f"{key} is {_short(new.get(key))}, the checkpoint has {_short(old.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise RunError(
            f"--resume {path}: {'; '.join(differing)}; give what the run was started with, or "
            "start anew in another --run"
        )


def _defaults() -> dict[str, Any]:
    return _flat(
        {
            "model": json.loads(ModelConfig().to_json()),
            "optimizer": dataclasses.asdict(OptimizerSettings()),
            "retention": dataclasses.asdict(RetentionSettings()),
        }
    )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12]
