"""Progress of work that takes long: a caller may watch the answers so far, and stop the work.

    with watching(print):
        invert("runs/flat/models/step-020000", text="Once upon a time", solvers="sweep")

Without a watcher, progress that costs time is not computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.rows.schema import Row

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """The answers of the prompts at work; all is empty where a task has just begun.

    Attributes:
        tokens: present answers from the first position on, `(P, n)`.
        settled: whether each of them lies within the limit, `(P, n)`; None while it is not known.
        margins: log2 of the second-best token's distance over the floor at the last position,
            `(P,)`, for solvers that try all tokens.
        row: a row of evidence that is ready, of a task that gives several.
    """

    tokens: "Tensor | None" = None
    settled: "Tensor | None" = None
    margins: "Tensor | None" = None
    row: Row | None = None


Watcher = Callable[[Progress], None]
OF_WATCHER = "of_watcher"
"""Attribute of an exception that a watcher raised."""
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Calls the watcher whenever a solver in this block and thread has come further.

    An exception of the watcher ends the work; rows that are on the disk stay there.
    """
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watched() -> bool:
    """Whether there is a watcher; without one, progress that costs time is not computed."""
    return _WATCHER.get() is not None


def report_progress(progress: Progress) -> None:
    """Calls the watcher, if there is one."""
    watcher = _WATCHER.get()
    if watcher is not None:
        try:
            watcher(progress)
        except Exception as error:
            vars(error)[OF_WATCHER] = True  # and not of the solver at work
            raise
