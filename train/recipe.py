"""All that describes a run, in sections; what of it is recorded, needed, and in a model's id."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from arch import ModelConfig
from arch.errors import LARGEST, show_value
from arch.patterns import describe_kinds, list_alternatives
from arch.storage.runs import without_seed
from tokenizer import PackedData
from train.settings import (
    INIT_HASH,
    NOT_IN_MODEL_ID,
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
        RunError, arch.ModelError: as `check`.
    """

    run: RunSettings = field(default_factory=RunSettings)
    model: ModelConfig = field(default_factory=ModelConfig)
    batch: BatchSettings = field(default_factory=BatchSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Reads all settings, also those that were assigned in Python, as flags are read.

        Raises:
            RunError, arch.ModelError: there is no such section or setting, a value is not allowed,
                or there are too few steps for the schedule.
        """
        sections = get_type_hints(Recipe)
        for name, section in vars(self).items():
            if name not in sections:
                homes = [home for home in sections if name in get_type_hints(sections[home])]
                meant = [f"recipe.{home}.{name}" for home in homes] or [*sections]
                raise RunError(
                    f"recipe.{name}: there is no such section; give {' or '.join(meant)}"
                )
            if not isinstance(section, sections[name]):
                raise RunError(
                    f"recipe.{name} is {show_value(section)}; it must be a "
                    f"{sections[name].__name__}, whose settings are recipe.{name}.NAME"
                )
            hints, prefix = get_type_hints(type(section)), "" if name == "run" else f"{name}."
            for key, value in list(vars(section).items()):
                if key not in hints:
                    raise RunError(f"--{prefix}{key}: there is none; fit --help lists all settings")
                value = _read_value(f"--{prefix}{key}", value, hints[key])
                object.__setattr__(section, key, value)  # that of the model is frozen
            section.__post_init__()
        if self.schedule.decay == "wsd" and not self.run.minutes:
            self.schedule.cooldown(self.trainer.max_steps)

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


def model_id(name: str, config: ModelConfig, settings: dict[str, Any], data_sha256: str) -> str:
    """Equal for the steps and the seeds of one recipe on the same data: `flat-3f2a91c07d`.

    It is the name without its seed, and ten hexadecimal digits. Fields of the configuration at
    their defaults do not count, so that a field that is added changes no id. Nor does the path of
    weights that a run started from, where their hash is known.

    Args:
        settings: that the run began with; sections are dictionaries.
    """
    built, defaults = dataclasses.asdict(config), dataclasses.asdict(ModelConfig())
    facts = {
        f"model.{name}": value
        for name, value in built.items()
        if value != defaults[name] and name not in NOT_IN_MODEL_ID
    }
    facts |= {flag: value for flag, value in flat(settings).items() if flag not in NOT_IN_MODEL_ID}
    if INIT_HASH in facts:
        del facts["init_from"]
    text = json.dumps(facts | {"data": data_sha256}, sort_keys=True, default=str)
    return f"{without_seed(name)}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def to_plain(value: Any) -> Any:
    """A path as its text, and a number or an array of NumPy as Python's own; others as they are."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _read_value(flag: str, value: Any, hint: Any) -> Any:
    """A value as a flag gives it, by the type of its setting: a whole number may stand for another.

    Raises:
        RunError: it is of another type.
    """
    value, kinds = to_plain(value), list_alternatives(hint)
    for kind in kinds:
        if parts := get_args(kind):  # of a list or a tuple, each entry
            if isinstance(value, list | tuple):
                return get_origin(kind)(_read_value(flag, entry, parts[0]) for entry in value)
        elif type(value) is kind or (isinstance(kind, str) and value == kind):
            return value
        elif kind is float and type(value) is int and abs(value) < LARGEST:
            return float(value)
    allowed = describe_kinds([get_origin(kind) or kind for kind in kinds])
    raise RunError(f"{flag} is {show_value(value)}; it must be {allowed}")
