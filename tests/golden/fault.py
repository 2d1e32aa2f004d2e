"""What a seeded fault is: one function of the product, replaced by one that is wrong."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

Function = Callable[..., Any]
Change = Callable[[Function], Function]


class Fault(NamedTuple):
    """One thing that goes wrong.

    Attributes:
        what: in words.
        target: `module:name`, or `module:name[key]` of a dictionary.
        change: makes the wrong function of the right one.
        part, cases: of the suite; the first cases only lay the ground for the last.
        solver: the one solver or lens that is asked, of those of the case.
        model: the one model that is asked.
    """

    what: str
    target: str
    change: Change
    part: str
    cases: tuple[str, ...]
    solver: str = ""
    model: str = ""


def gives(change: Callable[[Any], Any]) -> Change:
    """Another result."""

    def made(right: Function) -> Function:
        @wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(right(*args, **kwargs))

        return wrong

    return made


def takes(change: Callable[..., tuple[Any, ...]]) -> Change:
    """Other positional arguments."""

    def made(right: Function) -> Function:
        @wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return right(*change(*args), **kwargs)

        return wrong

    return made


def instead(wrong: Function) -> Change:
    """Another function altogether."""
    return lambda right: wraps(right)(wrong) if callable(right) else wrong
