"""A W&B sweep file: read, checked, and made into the runs of its grid.

Read are the grids that `wandb sweep` reads: `parameters` with values, and the flags in `command`.
Other methods run at W&B.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arch.errors import show_value
from train.commands.cli import CONFIG, flag_value, full_name
from train.commands.yaml_file import read_yaml
from train.settings import RunError

ARGUMENTS = "${args}"
MACRO = "${"
INTERPRETER = re.compile(r"(.*/)?((ba|da|z)?sh|python[\d.]*)")
"""Programs whose own -c takes a script, and no recipe."""
UNREAD = re.compile(r"(^|\s)(\w+=|--\w|-c\s)")
"""Variables, and flags within a script, in words before the first flag."""
KEYS = ("name", "method", "metric", "command", "parameters", "program", "project", "entity",
        "description")  # fmt: skip
"""Of a sweep file, that are followed here, or change no run."""
OF_PARAMETER = ("value", "values", "distribution")
RUNS = 10_000
"""Runs of a grid, at most."""
NAME_LETTERS = 120
"""Of a run's name before its seed: W&B takes 128 in all, file systems 255."""
SHORT = "{:.4g}".format
Trial = dict[str, Any]


def read_sweep(path: Path) -> dict[str, Any]:
    """A sweep file's content, checked.

    Raises:
        RunError: it is not there, or says something that this cannot run.
    """
    content = read_yaml(path.expanduser())
    parameters, command = content.get("parameters"), content.get("command")
    if not isinstance(parameters, dict) or not parameters:
        raise RunError(f"{path}: has no parameters; see train/sweeps for some sweeps")
    if content.get("method") != "grid":
        raise RunError(
            f"{path}: method {content.get('method')} runs at W&B only; allowed here: grid"
        )
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise RunError(f"{path}: command is {command}; it must be a list of words")
    if ARGUMENTS not in command:
        raise RunError(f"{path}: its command does not pass {ARGUMENTS} on; see train/sweeps")
    flags = fixed_flags(content)
    if macros := [word for word in flags if MACRO in word]:
        raise RunError(
            f"{path}: {macros[0]} is filled in at W&B only; write out what it stands for"
        )
    program = [word for word in command if word != ARGUMENTS]
    program = program[: len(program) - len(flags)]
    if unread := [word for word in program if UNREAD.search(word)]:
        raise RunError(
            f"{path}: command has {show_value(unread[0])}, which is followed at W&B only; write "
            "flags as words of their own, and set variables before train sweep"
        )
    if others := [str(key) for key in content if key not in KEYS]:
        raise RunError(f"{path}: {others[0]} is followed at W&B only; leave it out")
    name = content.get("name", path.stem)
    if not isinstance(name, str) or not name or {"..", ""} & {*re.split(r"[/\0]", name)}:
        raise RunError(f"{path}: name is {name!r}; it must be that of a folder")
    _check_parameters(path, parameters)
    return content


def fixed_flags(content: dict[str, Any]) -> list[str]:
    """The words of a sweep's command from its first flag on: what each run is given alike."""
    words = [word for word in content["command"] if word != ARGUMENTS]
    for i, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        recipe = word.partition("=")[0] in CONFIG and not INTERPRETER.fullmatch(before)
        if recipe or word.startswith("--"):
            return words[i:]
    return []


def _check_parameters(path: Path, parameters: dict[str, Any]) -> None:
    """Refuses a parameter without values, one that is no flag of its own, and too large a grid."""
    known: dict[str, str] = {}
    for name, parameter in parameters.items():
        values = parameter.get("values", []) if isinstance(parameter, dict) else None
        if not isinstance(values, list) or ("value" in parameter) == bool(values):
            raise RunError(f"{path}: parameter {name} needs a value or values, a list")
        if others := [str(key) for key in parameter if key not in OF_PARAMETER]:
            raise RunError(
                f"{path}: parameter {name}: {others[0]} is no part of a grid; leave it out"
            )
        flag = full_name(name)
        if flag in ("run", "resume") or flag in known:
            why = f"is {known[flag]} too" if flag in known else "is chosen for every run"
            raise RunError(f"{path}: parameter {name} {why}; leave it out")
        known[flag] = name
    if (count := math.prod(len(p.get("values", [0])) for p in parameters.values())) > RUNS:
        raise RunError(f"{path}: its grid has {count} runs; allowed: up to {RUNS}")


def list_trials(content: dict[str, Any]) -> Iterator[Trial]:
    """The values of the flags of each run of a grid."""
    choices = {
        name: parameter["values"] if "values" in parameter else [parameter["value"]]
        for name, parameter in content["parameters"].items()
    }
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def name_trials(content: dict[str, Any], out: Path) -> dict[Path, Trial]:
    """The trials of a sweep by their directories in `out`.

    Raises:
        RunError: two of them would be in one directory.
    """
    parameters = content["parameters"].items()
    varied = [name for name, about in parameters if len(about.get("values", [])) > 1]
    trials = list(list_trials(content))
    names = [trial_name(trial, varied) for trial in trials]
    if len({*names}) < len(names):  # numbers that differ beyond four digits
        names = [trial_name(trial, varied, repr) for trial in trials]
    runs: dict[Path, Trial] = {}
    for name, trial in zip(names, trials, strict=True):
        if out / name in runs:
            pair = [{n: t[n] for n in varied} for t in (runs[out / name], trial)]
            raise RunError(
                f"two runs would be {out / name}: {pair[0]} and {pair[1]}; make their values "
                "differ in letters or digits, or leave one out"
            )
        runs[out / name] = trial
    return runs


def trial_name(trial: Trial, varied: list[str], digits: Callable[[float], str] = SHORT) -> str:
    """A directory's name for a run: what varies within the sweep, the seed at the end.

    A long name is cut, and ends in eight digits of a hash before the seed.
    """
    names = sorted(varied, key=lambda name: name == "seed")
    values = [trial[name] for name in names]
    short = [digits(value) if isinstance(value, float) else flag_value(value) for value in values]
    words = [f"{name.rpartition('.')[2]}={word}" for name, word in zip(names, short, strict=True)]
    name = re.sub(r"[^A-Za-z0-9.=+_-]+", "", "_".join(words)) or "run"
    rest, mark, seed = name.rpartition("_seed=") if "seed" in varied else (name, "", "")
    if len(rest) > NAME_LETTERS:
        rest = f"{rest[: NAME_LETTERS - 9]}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"
    return f"{rest}{mark}{seed}"
