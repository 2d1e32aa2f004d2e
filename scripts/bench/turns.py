"""Contenders that work in turns, each in a process of its own.

Each starts and warms up; then one at a time does a few steps while the others wait, round after
round, so that whatever else the machine does meets them alike. The first steps of a turn do not
count: they find the caches as another left them.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

UNCOUNTED = 2  # steps at the start of every turn
ANSWER_TIMEOUT = 240.0  # seconds that a contender may take to answer, compilation included


class Turn(NamedTuple):
    """What one turn of a contender took.

    Steps that counted; seconds by the clock, and of all processor threads; bytes at the peak so far
    of the GPU (by PyTorch) or of the process.
    """

    steps: int
    seconds: float
    work: float
    memory: int


class Over(BaseException):
    """Ends training from inside a callback, when no more turns are wanted."""


class Turns:
    """A contender's side: counts its steps, and waits where a turn ends."""

    def __init__(self, line: Connection, device: str) -> None:
        self._line, self._cuda = line, device == "cuda"
        self._wait()

    def step(self) -> None:
        """Counts an optimiser step; waits where the turn ends.

        Raises:
            Over: the race is.
        """
        self._done += 1
        if self._done == UNCOUNTED:
            self._started = self._now()
        if self._done < UNCOUNTED + self._wanted:
            return
        seconds, work = (b - a for a, b in zip(self._started, self._now(), strict=True))
        if self._cuda:
            memory = torch.cuda.max_memory_allocated()
            torch.cuda.empty_cache()  # the others need it
        else:
            memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._line.send(Turn(self._wanted, seconds, work, memory))
        self._wait()

    def _wait(self) -> None:
        self._done, self._wanted = 0, self._line.recv()
        if not self._wanted:
            raise Over

    def _now(self) -> tuple[float, float]:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()


class Entrant:
    """The race's side of a contender: `work(turns, *arguments)` in a new process.

    All that it prints goes to the log; `variables` are its environment's, beside this process's.
    `readings` are one a round; `failed` says in a line why it is out of the race.
    """

    def __init__(
        self, device: str, threads: int, log: Path, work: Callable[..., None], *arguments: Any,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.readings: list[Turn] = []
        self.failed: str | None = None
        context = multiprocessing.get_context("spawn")
        self._line, there = context.Pipe()
        given = (there, device, threads, log, work, arguments)
        self._process = context.Process(target=_main, args=given)
        before = dict(os.environ)
        os.environ.update(variables)
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        there.close()

    def turn(self, steps: int) -> Turn | None:
        """A turn of so many steps, or None once the contender has failed."""
        if self.failed is None:
            try:
                self._line.send(steps)
                answer = self._line.recv() if self._line.poll(ANSWER_TIMEOUT) else "no answer"
            except (EOFError, OSError):
                answer = "it ended"
            if isinstance(answer, Turn):
                return answer
            self.failed = answer
        return None

    def end(self) -> None:
        """Ends the process, by force where it does not end itself."""
        with contextlib.suppress(OSError):  # it has ended
            self._line.send(0)
        self._process.join(10)
        self._process.kill()
        self._process.join()


def race(
    entrants: list[Entrant],
    turn: float,
    until: float,
    rounds: tuple[int, int],
    fewest: int = 1,
    ready: Callable[[], object] | None = None,
) -> None:
    """Fills in the readings of entrants that have started; a turn lasts about `turn` seconds.

    No round is begun after the moment `until` of the monotonic clock; `rounds` are the fewest,
    whatever the clock says, and the most. A turn has at least `fewest` steps. Where `ready` is
    given all warm up side by side, and it is called before the first turn that is timed.
    """
    steps: dict[Entrant, int] = {}
    with ThreadPoolExecutor(len(entrants) if ready else 1) as pool:
        list(pool.map(lambda entrant: entrant.turn(2), entrants))
    if ready:
        ready()
    for entrant in entrants:
        if first := entrant.turn(2):  # alone, and warm: how long does a step take?
            steps[entrant] = max(fewest, round(turn * first.steps / max(first.seconds, 1e-9)))
    for number in range(rounds[1]):
        if number >= rounds[0] and time.monotonic() > until:
            break
        for entrant, wanted in steps.items():
            if reading := entrant.turn(wanted):
                entrant.readings.append(reading)


def _main(
    line: Connection, device: str, threads: int, log: Path, work: Any, arguments: tuple[Any, ...]
) -> None:
    with log.open("w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        torch.set_num_threads(threads)
        # Several may compile at once, each with workers of its own.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
        try:
            work(Turns(line, device), *arguments)
        except Over:
            return
        except BaseException as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            line.send(f"{type(error).__name__}: {lines[0]}"[:200])
