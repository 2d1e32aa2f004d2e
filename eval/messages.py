"""What is said to a person: refusals, and text in which nothing steers a terminal."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from arch.errors import printable

LONGEST_LINE = 1000
"""Characters of a line on stderr."""
OF_TEXTS = r"\n\t \xa0\u1680\u2000-\u200a\u202f\u205f\u3000\u200c\u200d"
"""What stays in a text of several lines: its breaks, blanks of any language, joiners."""


class RequestError(ValueError):
    """A request that cannot be answered; the message is one line that says why."""


class ArgumentError(RequestError):
    """An argument that cannot be used.

    Args:
        argument: its name.
        said: what is wrong, what is allowed, the fix.
        value: that was given; None: `said` has it.
    """

    def __init__(self, argument: str, said: str, value: object = None) -> None:
        super().__init__(argument, said, value)
        self.argument, self.said, self.value = argument, said, value

    def named(self, name: str) -> str:
        """The line, with another name for the argument, as a flag's."""
        return f"{name}: {self.said}" if self.value is None else f"{name} {self.value}: {self.said}"

    def __str__(self) -> str:
        return self.named(self.argument)


def legible(text: str) -> str:
    """A text of several lines whose control characters and marks of direction are spelt out."""
    return re.sub(f"[^{OF_TEXTS}]+", lambda run: printable(run[0], len(run[0])), text)


def say(line: object) -> None:
    """Prints a line on stderr."""
    print(printable(line, LONGEST_LINE), file=sys.stderr)


say_once = cache(say)
"""Prints a line on stderr the first time that a question gives it."""
say_of_model = cache(say)
"""The same, of what is alike for all rows of a tensor, as model, format and corpus."""
_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


@contextmanager
def question() -> Iterator[None]:
    """A question of a user's: its lines are said, whatever an earlier one said.

    A question that is asked within another is a part of that one.
    """
    from tokenizer import splits

    if not _DEPTH.get():
        for lines in (say_once, say_of_model, splits.say_once):
            lines.cache_clear()
    token = _DEPTH.set(_DEPTH.get() + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)


def is_nested() -> bool:
    """Whether the question at work was asked within another."""
    return _DEPTH.get() > 1


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of an error: the known word that is most like this one, else all, or a hint."""
    known = list(known)
    matches = difflib.get_close_matches(word, known, 1)
    return f"did you mean {matches[0]}?" if matches else otherwise or f"use {', '.join(known)}"


def first_of(numbers: Sequence[int], most: int = 10) -> str:
    """The first of some numbers: `1, 3, 4, ...`."""
    return ", ".join(map(str, numbers[:most])) + ", ..." * (len(numbers) > most)


def span(positions: Sequence[int]) -> str:
    """Positions in words: `29 to 34` where each follows the one before, else the first of them."""
    first, last = positions[0], positions[-1]
    neighbours = 0 < last - first == len(positions) - 1
    return f"{first} to {last}" if neighbours else first_of(positions)
