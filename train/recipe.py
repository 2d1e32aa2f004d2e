"""All that describes a run, in sections; what of it is recorded, and what it must be given."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from arch import ModelConfig
from tokenizer import PackedData
from train.settings import (
    RECORDED_UNLESS,
    UNRECORDED,
    BatchSettings,
    OptimizerSettings,
    RunError,
    RunSettings,
    ScheduleSettings,
    TrainerSettings,
)

NEEDED = {
    "data": "a directory of packed data, from python -m tokenizer pack, or a text file or folder",
    "run": "a directory for the run, for example runs/first",
}
"""Flags that a run cannot do without."""


@dataclass
class Recipe:
    """All that describes a run, in the sections of a YAML recipe.

    Raises:
        RunError: there are too few steps for the schedule.
    """

    run: RunSettings = field(default_factory=RunSettings)
    model: ModelConfig = field(default_factory=ModelConfig)
    batch: BatchSettings = field(default_factory=BatchSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    def __post_init__(self) -> None:
        if self.schedule.decay == "wsd" and not self.run.minutes:
            self.schedule.cooldown(self.trainer.max_steps)

    def check(self) -> None:
        """Reads settings that were assigned in Python, also paths and values of numpy, as flags.

        Raises:
            RunError: there is no such setting, or its value is not allowed.
        """
        for name in ("run", "batch", "optimizer", "schedule", "trainer"):
            section, prefix = getattr(self, name), "" if name == "run" else f"{name}."
            hints = get_type_hints(type(section))
            for key, value in list(vars(section).items()):
                if key not in hints:
                    raise RunError(f"--{prefix}{key}: there is none; fit --help lists all settings")
                plain = os.fspath(value) if isinstance(value, os.PathLike) else value
                plain = plain.tolist() if hasattr(plain, "tolist") else plain
                setattr(section, key, list(plain) if isinstance(plain, tuple) else plain)
                words = get_args(hints[key])
                if get_origin(hints[key]) is Literal and plain not in words:
                    allowed = ", ".join(map(str, words))
                    raise RunError(f"--{prefix}{key} is {plain!r}; it must be one of {allowed}")
                if isinstance(plain, float) and int in (hints[key], *get_args(hints[key])):
                    raise RunError(f"--{prefix}{key} is {plain}; it must be a whole number")
            section.__post_init__()
        self.__post_init__()

    def given(self, flag: Literal["data", "run"]) -> str:
        """The value of a flag that a run cannot do without.

        Raises:
            RunError: it is missing.
        """
        value = getattr(self.run, flag)
        if value is None:
            raise RunError(f"--{flag} is missing; give {NEEDED[flag]}")
        return value

    def open_data(self) -> PackedData:
        """The data that the recipe names.

        Raises:
            RunError: it names none, or its vocabulary or layout is not the recipe's.
            tokenizer.CorpusError: it is not there, or not packed data.
        """
        data, wanted = PackedData(self.given("data")), self.run.layout
        size, layout = data.meta["vocab_size"], data.meta["layout"]
        if size != self.model.vocab_size:
            raise RunError(
                f"--data {data.path}: packed with a vocabulary of {size}, --model.vocab_size is "
                f"{self.model.vocab_size}; make them equal"
            )
        fraction, packed = self.run.valid_fraction, data.meta["valid_fraction"]
        if fraction not in (None, packed):
            known, advice = "a validation split of its source", "leave it out"
            if packed is not None:
                known = packed
                advice = "pack it anew with --valid-fraction, or give a text with another --run"
            raise RunError(
                f"--valid_fraction {fraction}: {data.path} was packed with {known}; {advice}"
            )
        if wanted not in (None, layout):
            advice = " --context N" if wanted == "rows" else ""
            raise RunError(
                f"--data {data.path}: its layout is {layout}, the recipe's is {wanted}; pack it "
                f"with --layout {wanted}{advice}, or train with --layout {layout}"
            )
        return data

    def plain(self) -> dict[str, Any]:
        """The recipe as YAML holds it."""
        sections = dataclasses.asdict(self)
        return json.loads(json.dumps({**sections.pop("run"), **sections}))

    def recorded(self) -> dict[str, Any]:
        """What model directories and checkpoints record of it: all that is not `UNRECORDED`."""
        return {
            name: value
            for name, value in self.plain().items()
            if name not in UNRECORDED
            and not (name in RECORDED_UNLESS and value == RECORDED_UNLESS[name])
        }


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their names as flags, such as `optimizer.lr`, out of those in sections."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
