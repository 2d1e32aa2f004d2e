"""Checkpoints: what a run resumes from. A file is whole or it is not there.

`checkpoints/step-000800.ckpt` is Lightning's own content, written by us: Lightning's save is not
atomic where the temporary folder is on another disk. It holds tensors and plain values only, and is
read with `weights_only=True`. Model directories, not these, are for everything else.
"""

import contextlib
import dataclasses
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from arch import ModelConfig
from arch.files import write_file
from train.settings import OptimizerSettings, RunError

IDENTITY = "remnant"
"""Key under which a checkpoint says which model and data it belongs to."""


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
    found = re.fullmatch(r"step-(\d+)\.ckpt", path.name)
    return int(found[1]) if found else None


def check_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuses to resume with another model or other data.

    A setting that the checkpoint does not name is younger than it and has its default there.

    Raises:
        RunError: naming every key that differs.
    """
    new = _flat(wanted)
    old = {key: value for key, value in _defaults().items() if key in new} | _flat(found)
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
