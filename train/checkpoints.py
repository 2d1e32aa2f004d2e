"""Checkpoints: written whole, read, and compared with the run that goes on from them.

A checkpoint is Lightning's own content, written by us: Lightning's save is not atomic where the
temporary folder is on another disk. It holds tensors and plain values only, and is read with
`weights_only=True`. Model directories, not these, are for everything else.
"""

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from arch.files import write_file
from train.settings import RunError
from train.verify import find_wrong_entry, is_finite

if TYPE_CHECKING:
    from train.rundir import RunDirectory

RECORD = "remnant"
"""Key under which a checkpoint has its model and data, `recipe` and `history`: see `Start`."""
KEPT = 2
"""Checkpoints that a run keeps: the last, and one for when that is damaged."""
FIXED = ("model.", "data_sha256", "seed", "optimizer.name", "optimizer.muon_mixing")
"""How the names begin of settings that no run changes on its way."""
GROUPS = ("optimizer.embedding_lr",)
"""Settings by which the optimiser has a group of weights more, which no run gets on its way."""
FindFault = Callable[[dict[str, Any]], str | None]


class Start(NamedTuple):
    """Where a run starts, and with which settings its steps are trained.

    Attributes:
        checkpoint: that it goes on from; None at the beginning.
        step: of the checkpoint.
        recipe: the settings that the run began with.
        history: what was changed since, oldest first: `{"from_step": 10, "changed":
            {"optimizer.lr": [0.016, 0.02]}}`.
        spent: of a budget of minutes, by `TimeBudget`, if it had one.
        unreadable: later checkpoints, and why they cannot be read.
    """

    checkpoint: Path | None
    step: int
    recipe: dict[str, Any]
    history: list[dict[str, Any]]
    spent: dict[str, Any] | None
    unreadable: dict[Path, str]


class Unreadable(RunError):
    """A checkpoint that is damaged, or a file that is no checkpoint."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"--resume {path}: cannot be read as a checkpoint ({reason}); "
            "use another one, or start anew in another --run"
        )
        self.reason = reason


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary sibling, flushes it to the disk and renames it.

    Then the oldest of the run's checkpoints are removed, all but `KEPT`.
    """

    def __init__(self, directory: "RunDirectory") -> None:
        super().__init__()
        self._directory = directory

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
        for old in self._directory.checkpoints()[:-KEPT]:
            with contextlib.suppress(OSError):
                old.unlink()

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Reads onto the CPU: a device that training fills has no room for a second copy."""
        return read_checkpoint(Path(path), whole=False)


def read_checkpoint(path: Path, whole: bool = True) -> dict[str, Any]:
    """Reads a checkpoint, whose tensors stay on the disk until they are used.

    Args:
        path: of the file.
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
    """Whether a checkpoint can be read, and all its weights are finite."""
    try:
        weights = read_checkpoint(path).get("state_dict")
    except RunError:
        return False
    return isinstance(weights, dict) and all(map(is_finite, weights.values()))


def read_start(
    path: Path, settings: dict[str, Any], fixed: dict[str, Any], find_fault: FindFault
) -> Start:
    """The start from a checkpoint, with the settings that a run is given now.

    Args:
        path: of the checkpoint.
        settings: of this start.
        fixed: its `model` and `data_sha256`.
        find_fault: says what is wrong with its tensors, if anything.

    Raises:
        RunError: it is of another model or other data: every key that differs; `Unreadable` if it
            is damaged.
    """
    content = read_checkpoint(path)
    if fault := find_wrong_entry(content):
        raise Unreadable(path, fault)
    record, step = content[RECORD], content["global_step"]
    first, history = record["recipe"], record["history"]
    settings = {**settings, "init_from": first.get("init_from")}  # those weights are used no more
    last = _flat({**first, **{name: record[name] for name in fixed}})
    for each in history:
        last |= {name: new for name, (_, new) in each["changed"].items()}
    now = _flat({**settings, **fixed})
    changed = {
        name: [last.get(name), now.get(name)]
        for name in {**now, **last}
        if now.get(name) != last.get(name)
    }
    refused = [name for name in changed if name.startswith(FIXED)]
    refused += [name for name in GROUPS if None in changed.get(name, ())]
    if refused:
        old, new = ({n: str(changed[n][i])[:40] for n in refused} for i in (0, 1))
        differing = "; ".join(f"{n} is {new[n]}, the checkpoint has {old[n]}" for n in refused)
        raise RunError(
            f"--resume {path}: {differing}; give what the run was started with, or start anew in "
            "another --run"
        )
    if fault := find_fault(content):
        raise Unreadable(path, fault)
    if changed:
        history = [*history, {"from_step": step, "changed": changed}]
    return Start(path, step, first, history, content["callbacks"].get("TimeBudget"), {})


def changed_settings(history: list[dict[str, Any]]) -> list[str]:
    """A line for every change, such as `resumed at step 10 with optimizer.lr 0.016 -> 0.02`."""
    return [
        f"resumed at step {each['from_step']} with {name} {json.dumps(old)} -> {json.dumps(new)}"
        for each in history
        for name, (old, new) in each["changed"].items()
    ]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
