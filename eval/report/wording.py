"""The words and numbers of the report, the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from eval.inversion.solvers import Solver, solvers

if TYPE_CHECKING:
    from eval.report.evidence import Task


class Method(NamedTuple):
    """How a method is called and what it does: the words that a `Solver` has."""

    title: str
    short: str
    word: str
    text: str = ""


COLUMNS = {
    "best": Method("the best of the other gradient methods", "other gradient", "other grad."),
    "exact": Method("exact search", "exact search", "exact"),
}
"""Columns of several solvers."""
PROMPTS = {"story": "story", "random": "random tokens", "text": "given text"}
"""The prompt sets, in the order of reading."""


def method(name: str) -> Solver | Method:
    """The wording of a method; an unknown one is called by its name."""
    return solvers().get(name) or COLUMNS.get(name) or Method(name, name, name)


def column_order(names: set[str]) -> list[str]:
    """Methods in the order of reading: gradient, then what is not known, then search, chance."""
    known = solvers()
    first = [name for name, solver in known.items() if solver.family == "gradient"]
    last = [name for name, solver in known.items() if solver.family in ("search", "control")]
    order = [*first[:2], "best", *first[2:]]
    others = sorted(names - {*order, "exact", *last})
    return [name for name in (*order, *others, "exact", *last) if name in names]


def variation_label(departs: Iterable[tuple[str, Any]]) -> str:
    """In what a question departs from the plain one: `noise 0.5, control: shuffled`."""
    words = {
        "channels": "channels {}",
        "without": "without {}",
        "noise": "noise {:g}",
        "control": "control: {}",
    }
    return ", ".join(words.get(name, name).format(value) for name, value in departs)


def variation_order(departs: tuple[tuple[str, Any], ...]) -> tuple[bool, str, float]:
    """The place of a variation in the order of reading: noise comes last, the least of it first."""
    others = [item for item in departs if item[0] != "noise"]
    noise = dict(departs).get("noise", 0.0)
    return (noise > 0, str(others), noise)


def prompt_set(name: str) -> str:
    """A prompt set in words."""
    return PROMPTS.get(name, name)


def prompt_order(name: str) -> tuple[int, str]:
    """The place of a prompt set in the order of reading."""
    names = list(PROMPTS)
    return (names.index(name) if name in names else len(names), name)


def task_label(task: Task) -> str:
    """What is asked, short: `3 hidden tokens`, `all tokens shown`."""
    plain = task.slice.replace(" ", "") == f"[:,{task.hidden}:,:]"
    where = "" if plain else f" of {task.slice}"
    tokens = "1 hidden token" if task.hidden == 1 else f"{task.hidden} hidden tokens"
    if task.nonself:
        return tokens + where
    return f"shown tokens beside {tokens}{where}" if task.hidden else f"all tokens shown{where}"


def task_kind(task: Task) -> str:
    """The field's word for it: self or non-self."""
    return f"non-self, k = {task.hidden}" if task.nonself else "self"


def site_label(layer: int, part: str) -> str:
    """`4` for a block's output, `4 mixer` and the like for its parts."""
    return str(layer) if part == "block" else f"{layer} {part}"


def percent(share: float) -> str:
    """A share in whole percent that reads 0 or 100 only where it is so."""
    text = f"{100 * share:.0f}"
    if text == "0" and share > 0:
        return "<1"
    return ">99" if text == "100" and share < 1 else text


def duration(seconds: float) -> str:
    """Seconds as a reader would say them."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def visible(token: str) -> str:
    """A token's text with blanks and control characters that can be seen."""
    marks = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = (marks.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in token)
    return "".join(shown) or "∅"
