"""One worker, a bounded queue before it, and for each job the list of what it has said so far."""

import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arch import ModelError
from eval.errors import RequestError
from tokenizer import CorpusError

if TYPE_CHECKING:
    from eval.commands import Result

EVENTS = 4000
"""Of one job, at most; what a solver has in between is left out beyond that."""
GRACE = 10.0
"""Seconds that a job goes on without anybody listening."""


class BusyError(Exception):
    """The queue is full."""


class StoppedError(Exception):
    """The job is to end."""


@dataclass
class Work:
    """A piece of work and what it has said.

    Attributes:
        do: is called with this.
        events: what a page shows, in order; the last is of type "end".
        made: what came of it, when it has ended.
        listeners: how many connections follow it.
    """

    do: Callable[["Work"], "Result | None"]
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
        self.waiting, self.kept, self.seconds = waiting, kept, seconds
        self._jobs: OrderedDict[str, Work] = OrderedDict()
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True, name="explore").start()

    def add(self, do: Callable[[Work], "Result | None"]) -> Work:
        """Puts work at the end of the queue.

        Raises:
            BusyError: it is full.
        """
        with self._changed:
            if len(self._queue) >= self.waiting:
                raise BusyError(f"busy: {len(self._queue)} questions wait already; try again soon")
            job = Work(do, self.seconds)
            self._jobs[job.name] = job
            self._queue.append(job)
            for name in [name for name, old in self._jobs.items() if old.ended]:
                if len(self._jobs) > self.kept:
                    del self._jobs[name]
            self._changed.notify()
            return job

    def get(self, name: str) -> Work | None:
        """The job of that name, if it is kept."""
        return self._jobs.get(name)

    def before(self, job: Work) -> int:
        """How many jobs are done before this one begins."""
        with self._changed:
            if job not in self._queue:
                return 0
            running = any(one.started and not one.ended for one in self._jobs.values())
            return self._queue.index(job) + running

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                job = self._queue.popleft()
                job.started = time.monotonic()
            job.emit({"type": "end"} | _done(job))


def _done(job: Work) -> dict[str, Any]:
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
