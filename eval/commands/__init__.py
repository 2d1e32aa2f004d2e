"""What a command is: a function whose result prints itself, and is a data frame, JSON or a page."""

import builtins
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeAlias

from eval import cli
from eval.errors import RequestError

if TYPE_CHECKING:
    import pandas

    from eval.models import Checkpoint

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
        """A line for each checkpoint, place, prompt, seed and quantity (`eval.quantities.frame`).

        Of commands that print records, as `summary` and `compare` do, a line for each of those.
        """
        import pandas

        from eval.quantities import frame

        of_rows = all("kind" in row for row in self.rows)
        return frame(self.rows) if of_rows else pandas.DataFrame(self.rows)

    def json(self) -> str:
        """The rows, as a JSON array."""
        return json.dumps(self.rows, indent=1)

    def html(self, title: str | None = None) -> str:
        """The rows as one HTML page.

        Raises:
            RequestError: rows of these kinds have no page.
        """
        from eval.report.page import render_page

        return render_page(self.rows, title, self.documents)

    def page(self, path: str, title: str | None = None) -> str:
        """Writes the rows as one HTML page, as `python -m eval report` does; returns its path.

        Raises:
            RequestError: rows of these kinds have no page.
            OSError: it cannot be written.
        """
        from eval.report.page import write_page

        write_page(path, self.html(title))
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
