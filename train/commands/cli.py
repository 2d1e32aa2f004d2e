"""Recipes and the command line, in settings: jsonargparse over the sections of a recipe.

Nothing in a recipe names a class, and every flag but those of the run has its section's prefix.
"""

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from arch.errors import printable
from arch.storage.values import OTHER_BASES
from train.commands.yaml_file import read_yaml
from train.processes.launcher import check_numbers, is_first
from train.recipe import Recipe, to_plain
from train.settings import RunError, RunSettings

FOLDER = Path(__file__).parents[1] / "configs"
SECTIONS: dict[str, Any] = {
    field.name: field.default_factory
    for field in dataclasses.fields(Recipe)
    if field.name != "run"  # the flags of the run have no prefix
}
CONFIG = ("-c", "--config")
STEPS = "--trainer.max_steps"
CLOCK = re.compile(r"[-+]?[0-9_]+(:[0-9.]+)+")
SWITCHES = {field.name for field in dataclasses.fields(RunSettings) if field.type is bool}
SYNONYMS = {
    "learning_rate": "optimizer.lr", "bs": "batch.size", "batch_size": "batch.size",
    "steps": "trainer.max_steps", "epochs": "trainer.max_steps", "tokens": "trainer.max_steps",
    "layers": "model.n_layers", "width": "model.d_model", "hidden_size": "model.d_model",
    "gpus": "trainer.devices", "output_dir": "run", "out": "run", "dataset": "data",
    "warmup": "schedule.warmup_steps", "grad_clip": "optimizer.clip",
    "gradient_accumulation_steps": "batch.micro", "eval_steps": "validate_every",
    "max_iters": "trainer.max_steps",
}  # fmt: skip
"""Settings by the names that they have in other trainers."""
COMMANDS = {
    "fit": "Trains a model on packed data, into a run directory.",
    "plan": "Prints the memory, time and disk that a run would need.",
}


class Parser(ArgumentParser):
    """Reports what it cannot parse in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises instead of printing the usage."""
        raise RunError(_one_line(" ".join(message.split())))


def read_recipe(*words: Any) -> Recipe:
    """The recipe that the flags of `fit` describe, such as `--config flat --optimizer.lr 1e-3`.

    Args:
        words: texts, or values of flags such as paths and numbers; or a single list of them.

    Raises:
        RunError, arch.ModelError: a flag, a file or a value is not allowed, in one line.
    """
    if len(words) == 1 and isinstance(words[0], list | tuple):
        words = (*words[0],)
    return read_command("fit", words)


def read_command(command: str, words: Sequence[Any]) -> Recipe:
    """The recipe that a command's flags describe.

    Raises:
        RunError, arch.ModelError: as for `read_recipe`.
    """
    words = [*map(flag_value, words)]
    parser = _parser(command, described=not {"-h", "--help"}.isdisjoint(words))
    words = list(_full_names(words))
    values = parser.parse_args(_recipes_first(words))
    for name in SECTIONS:
        if not isinstance(values[name], Namespace):
            raise RunError(
                f"--{name} is {str(values[name])[:100]}; it must be a section of settings"
            )
        if path := values[name].get("__path__"):
            raise RunError(
                f"--{name} {path}: a section is not read from a file of its own; write it as "
                f"{name}: in a file for --config, or give its settings as flags"
            )
    settings = {field.name: values[field.name] for field in dataclasses.fields(RunSettings)}
    if settings["recipe"] is None and values["config"]:
        settings["recipe"] = Path(str(values["config"][-1])).stem
    _refuse_clock_times(words, values)
    minutes, given = settings["minutes"], [word.partition("=")[0] for word in words]
    if command == "fit":
        for config in values["config"] or ():
            _follow_moved(Path(str(config)), settings, given)
    if minutes is not None and STEPS in given:
        check_numbers()
        if is_first():
            said = f"{STEPS} has no effect: --minutes {minutes:g} ends the run; give one of them"
            print(said, file=sys.stderr)
    given_by_section = {name: values[name].as_dict() for name in SECTIONS}
    _refuse_nulls(RunSettings, settings, "")
    for name, section in SECTIONS.items():
        _refuse_nulls(section, given_by_section[name], f"{name}.")
    sections = {name: section(**given_by_section[name]) for name, section in SECTIONS.items()}
    return Recipe(run=RunSettings(**settings), **sections)


def flag_value(value: object) -> str:
    """A value as a flag takes it: null, true, 0.001, [flat, attention]."""
    value = to_plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _follow_moved(config: Path, settings: dict[str, Any], given: list[str]) -> None:
    """Takes the packed text of a run that was copied or moved from beside its config.

    Raises:
        RunError: nothing says which run is meant, that of the config's place or the one it names.
    """
    here, run = config.parent, read_yaml(config, "--config ").get("run")
    begun = config.name == "config.yaml" and (here / "metrics.jsonl").is_file()
    if not begun or not isinstance(run, str):
        return
    named = Path(run).expanduser()
    if named.exists() and named.samefile(here):
        return
    if settings["run"] == run and "--run" not in given:
        raise RunError(
            f"--config {config}: names the run {run}, and lies in {here}; to go on with the run "
            f"that lies there add --run {here}, for another one add another --run"
        )
    packed = here / "data"
    if "--data" not in given and settings["data"] == str(named / "data") and packed.is_dir():
        settings["data"] = str(packed)


def _refuse_nulls(section: Any, values: dict[str, Any], prefix: str) -> None:
    """Refuses settings without a value, such as an empty `lr:`, that cannot do without one."""
    for field in dataclasses.fields(section):
        if values[field.name] is None and type(None) not in get_args(field.type):
            raise RunError(f"--{prefix}{field.name} is null; give a value, or leave it out")


def _refuse_clock_times(words: list[str], values: Namespace) -> None:
    """Refuses `1:30` for a number: YAML 1.1, by which jsonargparse reads, takes it for 90.

    And `[010]`, a list of 8. A loader that `set_loader` gives it does not help: it reads a number
    again by its own.
    """
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        value = value if equals else following
        odd = [CLOCK.fullmatch(value)]
        if value.startswith("["):
            odd = [OTHER_BASES.fullmatch(part) for part in re.split(r"[\[\],\s]+", value)]
        if word.startswith("--") and any(odd):
            read = values.get(name.removeprefix("--"))
            if not isinstance(read, str):
                raise RunError(f"{name} is {value}, which is read as {read}; give decimal digits")


@cache
def _parser(command: str, described: bool) -> Parser:
    """The parser of a command; what its help says of each setting is read where it is wanted."""
    set_parsing_settings(docstring_parse_attribute_docstrings=described)
    parser = Parser(prog=f"python -m train {command}", description=COMMANDS[command])
    parser.add_argument(
        *CONFIG, action="config", help="a recipe's name, or a YAML file of settings; flags win"
    )
    parser.add_class_arguments(RunSettings, None, as_group=True)
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)
    return parser


def list_recipes() -> dict[str, str]:
    """Every recipe's name, and the first line of its opening comment."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def check_recipe(name: str) -> Path:
    """The file of a recipe, checked; a bare name is a recipe of the project, else it is a file.

    Raises:
        RunError: neither is there, or the file does not hold settings.
    """
    known = list(list_recipes())
    path = FOLDER / f"{name}.yaml" if name in known else Path(name).expanduser()
    if not path.is_file():
        alike = difflib.get_close_matches(path.stem, known, n=1)
        guess = f"did you mean {alike[0]}? " if alike else ""
        raise RunError(
            f"--config {name}: no such recipe or file; {guess}recipes: {', '.join(known)}; "
            "or give the path of a YAML file"
        )
    content = read_yaml(path, "--config ")
    if "config" in content:
        raise RunError(f"--config {path}: names another recipe; leave `config` out")
    for section, values in content.items():
        if "." in section and section.partition(".")[0] in content:
            raise RunError(f"--config {path}: {section} is set twice; write it in its section")
        if section in SECTIONS and not isinstance(values, dict):
            raise RunError(
                f"--config {path}: --{section} is {repr(values)[:100]}; it must be a section "
                "of settings"
            )
    return path


def setting_names() -> list[str]:
    """The names of all settings, as flags without their dashes."""
    sections = {"": RunSettings, **{f"{name}.": section for name, section in SECTIONS.items()}}
    return [
        prefix + field.name for prefix, s in sections.items() for field in dataclasses.fields(s)
    ]


def full_name(name: str) -> str:
    """A setting's whole name: `optimizer.lr` for `lr`, `batch.size` for `batch-size`."""
    known, name = setting_names(), name.replace("-", "_")
    meant = [n for n in known if name in (n.rpartition(".")[2], n.replace(".", "_"))]
    return name if name in known or len(meant) != 1 else meant[0]


def _full_names(words: list[str]) -> Iterator[str]:
    """The words, with every flag by its whole name, and a switch without a value switched on."""
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name, equals, value = word.removeprefix("--").partition("=")
        name = full_name(name)
        if name in SWITCHES and not equals and following.startswith("--"):
            equals, value = "=", "true"
        yield f"--{name}{equals}{value}" if word.startswith("--") else word


def _recipes_first(words: list[str]) -> list[str]:
    """The words, recipes by their files and before all flags, which win wherever they stand."""
    recipes, others = [], []
    for before, word in zip(["", *words], words, strict=False):
        flag, equals, value = word.partition("=")
        if before in CONFIG:
            recipes.append(str(check_recipe(word)))
        elif flag in CONFIG:
            recipes.append(f"{flag}={check_recipe(value)}" if equals else word)
        else:
            others.append(word)
    return [*recipes, *others]


def _one_line(message: str) -> str:
    """jsonargparse's message about a flag or a key of a recipe, in this project's words."""
    unknown = (
        r"unrecognized arguments: -*([^\s=]+)|(?:Group '(\S+)' does not )?accept option '(\S+)'"
        r"|Option '(\S+)' is not accepted"
    )
    if match := re.search(unknown, message):
        key = match[1] or ".".join(filter(None, match.groups()[1:]))
        alike = difflib.get_close_matches(key, setting_names(), n=1)
        meant = SYNONYMS.get(key.replace("-", "_")) or next(iter(alike), "")
        guess = f"did you mean --{meant}? " if meant else ""
        return f"there is no setting --{key}; {guess}python -m train fit --help lists them all"
    single = r'key "([^"]+)": Expected an? (.+?)\. Got value: ?(.*)'
    union = r'key "([^"]+)": Does not validate against any .*?\[(.*?)\] Errors:.* value: (.*)'
    if match := re.search(single, message) or re.search(union, message):
        key, kind, value = match.groups()
        kind = re.sub(r"<class '(\w+)'>|typing\.Literal\[([^]]*)\]", r"\1\2", kind)
        lists = "[100, 200]" if key == "save_steps" else "[first, second]"
        examples = {"tuple": "a list such as [flat]", "list": f"a list such as {lists}"}
        expected = examples.get(kind, kind).replace("NoneType", "null")
        return f"--{key} is {printable(value)}; expected: {expected}"
    return printable(message)
