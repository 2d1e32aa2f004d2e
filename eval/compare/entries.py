"""Lines of the comparison: checkpoints, those that differ in their training seed only as one."""

import json
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eval.compare.evidence import Checkpoint
from eval.compare.figures import Figures, measure
from eval.inversion.fields import ARCHITECTURE, SEED

NOT_COMPARED = {
    "run", "seed", "resume", "precision", "compile", "save_steps", "save_every", "checkpoint_every",
    "keep_checkpoints", "validate_every", "validate_tokens", "log_every", "wandb", "wandb_project",
    "wandb_group", "wandb_tags", "trainer.accelerator", "trainer.devices", "trainer.strategy",
    "trainer.num_nodes", "trainer.max_steps", "batch.micro",
}  # fmt: skip
"""Settings of a run in which seeds of one recipe may differ, and their prefixes."""


@dataclass
class Entry:
    """One line of the table.

    Attributes:
        label: of the model, told apart from the others.
        step: of training.
        checkpoints: one, or one of each seed.
    """

    label: str
    step: int
    checkpoints: list[Checkpoint]

    @property
    def about(self) -> dict[str, Any]:
        """What its model is."""
        return self.checkpoints[0].about

    @cached_property
    def figures(self) -> Figures:
        """Everything measured."""
        return measure(self.checkpoints)


def enter(checkpoints: Iterable[Checkpoint], every_seed: bool = False) -> list[Entry]:
    """The lines, model by model in the order of their names, then by step.

    Args:
        checkpoints: of any models.
        every_seed: keep training seeds apart.
    """
    models: dict[Hashable, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        models.setdefault(_model(checkpoint, every_seed), []).append(checkpoint)
    entries = []
    for key, label in _labels(models).items():
        steps: dict[int, list[Checkpoint]] = {}
        for checkpoint in models[key]:
            steps.setdefault(checkpoint.step, []).append(checkpoint)
        entries += [Entry(label, step, own) for step, own in steps.items()]
    return sorted(entries, key=lambda entry: (natural(entry.label), entry.step))


def _model(checkpoint: Checkpoint, every_seed: bool) -> Hashable:
    """Equal for checkpoints of one line of training, or of its seeds."""
    fields = tuple(_text(checkpoint.about.get(field)) for field in ARCHITECTURE)
    if every_seed:
        place = checkpoint.run.path if checkpoint.run else None
        return (checkpoint.name, str(place), fields)
    run = checkpoint.run
    if run is None or not run.settings:
        return (SEED.sub("", checkpoint.name), "", fields)
    return (SEED.sub("", checkpoint.name), _text(_settings(checkpoint)), fields)


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings of its run that make it what it is, by their flags' names."""
    flat: dict[str, Any] = {}
    for name, value in (checkpoint.run.settings if checkpoint.run else {}).items():
        section = value if isinstance(value, dict) else None
        items = {f"{name}.{n}": v for n, v in section.items()} if section else {name: value}
        flat |= {n: v for n, v in items.items() if n not in NOT_COMPARED}
    return flat


def _labels(models: dict[Hashable, list[Checkpoint]]) -> dict[Hashable, str]:
    """A name for each model: its checkpoints' own, and what tells it apart where that is not it."""
    labels = {}
    for key, own in models.items():
        names = {checkpoint.name for checkpoint in own}
        bare = SEED.sub("", own[0].name) or _plain(own[0].about.get("mixers", "seeds"))
        labels[key] = names.pop() if len(names) == 1 else bare
    for label in {name for name in labels.values() if list(labels.values()).count(name) > 1}:
        alike = [key for key in models if labels[key] == label]
        for number, key in enumerate(alike, start=1):
            told = _differences(models[key][0], [models[other][0] for other in alike])
            labels[key] = f"{label} ({told or number})"
    return labels


def _differences(checkpoint: Checkpoint, alike: list[Checkpoint]) -> str:
    """The settings and fields of a checkpoint that others of the same name do not share."""

    def known(one: Checkpoint) -> dict[str, Any]:
        return _settings(one) or {field: one.about.get(field) for field in ARCHITECTURE}

    own = known(checkpoint)
    told = [
        f"{name.rpartition('.')[2]} {_plain(value)}"
        for name, value in own.items()
        if len({_text(known(other).get(name)) for other in alike}) > 1
    ]
    if told:
        return ", ".join(told)
    place = (checkpoint.run.path if checkpoint.run else checkpoint.path) or ""
    return str(place)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Sorts numbers in names by their size."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in re.split(r"(\d+)", text)]  # fmt: skip
