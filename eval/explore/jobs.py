"""Jobs of the explorer: one worker, a bounded queue, and the events of each job."""

import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from arch import ModelError
from eval import RequestError
from tokenizer import CorpusError

if TYPE_CHECKING:
    from eval.result import Result

EVENTS = 4000
"""Of one job, at most; further intermediate tokens of solvers are left out."""
GRACE = 10.0
"""Seconds that a job goes on without anybody listening."""


class BusyError(Exception):
    """The queue is full."""


class StoppedError(Exception):
    """The job is to end."""


@dataclass
class QueuedWork:
    """A piece of work and its events.

    Attributes:
        do: is called with this.
        events: what a page shows, in order; the last is of type "end".
        made: what came of it, when it has ended.
        listeners: how many connections follow it.
    """

    do: Callable[["QueuedWork"], "Result | None"]
    seconds: float
    name: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    events: list[dict[str, Any]] = field(default_factory=list)
    made: "Result | None" = None
    listeners: int = 0
    stopping: str = ""
    started: float | None = None
    alone_since: float = field(default_factory=time.monotonic)

    def emit(self, event: dict[str, Any]) -> None:
        """Adds an event; one of many in between only while there is room."""
        if event["type"] != "tokens" or len(self.events) < EVENTS:
            self.events.append(event)

    def check(self) -> None:
        """Ends the work where it was stopped, nobody listens any more, or it takes too long.

        Raises:
            StoppedError: saying why.
        """
        now = time.monotonic()
        if not self.listeners and now - self.alone_since > GRACE:
            self.stopping = self.stopping or "nobody listens"
        if self.started is not None and now - self.started > self.seconds:
            self.stopping = self.stopping or f"stopped after {self.seconds:g} s"
        if self.stopping:
            raise StoppedError(self.stopping)

    @property
    def ended(self) -> bool:
        """Whether there is no more to come."""
        return bool(self.events) and self.events[-1]["type"] == "end"


class Jobs:
    """A worker's thread and its queue.

    Args:
        waiting: jobs in the queue, at most.
        kept: jobs whose events can still be read, at most.
        seconds: that one job may take.
    """

    def __init__(self, waiting: int = 8, kept: int = 24, seconds: float = 600) -> None:
        self.kept, self.seconds = kept, seconds
        self._jobs: dict[str, QueuedWork] = {}
        self._queue: Queue[QueuedWork] = Queue(waiting)
        threading.Thread(target=self._work, daemon=True, name="explore").start()

    def add(self, do: Callable[[QueuedWork], "Result | None"]) -> QueuedWork:
        """Puts work at the end of the queue.

        Raises:
            BusyError: it is full.
        """
        job = QueuedWork(do, self.seconds)
        try:
            self._queue.put_nowait(job)
        except Full:
            full = self._queue.maxsize
            raise BusyError(f"busy: {full} questions wait already; try again soon") from None
        self._jobs[job.name] = job
        for name in [name for name, old in self._jobs.items() if old.ended]:
            if len(self._jobs) > self.kept:
                del self._jobs[name]
        return job

    def get(self, name: str) -> QueuedWork | None:
        """The job of that name, if it is kept."""
        return self._jobs.get(name)

    def before(self, job: QueuedWork) -> int:
        """How many jobs are done before this one begins."""
        earlier = takewhile(lambda one: one is not job, list(self._jobs.values()))
        return 0 if job.started else sum(not one.ended for one in earlier)

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            job.started = time.monotonic()
            job.emit({"type": "end"} | _done(job))


def _done(job: QueuedWork) -> dict[str, Any]:
    """Does a job's work; how it ended."""
    try:
        job.check()
        job.made = job.do(job)
    except StoppedError as error:
        return {"stopped": str(error)}
    except (RequestError, ModelError, CorpusError, OSError) as error:
        return {"error": str(error)}
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return {"error": "the server met a fault of its own; its terminal says more"}
    return {}
