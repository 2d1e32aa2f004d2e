"""Commands: functions whose parameters are flags, and whose result prints itself.

A parameter without a default is a positional argument of the command line; any other is a flag. A
sequence takes several words, and more where the flag is given again. A `bool` is a switch, a
`Literal` has choices. The docstring's first paragraph and its `Args` are the help. `Annotated[T,
Flag(...)]` holds what neither can express.
"""

import argparse
import builtins
import contextlib
import functools
import importlib.util
import inspect
import json
import math
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeAlias

from eval import RequestError

if TYPE_CHECKING:
    import pandas

    from eval.models import Checkpoint


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
        option: its name on a command line, as a flag.
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
    option: str = ""


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
not_negative = _reader("a number of at least 0", lambda n: 0 <= n < math.inf, float)
above_zero = _reader("a number above 0", lambda n: 0 < n < math.inf)


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
Models: TypeAlias = Annotated[
    "str | Path | Checkpoint | Sequence[str | Path | Checkpoint]",
    Flag(metavar="DIR", several=True),
]
"""Model directories, `hf:` and a pretrained model's name, or models that are open."""
Model: TypeAlias = Annotated["str | Path | Checkpoint", Flag(metavar="DIR")]
Rows: TypeAlias = Annotated[str | None, Flag(metavar="DIR", required=True)]
"""A results directory. A Python caller may leave it out: the rows are in the result."""
Parameters = ParamSpec("Parameters")
SEVERAL = (list, typing.get_origin(Sequence[str]))


@dataclass(repr=False)
class Result:
    """The result of a command.

    Attributes:
        rows: what was measured, one dictionary each; for commands that print a table of figures,
            its lines.
        text: the tables, as a terminal shows them.
        notes: lines that a terminal shows below them.
        documents: the lenses' documents, for the page.
    """

    rows: list[dict[str, Any]]
    text: str
    notes: str = ""
    documents: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.text

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.text, self.notes) if part)

    def _repr_html_(self) -> str:
        """The page, in a frame of its own, for a notebook; the tables where rows have no page."""
        from html import escape

        try:
            if any("checkpoint" not in row for row in self.rows):
                raise RequestError("lines of a table are no rows")
            page = self.html()
        except RequestError:
            return f"<pre>{escape(self.text)}</pre>"
        style = "width:100%;height:40rem;border:0"
        return f'<iframe style="{style}" srcdoc="{escape(page)}"></iframe>'

    def show(self) -> None:
        """Shows it in a notebook; elsewhere prints the tables."""
        getattr(builtins, "display", print)(self)  # IPython has `display` there

    @property
    def frame(self) -> "pandas.DataFrame":
        """A line for each row and quantity, with its coordinates (`eval.measurements.frame`).

        Of commands that print records, as `summary` and `compare` do, a line for each of those.
        """
        import pandas

        from eval.measurements import frame

        of_rows = all("key" in row for row in self.rows)
        return frame(self.rows) if of_rows else pandas.DataFrame(self.rows)

    def json(self) -> str:
        """The rows, as a JSON array."""
        return json.dumps(self.rows, indent=1)

    def html(self, title: str | None = None) -> str:
        """The rows as one HTML page; a `RequestError` where rows of these kinds have no page."""
        from eval.report.page import render_page

        return render_page(self.rows, title, self.documents)

    def page(self, path: str, title: str | None = None) -> str:
        """Writes the rows as one HTML page, as `python -m eval report` does; returns its path.

        Raises:
            RequestError: rows of these kinds have no page.
            OSError: it cannot be written.
        """
        from arch.files import write_text

        write_text(path, self.html(title))
        return path


def command(
    **groups: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Makes a function a command: its arguments are checked, and models run without autograd.

    `groups` are headings of its help, each by the name of the first parameter below it. The command
    has them, and its `flags` by the names of the parameters, for the parser.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(function)
        flags = {
            name: replace(flag_of(p.annotation), option=f"--{name.rstrip('_').replace('_', '-')}")
            for name, p in signature.parameters.items()
        }

        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bound.arguments.update(check(flags, bound.arguments))
            with contextlib.ExitStack() as stack:
                if {"models", "model"} & signature.parameters.keys():
                    import torch

                    stack.enter_context(torch.no_grad())
                return function(*bound.args, **bound.kwargs)

        for name, value in (("groups", groups), ("flags", flags)):
            setattr(run, name, value)
        return run

    return decorate


def run_plugins(files: str | Sequence[str] | None, never: Iterable[Any] = ()) -> None:
    """Runs a user's files of lenses or solvers as modules; running one registers what it defines.

    Args:
        files: the user's.
        never: directories of results, and models by their directories or open, from which no code
            is taken; None and modules are of no directory.

    Raises:
        RequestError: there is no such file, it lies in such a directory, or it raises; the file's
            line is named.
    """
    places = [getattr(place, "path", place) for place in never]
    places = [place for place in places if isinstance(place, str | Path)]
    for file in listed(files or ()):
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            raise RequestError(f"--plugin {file}: no such file; give a Python file (NAME.py)")
        for place in places:
            if path.resolve().is_relative_to(Path(place).resolve()):
                raise RequestError(
                    f"--plugin {file}: lies in {place}, and no code is taken from results or "
                    "models; copy it elsewhere if you trust it"
                )
        spec = importlib.util.spec_from_file_location(f"plugin_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except RequestError as error:
            raise RequestError(f"--plugin {file}: {error}") from error
        except Exception as error:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
                     if Path(f.filename).resolve() == path.resolve()]  # fmt: skip
            line = getattr(error, "lineno", None) or (lines[-1] if lines else 0)
            raise RequestError(
                f"--plugin {file}: line {line}: {type(error).__name__}: {error}"
            ) from error


def check(flags: Mapping[str, Flag], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as the function takes them: single values as lists, numbers in range.

    Raises:
        RequestError: a value that the command line would refuse.
    """
    checked = dict(arguments)
    for name, value in arguments.items():
        flag = flags[name]
        if value is None or flag.switch:
            continue
        values = listed(value)
        for one in values:
            if flag.choices and one not in flag.choices:
                allowed = ", ".join(map(str, flag.choices))
                raise RequestError(f"{flag.option} {one}: allowed are {allowed}")
            if flag.read not in (str, int, float):
                try:
                    flag.read(one)
                except argparse.ArgumentTypeError as error:
                    raise RequestError(f"{flag.option}: {error}") from None
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
