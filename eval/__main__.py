"""python -m eval COMMAND: questions asked of model directories.

The parser of a command is made of its function's signature and docstring (`eval.commands`).
"""

import argparse
import errno
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
  python -m eval probe runs/flat/models/step-000800 --corpus data/tinystories --out results/probes
  python -m eval geometry runs/flat/models/step-000800 --hidden 1 3 --out results/geometry
  python -m eval bits runs/flat/models/* --corpus data/tinystories --out results/bits
  python -m eval lens runs/flat/models/* --text "Once upon a time" --out results/lenses
  python -m eval lenses
  python -m eval solvers --names adam
  python -m eval summary results/flat --csv flat.csv
  python -m eval compare runs results --markdown table.md --plot losses.svg
  python -m eval report results/flat --out flat.html
  python -m eval explore runs
"""

COMMANDS = {
    "loss": "eval.commands.language:loss",
    "generate": "eval.commands.language:generate",
    "invert": "eval.commands.inversion:invert",
    "solvers": "eval.commands.inversion:list_solvers",
    "probe": "eval.commands.probes:probe",
    "geometry": "eval.commands.probes:geometry",
    "bits": "eval.commands.bits:bits",
    "lens": "eval.commands.lenses:lens",
    "lenses": "eval.commands.lenses:list_lenses",
    "summary": "eval.commands.tables:summary",
    "compare": "eval.commands.tables:compare",
    "report": "eval.commands.tables:report",
    "explore": "eval.commands.explore:explore",
}
"""The function of each command; it is imported when its command is given."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it answered, 2 when it could not."""
    words = sys.argv[1:] if arguments is None else arguments
    options = vars(_parser(words).parse_args(words))
    function = options.pop("function")
    has_format = "format" in inspect.signature(function).parameters
    form = "table" if has_format else options.pop("format")
    options.pop("command")
    shard = options.pop("shard", (1, 1))
    try:
        with tasks.sharing(*shard):
            result = function(**options)
    except Exception as error:
        from arch import ModelError  # it needs torch, which --help does without
        from tokenizer import CorpusError

        if not isinstance(error, ModelError | CorpusError | RequestError | OSError):
            raise
        print(f"error: {_said(error)}", file=sys.stderr)
        return 2
    try:
        print(result.json() if form == "json" else result, flush=True)
    except BrokenPipeError:  # a reader such as `head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _said(error: Exception) -> str:
    """An error in one line; where a file cannot be written, with the file and what to do."""
    if not (isinstance(error, OSError) and error.filename):
        return str(error)
    place = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
    advice = "; free space, or give another place" if place else ""
    return f"{error.filename}: {error.strerror}{advice}"


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
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        function = command_function(name)
        line, description = help_of(function)
        sub = commands.add_parser(name, help=line, description=description)
        add_command(sub, function)
        sub.set_defaults(function=function)
    return parser


def add_command(parser: argparse.ArgumentParser, function: Any) -> None:
    """Adds a command's parameters to a parser, `--format` where it has none, and `--shard`.

    The `Args` of its docstring name every parameter.
    """
    about = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(function) or "").params}
    place: Any = parser
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if name in function.groups:
            place = parser.add_argument_group(function.groups[name])
        _add(place, parameter, function.flags[name], " ".join(about[name].split()))
    if {"models", "out"} <= parameters.keys():
        about_shard = "run every N-th task from the I-th on; shards write into one directory"
        parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help=about_shard)
    if "format" not in parameters:
        about_format = "json: the rows, to standard output"
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help=about_format
        )


def _shard(text: str) -> tuple[int, int]:
    """Reads I/N, for argparse."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, as in 1/2")
    return int(number), int(count)


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


if __name__ == "__main__":
    sys.exit(main())
