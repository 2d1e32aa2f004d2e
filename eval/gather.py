"""What directories hold of models: model directories, runs, and rows of evidence about them."""

import fnmatch
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from arch import Cost, ModelConfig, describe
from arch.directory import check_weights
from arch.files import read_json
from eval import RequestError, identity
from eval.rows import SHARDS, Row, read_rows
from eval.tables import group

METRICS = "metrics.jsonl"
UNSEARCHED = {"wandb", "checkpoints", "__pycache__"}


@dataclass(frozen=True)
class RunRecord:
    """A run directory: its settings, and the figures that it wrote while training.

    Attributes:
        path: of the directory.
        settings: its config.yaml; empty without one.
        metrics: rows of figures in the order of steps.
    """

    path: Path
    settings: dict[str, Any]
    metrics: list[dict[str, Any]]

    @cached_property
    def seconds(self) -> dict[int, float]:
        """Time spent in training until each reported step, by the speeds reported."""
        spent, tokens, by_step = 0.0, 0, {0: 0.0}
        for row in self.metrics:
            if row.get("tokens_per_second") and "tokens_seen" in row:
                spent += (row["tokens_seen"] - tokens) / row["tokens_per_second"]
                tokens = row["tokens_seen"]
                by_step[row["step"]] = spent
        return by_step

    def at(self, step: int, figure: str) -> float | None:
        """A figure as last reported at a step; None where it was not."""
        known = [row[figure] for row in self.metrics if row["step"] == step and figure in row]
        return known[-1] if known else None


@dataclass
class Saved:
    """One model at one training step, and all that is known of it.

    Attributes:
        name: of its run.
        step: how far it was trained.
        model_id: equal for the training steps and seeds of one model (`eval.identity`).
        about: fields of rows' `checkpoint`, as far as they are known: mixers, d_model, ...
        recipe: what its model_id stands for, as far as it is known.
        meta: the meta.json of its directory; empty without one.
        path: its directory; None where only rows or a run are known.
        config: of the model, if it is known.
        run: its run; None where no run directory is known.
        rows: the evidence about it.
    """

    name: str
    step: int
    model_id: str
    about: dict[str, Any]
    recipe: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    config: ModelConfig | None = None
    run: RunRecord | None = None
    rows: list[Row] = field(default_factory=list)

    @cached_property
    def weights(self) -> str | None:
        """The hash of its weights' file; of a model without one, as its rows give it."""
        file = self.path / "model.safetensors" if self.path else None
        if file is None or not file.is_file():
            return self.about.get("weights_sha256")
        return identity.file_sha256(file)

    @property
    def folder(self) -> Path:
        """Its directory, of a model that was read from one."""
        assert self.path
        return self.path

    @property
    def tokens_seen(self) -> int | None:
        """How much it was trained on."""
        return self.meta.get("tokens_seen", 0 if self.step == 0 and self.config else None)

    def seconds(self, step: int) -> float | None:
        """Time that its run spent in training until a step."""
        return self.run.seconds.get(step) if self.run else None

    def flops(self, tokens: float | None) -> float | None:
        """Spent in training on so many tokens, forward and backward."""
        if self.config is None or tokens is None:
            return None
        return float(_cost(self.config.to_json()).training_flops) * tokens


def gather_models(places: Iterable[str | Path]) -> list[Saved]:
    """Every checkpoint in the places, each with the rows about it, and those that rows alone name.

    Rows take the `model_id` of their checkpoint. Of rows with equal keys the last counts.

    Args:
        places: model directories, run directories, results directories, or directories of those.

    Raises:
        RequestError: nothing is there, or a file that cannot be read.
        ModelError: a model directory whose files do not hold what they must.
    """
    runs: dict[Path, RunRecord] = {}
    saved: dict[Path, Saved] = {}
    rows: dict[str, Row] = {}
    for place in map(Path, places):
        paths = list(_walk(place))
        if not paths:
            raise RequestError(
                f"{place}: nothing to compare here; give a model directory, a run, results, or a "
                "directory that holds some"
            )
        for path in paths:
            if path.name == METRICS:
                _run(path.parent, runs)
            elif path.name != "config.json":
                rows.update((row["key"], row) for row in read_rows([path]))
            elif (key := path.parent.resolve()) not in saved:
                saved[key] = _of_directory(path.parent, runs)
    checkpoints = list(saved.values())
    whose = {id(checkpoint.run) for checkpoint in checkpoints}
    checkpoints += filter(None, (_last(run) for run in runs.values() if id(run) not in whose))
    return _with_rows(checkpoints, [row for row in rows.values() if "checkpoint" in row])


def labelled(checkpoints: Iterable[Saved], every_seed: bool = False) -> dict[str, list[Saved]]:
    """Checkpoints by the label of their model, which tells it apart from the others.

    Args:
        checkpoints: of any models.
        every_seed: keep training seeds apart.
    """
    models = group(
        checkpoints, lambda c: (c.model_id, f"{c.name} {_directory(c)}" if every_seed else "")
    )
    labels = identity.distinct({key: _described(several) for key, several in models.items()})
    return {label: models[key] for key, label in labels.items()}


def finite(value: Any) -> bool:
    """Whether it is a number that can be shown and averaged."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _with_rows(checkpoints: Sequence[Saved], rows: Sequence[Row]) -> list[Saved]:
    asked = {(row["checkpoint"]["name"], row["checkpoint"]["step"]) for row in rows}
    known = {(c.name, c.step, c.weights): c for c in checkpoints if (c.name, c.step) in asked}
    for row in rows:
        about = row["checkpoint"]
        name, step, weights = about["name"], about["step"], about.get("weights_sha256")
        if (name, step, weights) not in known and (name, step, None) in known:
            known[name, step, weights] = known.pop((name, step, None))  # a run without models
        new = Saved(name, step, about["model_id"], about)
        checkpoint = known.setdefault((name, step, weights), new)
        checkpoint.rows.append(row | {"checkpoint": about | {"model_id": checkpoint.model_id}})
    return list({id(c): c for c in (*checkpoints, *known.values())}.values())


def _walk(place: Path) -> Iterator[Path]:
    """The files that say what is in a place."""
    if place.is_file() and place.suffix == ".jsonl":
        yield place
    for folder, names, files in os.walk(place):
        if "config.json" in files and "meta.json" in files:
            yield Path(folder, "config.json")
            names.clear()
            continue
        yield from (Path(folder, file) for file in (METRICS, *sorted(fnmatch.filter(files, SHARDS)))
                    if file in files)  # fmt: skip
        names[:] = sorted(n for n in names if n not in UNSEARCHED and not n.startswith("."))


def _run(path: Path, runs: dict[Path, RunRecord]) -> RunRecord:
    key = path.resolve()
    if key not in runs:
        runs[key] = RunRecord(path, identity.run_settings(path), list(_metrics(path / METRICS)))
    return runs[key]


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # a running training writes the last one
        try:
            row = json.loads(line)
            yield row | {"step": int(row["step"])}
        except (json.JSONDecodeError, KeyError, TypeError, ValueError):
            raise RequestError(f"{path}, line {number}: not a row of a run's figures") from None


def _of_directory(path: Path, runs: dict[Path, RunRecord]) -> Saved:
    config = ModelConfig.from_json((path / "config.json").read_text("utf-8"), str(path))
    weights = path / "model.safetensors"
    if weights.is_file():  # a comparison needs none
        check_weights(weights, config, str(path))
    meta = read_json(path / "meta.json")
    above = path.resolve().parent.parent
    run = _run(above, runs) if (above / METRICS).is_file() else None
    name, step = str(meta.get("name", path.name)), int(meta.get("step", 0))
    about = _about(config) | {"trained": step > 0, "val_loss": meta.get("val_loss")}
    recipe = identity.recipe(
        meta, config, lambda: identity.file_sha256(weights) if weights.is_file() else ""
    )
    model_id = identity.model_id(name, recipe)
    return Saved(name, step, model_id, about, recipe, meta, path, config, run)


def _last(run: RunRecord) -> Saved | None:
    """The end of a run of which no model is at hand; None where nothing is reported yet."""
    judged = [row for row in run.metrics if "val_loss" in row] or run.metrics
    if not judged:
        return None
    last, known = judged[-1], run.settings.get("model")
    config = ModelConfig.from_json(json.dumps(known), str(run.path)) if known else None
    about = _about(config) if config else {}
    name = run.path.resolve().name
    recipe = identity.recipe({"name": name, "recipe": run.settings}, config, str)
    model_id = identity.model_id(name, recipe)
    return Saved(name, last["step"], model_id, about, recipe, last, None, config, run)


def _about(config: ModelConfig) -> dict[str, Any]:
    names = ("d_model", "n_layers", "context", "init", "embedding_std")
    about = {"mixers": list(config.mixers), **{name: getattr(config, name) for name in names}}
    return about | {"parameters": _cost(config.to_json()).parameters}


@lru_cache(maxsize=256)
def _cost(config: str) -> Cost:
    """Of a model; what depends on the length of a sequence is taken at its whole context."""
    return describe(ModelConfig.from_json(config, "config")).cost


def _directory(checkpoint: Saved) -> str:
    """The directory of its run; empty where none is at hand."""
    return str(checkpoint.run.path) if checkpoint.run else ""


def _described(checkpoints: Sequence[Saved]) -> identity.Described:
    first = checkpoints[0]
    return identity.Described(
        {checkpoint.name for checkpoint in checkpoints},
        ", ".join(first.about.get("mixers", ["seeds"])),
        first.recipe or identity.sizes(first.about),
        " ".join(filter(None, [first.model_id.rpartition("-")[2], _directory(first)])),
    )
