"""The parser of a command, made of its function's signature and docstring.

A parameter without a default is a positional argument; any other is a flag. A sequence takes
several words, and more where the flag is given again. A `bool` is a switch, a `Literal` has
choices. The docstring's first paragraph and its `Args` are the help. `Annotated[T, Flag(...)]`
holds what neither can express.
"""

import argparse
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from docstring_parser import parse

from eval import RequestError


@dataclass(frozen=True)
class Flag:
    """How a parameter is written on a command line.

    Attributes:
        read: makes its value of a word, or of a value that a Python caller gives.
        metavar: stands for the value in the help.
        choices: all allowed values; empty where `read` decides.
        several: it takes more than one word, `least` at least.
        switch: it takes no word.
        repeated: it takes one word, and is given again for another.
        required: a command line must give it, though a Python caller may leave it out.
        in_place: it is positional, though it has a default.
    """

    read: Callable[[Any], Any] = str
    metavar: str | None = None
    choices: tuple[Any, ...] = ()
    several: bool = False
    least: int = 1
    switch: bool = False
    repeated: bool = False
    required: bool = False
    in_place: bool = False


def _reader(
    words: str, allowed: Callable[[float], bool], kind: Callable[[Any], Any] = float
) -> Callable[[Any], Any]:
    """Reads a number, for argparse."""

    def read(value: Any) -> Any:
        try:
            fits = allowed(float(value))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise argparse.ArgumentTypeError(f"{value!r} is not {words}")
        return kind(value)

    return read


positive = _reader("a whole number of at least 1", lambda n: n == n // 1 and n >= 1, int)
natural = _reader("a whole number of at least 0", lambda n: n == n // 1 and n >= 0, int)
above_zero = _reader("a number above 0", lambda n: 0 < n < math.inf)
not_negative = _reader("a number of at least 0", lambda n: 0 <= n < math.inf)

Positive: TypeAlias = Annotated[int, Flag(positive)]
Natural: TypeAlias = Annotated[int, Flag(natural)]
AboveZero: TypeAlias = Annotated[float, Flag(above_zero)]
File: TypeAlias = Annotated[str, Flag(metavar="FILE")]
Directory: TypeAlias = Annotated[str, Flag(metavar="DIR")]
Source: TypeAlias = Annotated[str, Flag(metavar="SOURCE")]
Name: TypeAlias = Annotated[str, Flag(metavar="NAME")]
Plugins: TypeAlias = Annotated[
    str | Sequence[str] | None, Flag(metavar="FILE", several=True, repeated=True)
]
Device: TypeAlias = Annotated[str, Flag(metavar="cpu|cuda|auto")]
SEVERAL = (list, typing.get_origin(Sequence[str]))
FORMATS = ("table", "json")


def add_command(
    parser: argparse.ArgumentParser, function: Callable[..., Any], groups: Mapping[str, str]
) -> None:
    """Adds a function's parameters to a parser, and `--format` where the function has none.

    The function has a docstring whose `Args` names every parameter.
    """
    about = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(function) or "").params}
    place: Any = parser
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if name in groups:
            place = parser.add_argument_group(groups[name])
        _add(place, parameter, " ".join(about[name].split()))
    if "format" not in parameters:
        parser.add_argument(
            "--format", choices=FORMATS, default="table", help="json: the rows, to standard output"
        )


def help_of(function: Callable[..., Any]) -> tuple[str, str]:
    """The first line of a function's docstring, and all that stands above its `Args`."""
    text = parse(inspect.getdoc(function) or "")
    assert text.short_description
    return text.short_description, text.description or ""


def check(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as the function takes them: single values as lists, numbers in range.

    Raises:
        RequestError: a value that the command line would refuse.
    """
    checked = dict(arguments)
    parameters = inspect.signature(function).parameters
    for name, value in arguments.items():
        flag = flag_of(parameters[name].annotation)
        if value is None or flag.switch:
            continue
        values = listed(value)
        for one in values:
            if flag.choices and one not in flag.choices:
                allowed = ", ".join(map(str, flag.choices))
                raise RequestError(f"{_option(name)} {one}: allowed are {allowed}")
            if flag.read not in (str, int, float):
                try:
                    flag.read(one)
                except argparse.ArgumentTypeError as error:
                    raise RequestError(f"{_option(name)}: {error}") from None
        checked[name] = values if flag.several else value
    return checked


def listed(value: Any) -> list[Any]:
    """A value, or a sequence of values, as a list; a text is one value."""
    alone = isinstance(value, str) or not isinstance(value, Sequence)
    return [value] if alone else list(value)


def flag_of(annotation: Any) -> Flag:
    """How a parameter of this type is written on a command line."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return next(item for item in inner[1:] if isinstance(item, Flag))
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in inner if kind is not type(None)]
        several = [kind for kind in kinds if typing.get_origin(kind) in SEVERAL]
        return flag_of((several or kinds)[0])
    if origin in SEVERAL:
        return replace(flag_of(inner[0]), several=True)
    if origin is Literal:
        return Flag(choices=inner)
    return Flag(switch=True) if annotation is bool else Flag(annotation)


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
        setattr(namespace, self.dest, [*kept, *listed(values)])


def _add(place: Any, parameter: inspect.Parameter, about: str) -> None:
    flag, default = flag_of(parameter.annotation), parameter.default
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
        option, dest = _option(parameter.name), parameter.name
        place.add_argument(option, dest=dest, required=flag.required, **more)


def _option(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")
