"""The run directory.

config.yaml     every setting of its last start: `--config RUN/config.yaml` repeats the run, or goes
                on with it; settings that were changed on the way are named at its top
metrics.jsonl   a row per line of progress and per validation
samples.jsonl   what the model wrote while it was trained
checkpoints/    step-000500.ckpt ..., for resuming only
models/         step-000000 ..., model directories
data/           of a text file that was given as --data: packed, by tokenizer.json beside it
best/           with --save_best true, the model directory of the lowest validation loss
csv/, tensorboard/  what Lightning's loggers wrote, with --loggers
wandb/          what W&B wrote offline; its run id stands in wandb_id
.lock           held by the process that trains

A checkpoint is Lightning's own content, written by us: Lightning's save is not atomic where the
temporary folder is on another disk. It holds tensors and plain values only, and is read with
`weights_only=True`. Model directories, not these, are for everything else.
"""

import contextlib
import fcntl
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from arch.files import make_directory, remove_leftovers, write_file
from train.settings import RunError

IDENTITY = "remnant"
"""Key under which a checkpoint says which model and data it belongs to."""
SETTINGS = "settings"
"""Key under which a checkpoint has the `recipe` and the `history` of its `Start`."""
FAILED_START = {"config.yaml", "metrics.jsonl", "samples.jsonl", "wandb", "wandb_id", ".lock"}
FAILED_START |= {"data", "tokenizer.json", ".data.partial"}


class Start(NamedTuple):
    """Where a run starts, and with which settings its steps are trained.

    Attributes:
        checkpoint: that it goes on from; None at the beginning.
        step: of the checkpoint.
        recipe: the settings that the run began with.
        history: what was changed since, oldest first: `{"from_step": 10, "changed":
            {"optimizer.lr": [0.016, 0.02]}}`.
        unreadable: later checkpoints, and why they cannot be read.
        spent: of a budget of minutes, by `TimeBudget`, if it had one.
    """

    checkpoint: Path | None
    step: int
    recipe: dict[str, Any]
    history: list[dict[str, Any]]
    unreadable: dict[Path, str]
    spent: dict[str, Any] | None = None


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best = path / "best"
        self._lock: int | None = None

    def start_from(self, resume: str, identity: dict[str, Any], recipe: dict[str, Any]) -> Start:
        """Which checkpoint to start from, if any; with auto, the last that can be read.

        `recipe` are the settings that this start is given.

        Raises:
            RunError: a run is there already, or has gone on from the chosen checkpoint; a
                checkpoint cannot be read, or belongs to another model or other data than `identity`
                says.
        """
        checkpoints = self.checkpoints()
        if resume == "never":
            if self.path.exists() and (not self.path.is_dir() or self._begun()):
                raise RunError(
                    f"--run {self.path}: exists already; go on with --resume auto, or choose "
                    "another --run"
                )
            return Start(None, 0, recipe, [], {})
        if resume != "auto":
            chosen = Path(resume)
            if checkpoints and chosen.resolve() != checkpoints[-1].resolve():
                raise RunError(
                    f"--resume {chosen}: {self.path} has a last checkpoint of its own, "
                    f"{checkpoints[-1].name}; use --resume auto, or another --run"
                )
            return _go_on(chosen, identity, recipe, {})
        unreadable: dict[Path, str] = {}
        for path in reversed(checkpoints):
            try:
                return _go_on(path, identity, recipe, unreadable)
            except Unreadable as error:
                unreadable[path] = error.reason
        if unreadable:
            names = ", ".join(path.name for path in unreadable)
            raise RunError(
                f"--resume auto: no checkpoint in {self.path} can be read ({names}); "
                "start anew in another --run"
            )
        return Start(None, 0, recipe, [], {})

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

    def checkpoints(self, until: float = math.inf) -> list[Path]:
        """The run's checkpoints up to a step, oldest first."""
        # A file of another name, such as a copy, is no checkpoint.
        named = {
            int(match[1]): path
            for path in (self.path / "checkpoints").glob("step-*.ckpt")
            if (match := re.fullmatch(r"step-(\d+)\.ckpt", path.name))
        }
        return [named[step] for step in sorted(named) if step <= until]

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step goes."""
        return self.path / "checkpoints" / f"step-{step:06d}.ckpt"

    def model(self, step: int) -> Path:
        """Where the model directory of a step goes."""
        return self.path / "models" / f"step-{step:06d}"

    def validations(self) -> dict[int, float]:
        """The loss of every validation on record, in nats, by its step, oldest first."""
        rows = read_lines(self.path / "metrics.jsonl")
        return {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}

    def prune(self, keep: int) -> None:
        """Removes all but the last checkpoints; one that cannot be removed stays."""
        for path in self.checkpoints()[:-keep]:
            with contextlib.suppress(OSError):
                path.unlink()

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
            last = (
                f"the last checkpoint is {good[-1].name}" if good else "there is no checkpoint yet"
            )
            raise RunError(
                f"{path}: cannot be saved ({error.strerror}); {last}; mend that, then go on with "
                "--resume auto"
            ) from error

    def broken(self, what: str, good_until: int) -> RunError:
        """The one line for a training that went wrong after the step `good_until`."""
        last, advice = "there is no good checkpoint yet", "train again"
        if good := self.checkpoints(good_until):
            last = f"the last good checkpoint is {good[-1]}"
            advice = f"go on from it with --resume {good[-1]}"
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
        """Whether more is there than a start that failed leaves behind."""
        return bool({p.name for p in self.path.iterdir()} - FAILED_START)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; none where there is no file."""
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed run
                rows.append(json.loads(line))
    return rows


class AtomicCheckpointIO(CheckpointIO):
    """Writes a checkpoint to a temporary sibling, flushes it to the disk and renames it.

    Then the oldest of the run's checkpoints are removed, all but `keep`.
    """

    def __init__(self, directory: RunDirectory, keep: int) -> None:
        self._directory, self._keep = directory, keep

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialises in memory first: torch's own file writer would hide a full disk.

        Raises:
            RunError: it cannot be written.
        """
        with self._directory.writing(Path(path)):
            buffer = io.BytesIO()
            torch.save(checkpoint, buffer)
            write_file(Path(path), buffer.getbuffer())
        self._directory.prune(self._keep)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Reads onto the CPU: a device that training fills has no room for a second copy."""
        return read_checkpoint(Path(path), whole=False)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint, if it is there."""
        Path(path).unlink(missing_ok=True)


class Unreadable(RunError):
    """A checkpoint that is damaged, or a file that is no checkpoint."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"--resume {path}: cannot be read as a checkpoint ({reason}); "
            "use another one, or start anew in another --run"
        )
        self.reason = reason


def read_checkpoint(path: Path, whole: bool = True) -> dict[str, Any]:
    """Reads a checkpoint, whose tensors stay on the disk until they are used.

    Args:
        path: of the file.
        whole: whether every byte is compared with the sums that torch stored beside them.

    Raises:
        RunError: not there, or not a checkpoint of this project; `Unreadable` if it is damaged.
    """
    if not path.is_file():
        raise RunError(
            f"--resume {path}: no such checkpoint; allowed: auto, never, or a .ckpt file"
        )
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip() if whole else None
    except Exception as error:  # torch raises what its unpickler happens to meet
        raise Unreadable(path, type(error).__name__) from None
    if damaged:
        raise Unreadable(path, f"{damaged} is damaged")
    if not isinstance(checkpoint, dict) or not {IDENTITY, SETTINGS} <= checkpoint.keys():
        raise RunError(f"--resume {path}: not a checkpoint of this project")
    return checkpoint


def changed_settings(history: list[dict[str, Any]]) -> list[str]:
    """A line for every change, such as `resumed at step 10 with optimizer.lr 0.016 -> 0.02`."""
    return [
        f"resumed at step {each['from_step']} with {name} {json.dumps(old)} -> {json.dumps(new)}"
        for each in history
        for name, (old, new) in each["changed"].items()
    ]


def highest_rates(start: Start) -> list[dict[str, Any]]:
    """The settings by which steps got their learning rates, from each step where they changed."""
    names = ("optimizer.lr", "optimizer.muon_lr", "optimizer.embedding_lr", "trainer.max_steps")
    names += ("minutes", "schedule.warmup_steps", "schedule.decay", "schedule.floor")
    settings, spans = _flat(start.recipe), []
    for each in [{"from_step": 0, "changed": {}}, *start.history]:
        settings |= {name: new for name, (_, new) in each["changed"].items()}
        if not spans or {*names} & each["changed"].keys():
            used = {name: settings[name] for name in names if settings.get(name) is not None}
            spans.append({"from_step": each["from_step"], **used})
    return spans


def _go_on(
    checkpoint: Path, identity: dict[str, Any], recipe: dict[str, Any], unreadable: dict[Path, str]
) -> Start:
    """The start from a checkpoint of the same model and data.

    Raises:
        RunError: it cannot be read, or is of another model or other data: every key that differs.
    """
    content, new = read_checkpoint(checkpoint), _flat(identity)
    old = _flat(content[IDENTITY])
    differing = [
        f"{key} is {_short(new.get(key))}, the checkpoint has {_short(old.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise RunError(
            f"--resume {checkpoint}: {'; '.join(differing)}; give what the run was started with, "
            "or start anew in another --run"
        )
    step, settings = content["global_step"], content[SETTINGS]
    first, history = settings["recipe"], settings["history"]
    last = _flat(first)
    for each in history:
        last |= {name: new for name, (_, new) in each["changed"].items()}
    now = _flat(recipe)
    changed = {name: [last.get(name), now[name]] for name in now if now[name] != last.get(name)}
    if changed:
        history = [*history, {"from_step": step, "changed": changed}]
    spent = content["callbacks"].get("TimeBudget")
    return Start(checkpoint, step, first, history, unreadable, spent)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12]
