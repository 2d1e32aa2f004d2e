"""Checkpoints: read as what they are, or refused.

A checkpoint is Lightning's own content. It holds tensors and plain values only, and is read with
`weights_only=True`. Model directories, not these, are for everything else.
"""

import zipfile
from pathlib import Path
from typing import Any

import torch

from train.settings import RunError

RECORD = "remnant"
"""Key under which a checkpoint has its model and data, `recipe` and `history`."""


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
        whole: whether every byte is compared with the sums that torch stored beside them.

    Raises:
        RunError: not there, or not a checkpoint of this project; `Unreadable` if it is damaged.
    """
    if not path.exists():
        raise RunError(
            f"--resume {path}: no such checkpoint; allowed: auto, never, or a .ckpt file"
        )
    if not path.is_file():
        raise Unreadable(path, "a directory")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip() if whole else None
    except Exception as error:  # torch raises what its unpickler happens to meet
        raise Unreadable(path, type(error).__name__) from None
    if damaged:
        raise Unreadable(path, f"{damaged} is damaged")
    if not isinstance(checkpoint, dict) or RECORD not in checkpoint:
        raise Unreadable(path, "not a checkpoint of this project")
    return checkpoint


def weights_are_good(path: Path) -> bool:
    """Whether a checkpoint can be read, and none of its weights is NaN."""
    try:
        weights = read_checkpoint(path).get("state_dict")
    except RunError:
        return False
    tensors = [*weights.values()] if isinstance(weights, dict) else [None]
    return all(isinstance(value, torch.Tensor) and not value.isnan().any() for value in tensors)
