"""python -m eval COMMAND: questions asked of model directories.

The parser of a command is made of its function's signature and docstring (`eval.commands`).
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from docstring_parser import parse

import arch.threads  # noqa: F401 - before torch
from eval import RequestError, tasks

if TYPE_CHECKING:
    from eval.commands import Flag, Result

EXAMPLES = """\
examples:
  python -m eval loss runs/*/models/* --corpus data/tinystories
  python -m eval generate runs/flat/models/step-000800 --prompt "Once upon a time"
  python -m eval invert runs/flat/models/step-000000 runs/flat/models/step-000800 --out results/flat
  python -m eval curves runs/flat/models/step-000800 --corpus data/tinystories --out results/curves
  python -m eval probe runs/flat/models/step-000800 --corpus data/tinystories --out results/probes
  python -m eval geometry runs/flat/models/step-000800 --hidden 1 3 --out results/geometry
  python -m eval retrieval runs/flat/models/step-000800 --corpus data/tinystories --out pairs
  python -m eval bits runs/flat/models/* --corpus data/tinystories --out results/bits
  python -m eval lens runs/flat/models/* --text "Once upon a time" --out results/lenses
  python -m eval lenses
  python -m eval solvers --names adam
  python -m eval summary results/flat --csv flat.csv
  python -m eval compare runs results --markdown table.md --plot curves.svg
  python -m eval claims run --group mixers --models runs
  python -m eval report results/flat --out flat.html
  python -m eval explore runs
"""

COMMANDS = {
    "loss": "eval.commands.language:loss",
    "generate": "eval.commands.language:generate",
    "invert": "eval.commands.inversion:invert",
    "solvers": "eval.commands.inversion:list_solvers",
    "curves": "eval.commands.inversion:curves",
    "probe": "eval.commands.probes:probe",
    "geometry": "eval.commands.probes:geometry",
    "retrieval": "eval.commands.probes:retrieval",
    "bits": "eval.commands.bits:bits",
    "lens": "eval.commands.lenses:lens",
    "lenses": "eval.commands.lenses:list_lenses",
    "summary": "eval.commands.tables:summary",
    "compare": "eval.commands.tables:compare",
    "report": "eval.commands.tables:report",
    "explore": "eval.commands.explore:explore",
    "claims list": "eval.commands.claims:list_claims",
    "claims show": "eval.commands.claims:show_claims",
    "claims run": "eval.commands.claims:run_claims",
    "claims table": "eval.commands.claims:table_of_claims",
    "claims curves": "eval.commands.claims:curves_of_claims",
}
"""The function of each command; it is imported when its command is given."""

GROUPS = {"claims": "Lists the sources' claims, asks them again, and judges them in three columns."}
"""Descriptions of commands of two words, by their first word."""

SHARED = ("loss", "invert", "curves", "probe", "geometry", "retrieval", "bits", "lens",
          "claims run", "claims curves")  # fmt: skip
"""Commands whose work torchrun's processes share."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it answered, 2 when it could not."""
    words = sys.argv[1:] if arguments is None else arguments
    options = vars(_parser(words).parse_args(words))
    name, function = options.pop("name"), options.pop("function")
    has_format = "format" in inspect.signature(function).parameters
    form = "table" if has_format else options.pop("format")
    options.pop("command")
    options.pop("action", None)
    try:
        _check_alone(name)
        result = function(**options)
    except Exception as error:
        from arch import ModelError  # it needs torch, which --help does without
        from tokenizer import CorpusError

        if not isinstance(error, ModelError | CorpusError | RequestError | OSError):
            raise
        process = f"process {tasks.rank()}: " if tasks.rank() else ""
        print(f"{process}error: {error}", file=sys.stderr)
        return 2
    if not tasks.rank():
        try:
            print(result.json() if form == "json" else result, flush=True)
        except BrokenPipeError:  # a reader such as `head` has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def command_function(name: str) -> "Callable[..., Result]":
    """The function of a command."""
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(module), function)


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """The parser of the command that the words begin with; of all, where they begin with none."""
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        description="Measures models: loss, recovery of tokens, bits, lenses and probes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    first = [name for name in COMMANDS if words and name.split()[0] == words[0]]
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    actions = {}
    for name in first or COMMANDS:
        group, _, action = name.rpartition(" ")
        if group and group not in actions:
            about = GROUPS[group]
            sub = commands.add_parser(group, help=about, description=about)
            listed = "|".join(n.split()[1] for n in COMMANDS if n.startswith(f"{group} "))
            actions[group] = sub.add_subparsers(dest="action", required=True, metavar=listed)
        function = command_function(name)
        line, description = help_of(function)
        sub = (actions[group] if group else commands).add_parser(
            action, help=line, description=description
        )
        add_command(sub, function)
        sub.set_defaults(name=name, function=function)
    return parser


def add_command(parser: argparse.ArgumentParser, function: Any) -> None:
    """Adds a command's parameters to a parser, and `--format` where it has none of its own.

    The `Args` of its docstring name every parameter.
    """
    about = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(function) or "").params}
    place: Any = parser
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if name in function.groups:
            place = parser.add_argument_group(function.groups[name])
        _add(place, parameter, function.flags[name], " ".join(about[name].split()))
    if "format" not in parameters:
        about_format = "json: the rows, to standard output"
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help=about_format
        )


def help_of(function: Callable[..., Any]) -> tuple[str, str]:
    """The first line of a function's docstring, and all that stands above its `Args`."""
    text = parse(inspect.getdoc(function) or "")
    assert text.short_description
    return text.short_description, text.description or ""


class _Gather(argparse.Action):
    """Keeps the values of every use of a flag; those of the first use replace the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        kept = [] if before is self.default else before
        given = values if isinstance(values, list | tuple) else [values]
        setattr(namespace, self.dest, [*kept, *given])


def _add(place: Any, parameter: inspect.Parameter, flag: "Flag", about: str) -> None:
    default = parameter.default
    in_place = flag.in_place or default is inspect.Parameter.empty
    if not (in_place or flag.switch or default in (None, ()) or "default" in about):
        value = " ".join(map(str, default)) if isinstance(default, tuple | range) else default
        about = f"{about}; default: {value}" if about else f"default: {value}"
    more: dict[str, Any] = {"help": about.replace("%", "%%")}
    if default is not inspect.Parameter.empty:
        more["default"] = default
    if flag.switch:
        more["action"] = argparse.BooleanOptionalAction if default else "store_true"
    else:
        more["type"], more["metavar"] = flag.read, flag.metavar
        if flag.choices:
            more["choices"] = flag.choices
        if flag.several:
            more["action"] = _Gather
            more["nargs"] = None if flag.repeated else "+" if flag.least else "*"
    if in_place:
        place.add_argument(parameter.name, **more)
    else:
        place.add_argument(flag.option, dest=parameter.name, required=flag.required, **more)


def _check_alone(name: str) -> None:
    """Refuses several processes for a command whose work is not shared out."""
    if tasks.world() > 1 and name not in SHARED:
        raise RequestError(
            f"WORLD_SIZE {tasks.world()}: {name} is of one process, several share "
            f"{', '.join(SHARED)} alone; start it without torchrun"
        )


if __name__ == "__main__":
    sys.exit(main())
