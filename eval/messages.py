"""What is said to a person: refusals, and text in which nothing steers a terminal."""

import difflib
import re
import sys
from collections.abc import Iterable
from functools import cache

from arch.errors import printable

LONGEST_LINE = 1000
"""Characters of a line on stderr."""


class RequestError(ValueError):
    """A request that cannot be answered; the message is one line that says why."""


def legible(text: str) -> str:
    """A text of several lines whose control characters and marks of direction are spelt out."""
    return re.sub(r"[^\n\t]+", lambda run: printable(run[0], len(run[0])), text)


def say(line: object) -> None:
    """Prints a line on stderr."""
    print(printable(line, LONGEST_LINE), file=sys.stderr)


@cache
def say_once(line: str) -> None:
    """Prints a line on stderr the first time it is given."""
    say(line)


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of an error: the known word that is most like this one, else all, or a hint."""
    known = list(known)
    matches = difflib.get_close_matches(word, known, 1)
    return f"did you mean {matches[0]}?" if matches else otherwise or f"use {', '.join(known)}"
