"""Several processes of one run end together: where one refuses or fails, the others follow it.

torchrun's and SLURM's processes meet in a store before any of them does its part. Who fails says so
there and prints its line; the others, which may wait for it in a barrier, end without a word and
with the same code. At the end all wait for the last: a launcher that ends a job with its first
process finds everything saved. What Lightning itself starts ends with its parent.
"""

import atexit
import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from train.launcher import TASK, count_processes, in_slurm, in_torchrun
from train.settings import RunError, TrainerSettings

PATIENCE = 600
"""Seconds for all processes to start, and again to end."""
GRACE = 2
"""Seconds in which a process that another's failure ends may end by itself."""
PAUSE = 0.2
LOST = "a process or a machine of this run is gone; what was saved stays; go on with --resume auto"
CODE = 2
_runs = itertools.count()


@contextlib.contextmanager
def together(settings: TrainerSettings) -> Iterator[None]:
    """Within it, a failure of one process of the run ends all of them.

    Raises:
        RunError: not all processes have started, or one is gone; with no text in all but the first
            that failed.
    """
    parent, over = os.getppid(), threading.Event()
    if count_processes(settings) == 1:
        yield
    elif in_torchrun() or (in_slurm() and all(name in os.environ for name in TASK)):
        with _Meeting() as meeting:
            threading.Thread(target=meeting.watch, daemon=True).start()
            yield
    elif int(os.environ.get("LOCAL_RANK", "0")):
        threading.Thread(target=_follow, args=(parent, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()
    else:
        yield


class _Meeting:
    """The store of a run's processes, in which each says that it is here, has failed or ends."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if in_torchrun():
            self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        else:
            from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

            slurm = SLURMEnvironment(auto_requeue=False)
            self.rank, self.count = slurm.global_rank(), slurm.world_size()
            os.environ["MASTER_ADDR"] = slurm.main_address
            os.environ["MASTER_PORT"] = str(slurm.main_port)
        wait = timedelta(seconds=PATIENCE)
        try:
            store, *_ = next(dist.rendezvous("env://", self.rank, self.count, timeout=wait))  # pyright: ignore
        except RuntimeError:
            raise RunError(f"process {self.rank} of {self.count} cannot reach the first") from None
        self._store: Any = dist.PrefixStore(f"remnant/{next(_runs)}", store)  # pyright: ignore
        self._heard, self._over, self._lock = False, False, threading.Lock()

    def __enter__(self) -> "_Meeting":
        here = self._wait_for_all("here", self.count)
        if here < self.count:
            raise RunError(f"{here} of {self.count} processes have started; start all of them")
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._over = error is not None
        first, lost = True, error is not None and _is_loss(error)
        try:
            if error is None:
                self._wait_for_all("ended", self.count)
            else:
                if self.rank == 0:
                    atexit.register(self._keep_open)
                first = not self._heard and self._store.add("failed", 1) == 1
                self._wait_for_others() if first else self._hear()
        except RuntimeError:
            lost = error is not None
        self._over = True
        if not first and isinstance(error, Exception):
            raise RunError("") from None
        if lost:
            raise RunError(LOST) from error

    def watch(self) -> None:
        """Ends this process, which may hang in a barrier, when another has failed or is gone."""
        try:
            while not self._over and not self._store.check(["failed"]):
                time.sleep(PAUSE)
            if not self._over:
                self._hear()
            line = None
        except RuntimeError:
            line = LOST
        time.sleep(GRACE)
        if not self._over:
            if line and not int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))):
                os.write(2, f"error: {line}\n".encode())
            os._exit(CODE)

    def _keep_open(self) -> None:
        """Lets the others end before the store, which may be this process's, is gone."""
        time.sleep(GRACE + 1)

    def _hear(self) -> None:
        with self._lock:
            if not self._heard:
                self._heard = True
                self._store.add("heard", 1)

    def _wait_for_others(self) -> None:
        """Keeps the store open until the others have heard of a failure."""
        self._heard = True
        end = time.monotonic() + 5 * GRACE
        while self._store.add("heard", 0) < self.count - 1 and time.monotonic() < end:
            time.sleep(PAUSE / 4)

    def _wait_for_all(self, key: str, count: int) -> int:
        found, end = self._store.add(key, 1), time.monotonic() + PATIENCE
        while found < count and time.monotonic() < end:
            time.sleep(PAUSE / 4)
            found = self._store.add(key, 0)
        return found


def _is_loss(error: BaseException) -> bool:
    """Whether this is what a process meets when another one is gone."""
    words = r"onnection (closed|reset|refused)|Broken pipe|gloo|NCCL|Socket"
    return type(error).__name__.startswith("Dist") or (
        isinstance(error, RuntimeError)
        and not isinstance(error, RunError)
        and bool(re.search(words, str(error)))
    )


def _follow(parent: int, over: threading.Event) -> None:
    """Ends this process when the one that started it has ended."""
    while not over.wait(PAUSE):
        if os.getppid() != parent:
            os._exit(CODE)
