"""What a command is: a function whose result prints itself, and is a data frame, JSON or a page."""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeAlias

from eval import cli, shards
from eval.errors import RequestError

if TYPE_CHECKING:
    import pandas

    from eval.checkpoints import Checkpoint

Parameters = ParamSpec("Parameters")
Models: TypeAlias = Annotated[
    "str | Path | Checkpoint | Sequence[str | Path | Checkpoint]",
    cli.Flag(metavar="DIR", several=True),
]
"""Model directories, `hf:` and a pretrained model's name, or models that are open."""
Model: TypeAlias = Annotated["str | Path | Checkpoint", cli.Flag(metavar="DIR")]
Rows: TypeAlias = Annotated[str | None, cli.Flag(metavar="DIR", required=True)]
"""A results directory. A Python caller may leave it out: the rows are in the result."""


@dataclass(repr=False)
class Result:
    """What a command found.

    Attributes:
        rows: what was measured, one dictionary each; for commands that print a table of figures,
            its lines.
        text: the tables, as a terminal shows them.
        notes: lines that a terminal shows below them.
        documents: what lenses found, for the page.
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
        """The tables, for a notebook."""
        import io

        from rich.console import Console
        from rich.text import Text

        console = Console(record=True, width=400, file=io.StringIO())
        console.print(Text.from_ansi(self.text), soft_wrap=True)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    @property
    def frame(self) -> "pandas.DataFrame":
        """A line for each row; fields within fields have names with dots: `checkpoint.step`."""
        import pandas

        return pandas.json_normalize(self.rows)

    def json(self) -> str:
        """The rows, as a JSON array."""
        return json.dumps(self.rows, indent=1)

    def page(self, path: str, title: str | None = None) -> str:
        """Writes the rows as one HTML page, as `python -m eval report` does; returns its path.

        Raises:
            RequestError: rows of these kinds have no page.
            OSError: it cannot be written.
        """
        from eval.report import render_page, write_page

        write_page(path, render_page(self.rows, title, self.documents))
        return path


def command(
    **groups: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Makes a function a command: its arguments are checked, and models run without autograd.

    Args:
        groups: headings of its help, each by the name of the first parameter below it.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bound.arguments.update(cli.check(function, bound.arguments))
            with contextlib.ExitStack() as stack:
                if {"models", "model"} & signature.parameters.keys():
                    import torch

                    stack.enter_context(torch.no_grad())
                return function(*bound.args, **bound.kwargs)

        setattr(run, "groups", groups)  # noqa: B010
        return run

    return decorate


@contextlib.contextmanager
def directory(out: str | None) -> Iterator[str]:
    """Where a command's rows are written: `out`, or a place that is gone when they are returned.

    Raises:
        RequestError: several processes share the work, and there is no place for all.
    """
    if out is not None:
        yield out
        return
    if shards.world() > 1:
        raise RequestError("--out: several processes need one results directory; give it")
    with TemporaryDirectory(prefix="eval-") as place:
        yield place


def drawn(*parts: Any, width: int | None = None, pipe: int | None = None) -> str:
    """What rich prints of tables, as text.

    Args:
        parts: tables or lines.
        width: of a line; default: the terminal's.
        pipe: of a line where no terminal says how wide it is.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, width=width)
    if pipe and not console.is_terminal:
        console.width = pipe
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
