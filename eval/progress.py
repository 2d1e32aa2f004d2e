"""How long work says how far it is: a live line on a terminal, a line now and then on a pipe."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")
EVERY = 15.0  # seconds between lines on a pipe


def track(items: Iterable[Item], weights: list[float], what: str) -> Iterator[Item]:
    """Passes items through, saying on stderr what is done and how much time is left.

    Args:
        items: finished pieces of work, as they come.
        weights: how much work each piece is, for the estimate; its length is the total.
        what: what is being counted.
    """
    if sys.stderr.isatty():
        yield from _live(items, weights, what)
        return
    total, done, started, said = sum(weights), 0.0, time.monotonic(), time.monotonic()
    for count, item in enumerate(items, start=1):
        done += weights[count - 1]
        now = time.monotonic()
        if now - said >= EVERY or count == len(weights):
            left = (now - started) * (total - done) / done
            print(f"{what} {count}/{len(weights)}, {left:.0f} s left", file=sys.stderr, flush=True)
            said = now
        yield item


def _live(items: Iterable[Item], weights: list[float], what: str) -> Iterator[Item]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=len(weights))
        for item in items:
            bar.advance(task)
            yield item
