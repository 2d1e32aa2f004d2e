"""The settings in which compared models differ: columns beside their figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.messages import RequestError
from eval.views.comparison.gather import Saved

SECTIONS = ("model", "batch", "optimizer", "schedule", "trainer")
"""Of a run's settings, those with settings of their own."""
ALONE = ("data", "init_from", "dropout", "precision", "minutes")
"""Single settings that change what is learnt."""
MACHINE = ("micro", "accelerator", "strategy", "devices", "num_nodes", "deterministic")
"""Settings that change what a run computes on, not what is learnt."""
FIRST = ("model.mixers", "model.d_model", "model.n_layers", "optimizer.lr", "batch.size")
"""Shown first, in this order."""
SIZES = ("mixers", "d_model", "n_layers", "context")
"""What is known of a model that is known by rows alone."""
PACKED_IN_RUN = "data"
"""The folder of a run in which it has the data that it packed of a text."""

Settings = dict[str, Any]
"""By their names with dots, as in `optimizer.lr`."""


def settings_of(saved: Saved) -> Settings:
    """The settings of one model: of its run, or of the model alone where no run is known."""
    given = dict(saved.run.settings) if saved.run else {}
    if saved.config:
        given["model"] = json.loads(saved.config.to_json())
    elif "model" not in given:
        known = ((name, saved.checkpoint.get(name)) for name in SIZES)
        given["model"] = {name: value for name, value in known if value is not None}
    for section in SECTIONS:
        if not isinstance(given.get(section) or {}, dict):
            where = saved.run.path / "config.yaml" if saved.run else saved.path
            raise RequestError(f"{where}: {section} is {given[section]!r}; give settings by name")
    found = {
        f"{section}.{name}": value
        for section in SECTIONS
        for name, value in (given.get(section) or {}).items()
        if name not in MACHINE
    }
    found |= {name: given[name] for name in ALONE if name in given}
    if found.get("data"):
        found["data"] = _describe_data(Path(str(found["data"])), saved.meta)
    if found.get("init_from") and (digest := saved.recipe.get("init_from_sha256")):
        found["init_from"] = f"{Path(str(found['init_from'])).resolve().name} ({str(digest)[:8]})"
    return {name: _written(name, value) for name, value in found.items()}


def shared_settings(models: Sequence[Saved]) -> Settings:
    """The settings that models of one line have in common, as seeds of one model do."""
    first, *others = map(settings_of, models)
    return {n: v for n, v in first.items() if all(other.get(n, v) == v for other in others)}


def keep_differing(settings: Sequence[Settings]) -> list[Settings]:
    """The settings of each line that have several values among the lines."""
    values: dict[str, set[Any]] = {}
    for known in settings:
        for name, value in known.items():
            values.setdefault(name, set()).add(value)
    differ = sorted((n for n, v in values.items() if len(v) > 1),
                    key=lambda n: FIRST.index(n) if n in FIRST else len(FIRST))  # fmt: skip
    return [{name: known.get(name) for name in differ} for known in settings]


def _describe_data(path: Path, meta: Settings) -> str:
    """The name of data, or of the text that a run packed itself, and a hash of them, if known."""
    known, source = meta.get("data_sha256"), meta.get("data_source")
    own = source and path.name == PACKED_IN_RUN and path.parent.name == meta.get("name")
    name = Path(str(source)).name if own else path.name
    return f"{name} ({str(known)[:8]})" if known else name


def _written(name: str, value: Any) -> Any:
    """A setting as a cell of a table; text of what is no plain value, a word for none."""
    if value is None:
        return "random" if name == "init_from" else "unset"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, str | int | float) else str(value)
