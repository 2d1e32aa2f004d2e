"""The command line of `fit` and `plan`: LightningCLI's parser over this project's own sections.

The classes are fixed: nothing in a recipe names a class, and every flag has its section's prefix.
"""

import dataclasses
import difflib
import inspect
import re
from typing import NoReturn

from jsonargparse import set_parsing_settings
from lightning.pytorch import Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from arch import ModelConfig
from train.errors import RunError
from train.plan import print_plan
from train.run import Recipe, Run
from train.settings import BatchSettings, OptimizerSettings, RunSettings, ScheduleSettings

SECTIONS = {
    "model": ModelConfig,
    "batch": BatchSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
}
TRAINER = (
    "accelerator",
    "strategy",
    "devices",
    "num_nodes",
    "max_steps",
    "deterministic",
)
"""Lightning's own settings that a recipe may change; the others follow from its sections."""


class Parser(LightningArgumentParser):
    """Reports what it cannot parse in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises instead of printing the usage."""
        raise RunError(_one_line(" ".join(message.split())))


class Commands(Trainer):
    """Where the parser finds the commands and the flags that they alone have."""

    def plan(self, measure: bool = True) -> None:
        """Prints the memory, time and disk that a run would need.

        Args:
            measure: Whether a few steps are timed on this machine, for the estimate of the time.
        """


class TrainingCLI(LightningCLI):
    """`fit` and `plan`, and nothing else."""

    def __init__(self, arguments: list[str]) -> None:
        self.signal: int | None = None
        set_parsing_settings(docstring_parse_attribute_docstrings=True)
        super().__init__(
            args=arguments,
            trainer_class=Commands,
            parser_kwargs={
                "prog": "python -m train",
                "fit": {"description": "Trains a model on packed data, into a run directory."},
            },
            parser_class=Parser,
            save_config_callback=None,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The two; what `fit` passes to the trainer is not for the command line."""
        return {"fit": set(inspect.signature(Trainer.fit).parameters) - {"self"}, "plan": set()}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The flags without a prefix."""
        parser.add_class_arguments(RunSettings, None, as_group=True)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One group of flags per section."""
        for name, section in SECTIONS.items():
            parser.add_class_arguments(section, name)
        others: set[str | int] = {*inspect.signature(Trainer.__init__).parameters}
        parser.add_class_arguments(
            Trainer,
            "trainer",
            fail_untyped=False,
            instantiate=False,
            skip=others - {"self", *TRAINER},
        )
        parser.set_defaults({"trainer.max_steps": 1000, "trainer.devices": 1})

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses what it is given; Lightning's own would warn that it is not sys.argv."""
        self.config = parser.parse_args(args)  # pyright: ignore[reportArgumentType]

    def _set_seed(self) -> None:
        """The run seeds itself, just before it draws the weights."""

    def instantiate_classes(self) -> None:
        """Builds the run; it is checked, and nothing is written yet."""
        self.config_init = self.config
        values = self.config[self.config["subcommand"]]
        settings = {field.name: values[field.name] for field in dataclasses.fields(RunSettings)}
        self.recipe = Recipe(
            run=RunSettings(**settings),
            trainer=values["trainer"].as_dict(),
            **{name: section(**values[name].as_dict()) for name, section in SECTIONS.items()},
        )
        self.trainer = self.model = self.datamodule = None  # pyright: ignore

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs it; Lightning's own would call the trainer's method of that name."""
        if subcommand == "plan":
            print_plan(self.recipe, self.config["plan"]["measure"])
        else:
            self.signal = Run(self.recipe).fit()


def _one_line(message: str) -> str:
    """jsonargparse's message about a flag or a key of a recipe, in this project's words."""
    if found := re.search(r"unrecognized arguments: -*([^\s=]+)|accept option '([^']+)'", message):
        key = found[1] or found[2]
        near = difflib.get_close_matches(key, _settings(), n=1)
        guess = f"did you mean --{near[0]}? " if near else ""
        return f"there is no setting --{key}; {guess}python -m train fit --help lists them all"
    if found := re.search(r'key "([^"]+)": Expected an? (.+?)\. Got value: (.*)', message):
        key, kind, value = found.groups()
        kind = re.sub(r"<class '(\w+)'>|typing\.Literal\[(.*)\]", r"\1\2", kind)
        numbers = key == "save_steps"
        examples = {"tuple": "[flat]", "list": "[100, 200]" if numbers else "[first, second]"}
        if kind in examples:
            kind = f"a list such as {examples[kind]}"
        return f"--{key} is {value}; expected: {kind}"
    union = r'key "([^"]+)": Does not validate against any .*?\[(.*?)\] Errors:.* value: (.*)'
    if found := re.search(union, message):
        key, kinds, value = found.groups()
        kinds = re.sub(r"<class '(\w+)'>|typing\.Literal\[([^]]*)\]", r"\1\2", kinds)
        return f"--{key} is {value}; expected: {kinds.replace('NoneType', 'null')}"
    return message


def _settings() -> list[str]:
    sections = {"": RunSettings, **{f"{name}.": section for name, section in SECTIONS.items()}}
    return [
        *(prefix + field.name for prefix, s in sections.items() for field in dataclasses.fields(s)),
        *(f"trainer.{name}" for name in TRAINER),
        "measure",
    ]
