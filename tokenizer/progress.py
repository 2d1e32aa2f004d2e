"""How far a long task has come: a line that moves on a terminal, a line now and then on a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

TERMINAL_SECONDS = 0.2
PIPE_SECONDS = 10.0


class Progress:
    """Tells how many of a number of things are done, and about how long the others will take."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.every = TERMINAL_SECONDS if self.terminal else PIPE_SECONDS
        self.task = ""
        self.expected: int | None = None
        self.asked, self.first = False, 0
        self.began = self.told = time.monotonic()

    def __call__(self, task: str, done: int, expected: Callable[[], int | None]) -> None:
        """Tell that `done` of about `expected()` are done, unless that was told just now.

        What was done already when the task was first told of does not count for the time left.
        """
        now = time.monotonic()
        if task != self.task:
            self.task, self.began, self.told = task, now, now
            self.asked, self.expected, self.first = False, None, done
        if now - self.told < self.every:
            return
        self.told = now
        if not self.asked:
            self.asked, self.expected = True, expected()
        line = f"{task}: {done:,}"
        if self.expected is not None and done > self.first:
            rate = (now - self.began) / (done - self.first)
            left = max(0.0, rate * (self.expected - done))
            line += f" of about {self.expected:,}, {left:.0f} s left"
        print(line, end="\033[K\r" if self.terminal else "\n", file=self.stream, flush=True)

    def close(self) -> None:
        """Leave a clean line behind."""
        if self.terminal:
            print(end="\033[K", file=self.stream, flush=True)
