"""Lines of the comparison: checkpoints, those that differ in their training seed only as one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eval.comparison.evidence import Checkpoint
from eval.comparison.figures import Figures, measure
from eval.identity import Described, distinct, sizes


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
    models: dict[tuple[str, str], list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        models.setdefault(_model(checkpoint, every_seed), []).append(checkpoint)
    entries = []
    for key, label in distinct({key: _described(own) for key, own in models.items()}).items():
        steps: dict[int, list[Checkpoint]] = {}
        for checkpoint in models[key]:
            steps.setdefault(checkpoint.step, []).append(checkpoint)
        entries += [Entry(label, step, own) for step, own in steps.items()]
    return sorted(entries, key=lambda entry: (natural(entry.label), entry.step))


def _model(checkpoint: Checkpoint, every_seed: bool) -> tuple[str, str]:
    """The model, and the run where training seeds are kept apart."""
    run = f"{checkpoint.name} {_place(checkpoint)}" if every_seed else ""
    return checkpoint.model_id, run


def _described(checkpoints: list[Checkpoint]) -> Described:
    first = checkpoints[0]
    digest = first.model_id.rpartition("-")[2]
    return Described(
        {checkpoint.name for checkpoint in checkpoints},
        ", ".join(first.about.get("mixers", ["seeds"])),
        first.recipe or sizes(first.about),
        f"{digest} {place}" if (place := _place(first)) else digest,
    )


def _place(checkpoint: Checkpoint) -> str:
    """The directory of its run; empty where none is at hand."""
    return str(checkpoint.run.path) if checkpoint.run else ""


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Sorts numbers in names by their size."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in re.split(r"(\d+)", text)]  # fmt: skip
