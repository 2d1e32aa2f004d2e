"""Where a run goes on: the checkpoint that it starts from, and what was changed since it began."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from arch.storage.runs import saved_steps
from train.recipe import flat
from train.rundir.checkpoints import RECORD, Unreadable, read_checkpoint
from train.rundir.rundir import RunDirectory
from train.rundir.verify import find_wrong_entry
from train.settings import FIXED, GROUPS, INIT_HASH, RunError

FindFault = Callable[[dict[str, Any]], str | None]


class ResumePoint(NamedTuple):
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

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that a run began with, and how they were changed since."""
        return {"recipe": self.recipe, "history": self.history}


def choose_start(
    directory: RunDirectory,
    resume: str,
    settings: dict[str, Any],
    fixed: dict[str, Any],
    find_fault: FindFault,
) -> ResumePoint:
    """Which checkpoint to start from, if any; with auto, the last that can be read.

    A run that began from another run's checkpoint starts from that one until it has its own.

    Args:
        resume: never, auto or a checkpoint.
        settings: that this start is given.
        fixed: the model and the data, which a resumed run must share with its checkpoint.
        find_fault: says what is wrong with the tensors of a checkpoint, if anything.

    Raises:
        RunError: the run has a later checkpoint than the chosen one, or has begun otherwise; the
            other run's is gone; or as `read_start`.
    """
    checkpoints, beginning = directory.checkpoints(), ResumePoint(None, 0, settings, [], None, {})
    if resume == "never":
        return beginning
    if resume != "auto":
        _refuse_other_run(directory, Path(resume))
        return read_start(Path(resume), settings, fixed, find_fault)
    if not checkpoints and (origin := _origin(directory)):
        if not origin.exists():
            raise RunError(
                f"--resume auto: {directory.path} has no checkpoint yet and began from {origin}, "
                "which is gone; put that back, or choose another --run"
            )
        return read_start(origin, settings, fixed, find_fault)
    unreadable: dict[Path, str] = {}
    for path in reversed(checkpoints):
        try:
            start = read_start(path, settings, fixed, find_fault)
            return start._replace(unreadable=unreadable)
        except Unreadable as error:
            unreadable[path] = error.reason
    if unreadable:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in unreadable.items())
        raise RunError(
            f"--resume auto: no checkpoint in {directory.path} can be read ({reasons}); "
            "start anew in another --run"
        )
    return beginning


def _refuse_other_run(directory: RunDirectory, chosen: Path) -> None:
    """Refuses a checkpoint that a run in the directory would not go on from.

    Raises:
        RunError: the run has a later one, or has begun otherwise.
    """
    checkpoints = directory.checkpoints()
    if checkpoints and chosen.resolve() != checkpoints[-1].resolve():
        raise RunError(
            f"--resume {chosen}: {directory.path} has a last checkpoint of its own, "
            f"{checkpoints[-1].name}; use --resume auto, or another --run"
        )
    if not checkpoints and directory.begun() and chosen != _origin(directory):
        raise RunError(
            f"--resume {chosen}: {directory.path} has files of a run already, and no "
            "checkpoint; choose another --run, or put the run's own into its checkpoints folder"
        )


def _origin(directory: RunDirectory) -> Path | None:
    """The checkpoint that the last start of a run was given, if any."""
    given = directory.last_settings().get("resume")
    return Path(given) if isinstance(given, str) and given not in ("auto", "never") else None


def read_start(
    path: Path, settings: dict[str, Any], fixed: dict[str, Any], find_fault: FindFault
) -> ResumePoint:
    """The start from a checkpoint, with the settings that a run is given now.

    Args:
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
    known = {name: first[name] for name in (INIT_HASH,) if name in first}
    settings = {**settings, "init_from": first.get("init_from"), **known}  # used no more
    last = _last_settings({**first, **{name: record[name] for name in fixed}}, history)
    changed = _differences(last, flat({**settings, **fixed}))
    if changed.get("machine.code", [""])[0] is None:  # older versions did not record it
        del changed["machine.code"]
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
    return ResumePoint(path, step, first, history, content["callbacks"].get("TimeBudget"), {})


def changes_since(record: dict[str, Any], start: ResumePoint) -> dict[str, list[Any]]:
    """The settings, old and new, that a start changes from a saved model's, by its meta.json.

    They are all of them where no run has written it.
    """
    try:
        saved = _last_settings(record["recipe"], record["history"])
    except (AttributeError, KeyError, TypeError, ValueError):
        saved = {}
    changed = _differences(saved, _last_settings(start.recipe, start.history))
    if changed.get(INIT_HASH, [""])[0] is None:  # older versions did not record it
        del changed[INIT_HASH]
    return changed


def last_model(directory: RunDirectory, start: ResumePoint) -> int:
    """The step of a run's last model; 0 where there is none.

    It is 0 for a run of minutes, of whose steps only a checkpoint says how many there will be.
    """
    step = 0 if start.recipe.get("minutes") else max(saved_steps(directory.path), default=0)
    return step if (directory.model(step) / "meta.json").is_file() else 0


def _differences(last: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    names = (name for name in {**now, **last} if now.get(name) != last.get(name))
    return {name: [last.get(name), now.get(name)] for name in names}


def _last_settings(recipe: dict[str, Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings that a run had last, by their names as flags."""
    last = flat(recipe)
    for change in history:
        last |= {name: new for name, (_, new) in change["changed"].items()}
    return last


def changed_settings(history: list[dict[str, Any]]) -> list[str]:
    """A line for every change, such as `resumed at step 10 with optimizer.lr 0.016 -> 0.02`."""
    return [
        f"resumed at step {change['from_step']} with {name} {json.dumps(old)} -> {json.dumps(new)}"
        for change in history
        for name, (old, new) in change["changed"].items()
    ]
