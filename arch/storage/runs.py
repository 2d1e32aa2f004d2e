"""Which model directory is meant by a path, and which name the seeds of one model share.

A path is that of a model directory, a run's (its last model), RUN@STEP or RUN@best; or `remnant:`
and the name of a trained model of the repository.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arch.errors import ModelError, printable
from arch.storage.files import read_json

BEST = "best"
MODELS_IN_RUN = "models"
"""The folder of a run that holds its model directories."""
SHIPPED, PRETRAINED, HUB = "remnant:", "hf:", "hub:"
"""How a source begins: a model of the repository, of transformers; a model or data of the hub."""
MODELS = Path(__file__).resolve().parents[2] / "models"
"""The trained models of the repository, each a model directory."""
SEED = re.compile(r"(?:^|[-_. ])s(?:eed)?[-_.= ]?\d+(?= \[|$)")
"""The training seed at the end of a model's name: `flat-s0`, `mixers=flat_seed=1`."""
SHOWN = 8
"""Runs of a folder that an error names, at most."""


def find_model(path: str | Path) -> Path:
    """The model directory that a path names.

    A run names its last model, `RUN@400` that of a step, and `RUN@best` that of the lowest
    validation loss: `RUN/best` where the run keeps one (`--save_best`), else the best of its saved
    models. `remnant:NAME` is in `MODELS`. Any other path is returned as it is, for its reader to
    judge.

    Raises:
        ModelError: the run has no such model, the path is a folder of runs, or no model of the
            repository has that name.
    """
    name, path = str(path), Path(path)
    if name.startswith(SHIPPED):
        return _shipped(name)
    run, at, wanted = name.rpartition("@")
    if at and not path.exists() and (wanted == BEST or wanted.isdecimal()):
        return _of_run(Path(run), wanted)
    if (path / "meta.json").is_file():
        return path
    steps = saved_steps(path)
    if steps:
        return steps[max(steps)]
    runs = [] if not path.is_dir() else [p for p in sorted(path.iterdir()) if saved_steps(p)]
    if runs and not (path / "config.json").is_file():
        names = " ".join(map(str, runs[:SHOWN])) + " ..." * (len(runs) > SHOWN)
        raise ModelError(f"{path}: is a folder of runs; give one of them or several: {names}")
    return path


def run_of(model: Path) -> Path:
    """The directory of the run that RUN/models/NAME, or RUN/best, is a model of."""
    return model.parent.parent if model.parent.name == MODELS_IN_RUN else model.parent


def without_seed(name: str) -> str:
    """A model's name without the training seed at its end: `flat` for `flat-s0`."""
    return SEED.sub("", name)


def saved_steps(run: Path) -> dict[int, Path]:
    """The model directories of a run, or of its folder `models`, by step in ascending order."""
    found = (*run.glob("models/step-*"), *run.glob("step-*")) if run.is_dir() else ()
    numbers = {path: path.name.removeprefix("step-") for path in found}
    return dict(sorted((int(n), path) for path, n in numbers.items() if n.isdecimal()))


def shipped_models() -> list[Path]:
    """The model directories of the repository; none where it is installed without its checkout."""
    return sorted(path.parent for path in MODELS.glob("*/meta.json"))


def _shipped(name: str) -> Path:
    """The model directory of `remnant:NAME`."""
    known = {path.name: path for path in shipped_models()}
    if path := known.get(name.removeprefix(SHIPPED)):
        return path
    if not known:
        raise ModelError(f"{name}: {MODELS} is not there; run from a checkout of the repository")
    allowed = ", ".join(SHIPPED + other for other in known)
    raise ModelError(f"{printable(name, 80)}: there is no such model; allowed: {allowed}")


def _of_run(run: Path, wanted: str) -> Path:
    """The model of a step, or the best."""
    steps, best = saved_steps(run), run / BEST
    if wanted != BEST:
        if int(wanted) in steps:
            return steps[int(wanted)]
        known = ", ".join(map(str, steps)) or "none"
        raise ModelError(f"{run}@{wanted}: there is no model of that step; steps saved: {known}")
    if (best / "meta.json").is_file():
        return best
    metas = {path: read_json(path / "meta.json") for path in steps.values()}
    known = {path: meta for path, meta in metas.items() if _validation_loss(meta) < math.inf}
    if not known:
        raise ModelError(f"{run}@{BEST}: no saved model has a validation loss; give {run}@STEP")
    tokens = [meta.get("val_tokens") for meta in known.values()]  # of which the last ones compare
    alike = [path for path, count in zip(known, tokens, strict=True) if count == tokens[-1]]
    return min(alike, key=lambda path: _validation_loss(known[path]))


def _validation_loss(meta: dict[str, Any]) -> float:
    """The validation loss of a model by its meta.json; infinite where none is on record."""
    loss = meta.get("val_loss")
    return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else math.inf


def walk_folders(top: str | Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As `os.walk`, through links to folders that lie elsewhere, too.

    Of each folder its path, the names of folders in it, which may be changed, and those of files.
    """
    whole, followed = Path(top).resolve(), set[Path]()
    for folder, names, files in os.walk(top, followlinks=True):
        for name in [name for name in names if Path(folder, name).is_symlink()]:
            target = Path(folder, name).resolve()
            known = target in followed or target.is_relative_to(whole)
            if known or whole.is_relative_to(target):  # it is walked anyway, or leads back here
                names.remove(name)
            followed.add(target)
        yield Path(folder), names, files
