"""What a command gives: its rows, which print themselves, as a data frame, as JSON or as a page."""

import builtins
import contextlib
import functools
import inspect
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ParamSpec, get_type_hints

from eval.commands.flags import HELP, PLACES, flag_name, read_arguments
from eval.messages import RequestError, legible, nearest, question
from eval.models import TRUST_CODE

if TYPE_CHECKING:
    import pandas

    from eval.rows.store import Results

Parameters = ParamSpec("Parameters")


@dataclass(repr=False)
class Result:
    """The result of a command.

    Attributes:
        rows: what was measured in this call, one dictionary each; for commands that print a table
            of figures, its lines.
        text: the tables, as a terminal shows them.
        notes: lines that a terminal shows below them.
        documents: the lenses' documents, for the page.
    """

    rows: list[dict[str, Any]]
    text: str
    notes: str = ""
    documents: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return legible(self.text)

    def __str__(self) -> str:
        return legible("\n\n".join(part for part in (self.text, self.notes) if part))

    def _repr_html_(self) -> str:
        """The page, in a frame of its own, for a notebook; the tables where rows have no page."""
        from html import escape

        try:
            page = self.html()
        except RequestError:
            return f"<pre>{escape(legible(self.text))}</pre>"
        style = "width:100%;height:40rem;border:0"
        return f'<iframe style="{style}" srcdoc="{escape(page)}"></iframe>'

    def show(self) -> None:
        """Shows it in a notebook; elsewhere prints the tables."""
        getattr(builtins, "display", print)(self)  # IPython has `display` there

    @property
    def frame(self) -> "pandas.DataFrame":
        """A line for each row and quantity, with its coordinates (`eval.analysis.frame.frame`).

        Of commands that print records, as `summary` and `compare` do, a line for each of those.
        """
        import pandas

        from eval.analysis.frame import frame

        of_rows = all("key" in row for row in self.rows)
        return frame(self.rows) if of_rows else pandas.DataFrame(self.rows)

    def json(self) -> str:
        """The rows, as a JSON array; infinity is the text `inf`, NaN is null."""
        return json.dumps(_strict(self.rows), indent=1, allow_nan=False)

    def html(self, title: str | None = None) -> str:
        """The rows as one HTML page; a `RequestError` where rows of these kinds have no page."""
        if any("checkpoint" not in row for row in self.rows):
            raise RequestError("these are lines of a table and no rows, and have no page")
        from eval.views.page.page import draw_lenses, render_page

        return render_page(self.rows, title, draw_lenses(self.documents, self.rows))

    def page(self, path: str, title: str | None = None) -> str:
        """Writes the rows as one HTML page, as `python -m eval report` does; returns its path.

        Raises:
            RequestError: rows of these kinds have no page.
            OSError: it cannot be written.
        """
        from arch.storage.files import write_text

        write_text(path, self.html(title))
        return path


def _strict(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    return [_strict(part) for part in value] if isinstance(value, list | tuple) else value


def next_step(results: "Results", out: str | None, more: str = "") -> str:
    """Where rows are, and the command that makes a page of them; nothing if they are not kept."""
    if not out:
        return ""
    page = shlex.join(["python", "-m", "eval", "report", out, "--out", "page.html"])
    return f"{results.note}{more}\nnext: {page}"


def command(
    function: Callable[Parameters, Result], request: type | None = None
) -> Callable[Parameters, Result]:
    """Makes a function a command: its arguments are read as those of a command line.

    Models run without autograd, and in plain arithmetic. A command that opens models takes
    `trust_code` beside its own parameters: whether their directories may name mixers outside this
    project, whose code runs.

    Args:
        function: its last parameter is `**given` where there is a request.
        request: a dataclass, whose fields are parameters too, and None where they are not given.
    """
    signature = signature_of(function, request)
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    opens = not {"models", "model", "places", "runs"}.isdisjoint(signature.parameters)

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        token = TRUST_CODE.set(bool(opens and kwargs.pop("trust_code", TRUST_CODE.get())))
        try:
            return call(args, kwargs)
        finally:
            TRUST_CODE.reset(token)

    def call(args: Any, kwargs: Any) -> Result:
        for name in kwargs:
            if name not in signature.parameters:
                hint = nearest(name, signature.parameters)
                raise TypeError(f"{function.__name__}() has no parameter {name!r}; {hint}")
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            needed = signature.parameters[name].default is not None and name not in PLACES
            if needed and value is None:
                raise RequestError(f"{flag_name(name)} None: give a value, or leave it out")
        arguments: Any = read_arguments(hints, bound.arguments)
        with question(), contextlib.ExitStack() as stack:
            if {"models", "model"} & signature.parameters.keys():
                import torch

                from arch.kernels.arithmetic import plain_arithmetic

                stack.enter_context(torch.no_grad())
                stack.enter_context(plain_arithmetic())
            return function(**arguments)  # pyright: ignore[reportCallIssue]

    setattr(run, "opens_models", opens)  # noqa: B010 - a function has no such attribute declared
    setattr(run, "__signature__", signature)  # noqa: B010
    run.__doc__ = describe(function, signature, request)
    return run


def describe(
    function: Callable[..., Any], signature: inspect.Signature, request: type | None = None
) -> str:
    """A function's docstring, with the help of common flags and of a request's fields."""
    text = inspect.getdoc(function) or ""
    if "\nArgs:" not in text:
        text += "\n\nArgs:"
    common = [f"    {name}: {HELP[name]}" for name in signature.parameters
              if name in HELP and f"\n    {name}: " not in text]  # fmt: skip
    _, _, fields_text = (inspect.getdoc(request) or "" if request else "").partition("Args:\n")
    return "\n".join([text, *common, fields_text.partition("\n\n")[0]])


def signature_of(function: Callable[..., Any], request: type | None = None) -> inspect.Signature:
    """A function's parameters with their types, and a request's fields as more of them."""
    hints = inspect.get_annotations(function, eval_str=True)
    own = inspect.signature(function).parameters.values()
    parameters = [parameter.replace(annotation=hints.get(parameter.name, Any)) for parameter in own]
    if request:
        kinds = get_type_hints(request)
        parameters[-1:] = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                              annotation=kinds[name] | None)
            for name in (parameter.name for parameter in fields(request))
        ]  # fmt: skip
    return inspect.Signature(parameters)
