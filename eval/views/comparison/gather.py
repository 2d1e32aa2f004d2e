"""Finds models and runs in directories: what training wrote of them."""

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from arch import ModelConfig
from arch.storage.files import file_sha256, read_json
from arch.storage.runs import SHIPPED, find_model, run_of, walk_folders
from arch.storage.values import YamlLoader
from eval.messages import RequestError, say_once
from eval.models import TRUST_CODE
from eval.models.identity import model_id, training_code, training_length, training_seed
from eval.rows.misfits import parse_json
from eval.rows.store import SHARDS, Row, read_rows, whole_lines

if TYPE_CHECKING:
    from arch import Cost

METRICS = "metrics.jsonl"
EVALUATED = "eval"
"""The folder of a run that holds the rows of its evaluations."""
SIZES = ("d_model", "n_layers", "context", "init", "embedding_std")
"""What a record says of a model's configuration, beside its mixers."""
RECIPE = ("data", "dropout", "minutes", "init_from")
"""Settings beside sections by which runs are of two models, and no training seeds of one."""
NUMBERS = ("val_loss", "val_bits_per_byte", "tokens_seen", "tokens_per_second", "seconds")
"""Figures of a run's record that are compared."""
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
        """Time spent in training until each reported step, or by the speeds if it is untold."""
        spent, tokens, by_step = 0.0, 0, {0: 0.0}
        for row in self.metrics:
            if row.get("tokens_per_second") and finite(row.get("tokens_seen")):
                spent += (row["tokens_seen"] - tokens) / row["tokens_per_second"]
                tokens = row["tokens_seen"]
                by_step[row["step"]] = spent
            if finite(row.get("seconds")):
                spent = by_step[row["step"]] = row["seconds"]
        return by_step


@dataclass
class Saved:
    """One model at one training step, as training left it.

    Attributes:
        checkpoint: what rows say of it: name, step, model_id, mixers, d_model, ...
        meta: its meta.json; of a run without models, its last row of figures.
        path: its directory; None where only a run is known.
        config: of the model, if it is known.
        run: its run; None where no run directory is known.
    """

    checkpoint: dict[str, Any]
    meta: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    config: ModelConfig | None = None
    run: RunRecord | None = None

    @property
    def tokens_seen(self) -> int | None:
        """How much it was trained on."""
        untold = self.checkpoint.get("tokens_seen", None if self.checkpoint["step"] else 0)
        return self.meta.get("tokens_seen", untold)

    @property
    def step(self) -> int:
        """Of its training, also where its line is of several (`pool_ends`)."""
        return self.checkpoint.get("own_step", self.checkpoint["step"])

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of its training, as far as they are known."""
        recipe = self.meta.get("recipe")
        return recipe if isinstance(recipe, dict) else self.run.settings if self.run else {}

    @property
    def flops(self) -> float | None:
        """Spent in training, forward and backward; pads, which are computed, count as well."""
        batch = self.recipe.get("batch")
        size: Any = batch.get("size") if isinstance(batch, dict) else None
        if self.config is None:
            return None
        known = type(size) is int and size > 0
        positions = self.step * size * self.config.context if known else self.tokens_seen
        if positions is None:
            return None
        return float(_cost(self.config.to_json()).training_flops) * positions


def gather_models(sources: Iterable[str | Path]) -> list[Saved]:
    """Every model directory in the places, and the end of each run that has none.

    Args:
        sources: model directories, run directories, or directories of those.

    Raises:
        RequestError: a place that holds no model, run or row, or a file that cannot be read.
        ModelError: a model directory whose files do not hold what they must.
    """
    runs: dict[Path, RunRecord] = {}
    saved: dict[Path, Saved] = {}
    for path in _files(sources):
        if path.name == METRICS:
            _run(path.parent, runs)
        elif path.name == "config.json" and (key := path.parent.resolve()) not in saved:
            saved[key] = _of_directory(path.parent, runs)
    whose = {id(entry.run) for entry in saved.values()}
    ends = (_last(run) for run in runs.values() if id(run) not in whose)
    return [*saved.values(), *filter(None, ends)]


def gather_rows(sources: Iterable[str | Path]) -> list[Row]:
    """Every row about a model in the places, but of no control; of equal keys the last counts.

    Of a model that is given without its run, these are also the rows that `fit --eval_every` wrote.

    Raises:
        RequestError: a place that holds no model, run or row, or a file that cannot be read.
    """
    found = list(_files(sources))
    files = [path for path in found if path.name not in (METRICS, "config.json")]
    walked = {path.parent.resolve() for path in files}
    names: dict[Path, set[str]] = {}
    for model in (path.parent.resolve() for path in found if path.name == "config.json"):
        if (beside := run_of(model) / EVALUATED) not in walked:
            names.setdefault(beside, set()).add(model.name)
    rows = read_rows(files)
    for folder, known in names.items():
        rows[:0] = [
            row
            for row in read_rows(sorted(folder.glob(SHARDS)))
            if Path(row.get("checkpoint", {}).get("path", "")).name in known
        ]
    return of_models(list({row["key"]: row for row in rows if "checkpoint" in row}.values()))


def of_models(rows: Iterable[Row]) -> list[Row]:
    """Rows without those of controls, which were made of a model and are no checkpoints of it."""
    return [row for row in rows if row["kind"] != "recovery" or not row["control"]]


def of_present_models(rows: Iterable[Row], saved: Iterable[Saved]) -> list[Row]:
    """Rows without those of a model directory that holds other weights by now; a line says so.

    A run that was trained again would count as two training seeds.

    Args:
        saved: of `gather_models`.
    """
    known, hashes = {}, dict[Path, str]()
    for entry in saved:
        if entry.path and (weights := entry.path / "model.safetensors").is_file():
            known[entry.path.resolve()] = entry.checkpoint, weights
    present, earlier = [], list[str]()
    for row in rows:
        about = row["checkpoint"]
        path = Path(about.get("path") or "/").resolve()
        now, weights = known.get(path, ({}, path))
        if all(now.get(name) == about[name] for name in ("name", "model_id", "step")):
            if path not in hashes:
                hashes[path] = file_sha256(weights)
            if hashes[path] != about["weights_sha256"]:
                earlier.append(about["path"])
                continue
        present.append(row)
    if earlier:
        said = f"{len(earlier)} rows of models that were trained again since, such as {earlier[0]}"
        say_once(f"left out: {said}")
    return present


def finite(value: Any) -> bool:
    """Whether it is a number that can be shown and averaged."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _files(sources: Iterable[str | Path]) -> Iterator[Path]:
    """The files that say what is in places."""
    for source in sources:
        named = str(source).startswith(SHIPPED)
        named |= "@" in str(source) and not Path(source).exists()
        found = list(_walk(find_model(source) if named else Path(source)))
        if not found:
            raise RequestError(
                f"{source}: nothing to compare here; give a model directory, a run, results, or a "
                "directory that holds some"
            )
        yield from found


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file() and path.suffix in (".jsonl", ".parquet"):
        yield path
    for folder, names, files in walk_folders(path):
        if "config.json" in files and "meta.json" in files:
            yield folder / "config.json"
            names.clear()
            continue
        found = (METRICS, *sorted(fnmatch.filter(files, SHARDS)))
        yield from (folder / file for file in found if file in files)
        names[:] = sorted(n for n in names if n not in UNSEARCHED and not n.startswith("."))


def _run(path: Path, runs: dict[Path, RunRecord]) -> RunRecord:
    key = path.resolve()
    if key not in runs:
        rows = sorted(_metrics(path / METRICS), key=lambda row: row["step"])
        runs[key] = RunRecord(path, read_settings(path), rows)
    return runs[key]


def read_settings(run: Path) -> dict[str, Any]:
    """The settings of a run directory; empty where it has no config.yaml.

    Raises:
        RequestError: the file holds none.
    """
    file = run / "config.yaml"
    try:
        text = file.read_text("utf-8") if file.is_file() else ""
        settings = yaml.load(text, YamlLoader) or {}
        if isinstance(settings, dict):
            return settings
    except (yaml.YAMLError, ValueError, RecursionError):
        pass
    raise RequestError(f"{file}: not YAML of settings; is it the config of a run?")


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's record; those of two runs in one file are refused."""
    losses: dict[int, Any] = {}
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            row = parse_json(line)
            step, known = row["step"], (row[n] for n in NUMBERS if row.get(n) is not None)
            wrong = any(type(value) not in (int, float) for value in (step, *known))
            if wrong or step != int(step):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RequestError(f"{path}, line {number}: not a row of a run's figures") from None
        step = row["step"] = int(step)
        loss = row.get("val_loss")
        if loss is not None and losses.setdefault(step, loss) != loss:
            raise RequestError(
                f"{path}, line {number}: another validation of step {step}, so it is of two runs; "
                "give the file of each run in a directory of its own"
            )
        yield row


def _of_directory(path: Path, runs: dict[Path, RunRecord]) -> Saved:
    # with torch, which rows alone need not wait for
    from arch.storage.directory import check_meta, read_config
    from arch.storage.weights import check_weights

    config = read_config(path / "config.json", trust_code=TRUST_CODE.get())
    weights = path / "model.safetensors"
    if weights.is_file():  # a comparison needs none
        check_weights(weights, config, str(path))
    meta = read_json(path / "meta.json")
    above = run_of(path.resolve())
    run = _run(above, runs) if (above / METRICS).is_file() else None
    meta = {"name": path.name, "step": 0} | meta
    check_meta(meta, path / "meta.json")
    known = meta.get("model_id") or not weights.is_file()
    about = _checkpoint(meta, config, "" if known else file_sha256(weights), path)
    return Saved(about, meta, path, config, run)


def _last(run: RunRecord) -> Saved | None:
    """The end of a run of which no model is at hand; None where nothing is reported yet."""
    judged = [row for row in run.metrics if "val_loss" in row] or run.metrics
    if not judged:
        return None
    last, known = judged[-1], run.settings.get("model")
    config = _config_of_run(known, run.path / "config.yaml") if known else None
    facts = {
        n: v
        for n, v in run.settings.items()
        if (isinstance(v, dict) and n != "trainer") or (n in RECIPE and v)
    }
    facts |= {"data": Path(str(facts["data"])).name} if "data" in facts else {}
    recipe = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    about = {"name": run.path.resolve().name, "step": last["step"]}
    about |= {"val_loss": last.get("val_loss"), "recipe": run.settings}
    return Saved(_checkpoint(about, config, recipe, run.path), last, None, config, run)


def _config_of_run(settings: Any, file: Path) -> ModelConfig:
    from arch.mixers import refuse_foreign

    config = ModelConfig.from_json(json.dumps(settings, default=str), str(file))
    refuse_foreign(config.mixers, file.parent, TRUST_CODE.get(), str(file))
    return config


def _checkpoint(
    meta: dict[str, Any], config: ModelConfig | None, digest: str, path: Path
) -> dict[str, Any]:
    about = {"name": meta["name"], "step": int(meta["step"]), "model_id": model_id(meta, digest)}
    about |= {"path": str(path), "seed": training_seed(meta), "val_loss": meta.get("val_loss")}
    about |= {"max_steps": training_length(meta)} | training_code(meta)
    about |= {"mixers": list(config.mixers) if config else []}
    about |= {n: getattr(config, n, None) for n in SIZES}
    return about | ({"parameters": _cost(config.to_json()).parameters} if config else {})


@lru_cache(maxsize=256)
def _cost(config: str) -> "Cost":
    """The cost of a model; what depends on the length of a sequence is taken at its context."""
    from arch import describe

    return describe(ModelConfig.from_json(config, "config")).cost
