"""What is printed, so that nothing in it steers a terminal; and the lines on stderr."""

import re
import sys
from functools import cache

from arch.errors import printable

LONGEST_LINE = 1000
"""Characters of a line on stderr."""


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
