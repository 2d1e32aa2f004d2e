"""Several processes of one run end together: where one refuses or fails, the others follow it.

The processes of a run meet in a store before they start: one store for all machines under torchrun
or SLURM, else a store of the parent. The first that fails says so there and prints a line. The
others, which may hang in a barrier, end with the same code and print nothing. At the end all wait
for the last: a launcher that ends a job with its first process finds everything saved. Later runs
of the same processes meet under other names there.
"""

import atexit
import contextlib
import functools
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from train.processes.launcher import TASK, count_processes, in_slurm, in_torchrun
from train.settings import RunError, TrainerSettings

PATIENCE = 600
"""Seconds for all processes to start, and for the first to wait for the others' end."""
GRACE = 2
"""Seconds in which a process that another's failure ends may end by itself."""
PAUSE = 0.2
PORT = "REMNANT_MEETING_PORT"
"""Where the parent of Lightning's processes keeps their store, on the machine itself."""
LOST = "a process or a machine of this run is gone; what was saved stays; go on with --resume auto"
CODE = 2
_runs = itertools.count()
_in_process = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it, no other thread of this process makes or trains a run.

    The two would share random numbers, and a lock of their directory.

    Raises:
        RunError: another thread is within it.
    """
    if not _in_process.acquire(blocking=False):
        raise RunError(
            "another thread of this process trains a run, and both would draw from its random "
            "numbers; train one after the other, or in processes"
        )
    try:
        yield
    finally:
        _in_process.release()


@contextlib.contextmanager
def together(settings: TrainerSettings) -> Iterator[None]:
    """Within it, a failure of one process of the run ends all of them.

    Raises:
        RunError: not all processes have started, or one is gone; with no text in all but the first
            that failed.
    """
    child = int(os.environ.get("LOCAL_RANK", "0")) > 0
    unknown = child and not (_is_launched() or PORT in os.environ)  # of another launcher
    if count_processes(settings) == 1 or unknown:
        yield
        return
    with _Meeting() as meeting:
        threading.Thread(target=meeting.watch, daemon=True).start()
        yield


class _Meeting:
    """The store of a run's processes, in which each says that it is here, has failed or ends."""

    def __init__(self) -> None:
        from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

        self.rank = self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.count: int | None = None
        if in_torchrun():
            self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        elif _is_launched():
            from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

            slurm = SLURMEnvironment(auto_requeue=False)
            self.local, self.rank = slurm.local_rank(), slurm.global_rank()
            self.count = slurm.world_size()
            os.environ["MASTER_ADDR"] = slurm.main_address
            os.environ["MASTER_PORT"] = str(slurm.main_port)
        store = self._find_first(self.count) if self.count else self._find_parent()
        self._store: Any = PrefixStore(f"remnant/{next(_runs)}", store)
        self._heard, self._over, self._lock = False, False, threading.Lock()

    def _find_first(self, count: int) -> Any:
        """The store of the first process of all machines, at the address of torchrun or SLURM.

        Raises:
            RunError: the address cannot be found or reached.
        """
        from torch.distributed import DistError, rendezvous  # pyright: ignore

        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        try:
            socket.getaddrinfo(address, port)
        except (OSError, UnicodeError):
            line = f"MASTER_ADDR is {address}, which this machine does not know; set it to an "
            line += "address of the first machine that all reach (torchrun: --local-addr)"
            raise RunError(line if self._speaks else "") from None
        try:
            wait = timedelta(seconds=PATIENCE)
            store, *_ = next(rendezvous("env://", self.rank, count, timeout=wait))
        except DistError:
            line = f"process {self.rank} of {count} cannot reach the first at {address}:{port}"
            if not self.rank:
                line = f"{address}:{port} is taken, or no address of this machine; set MASTER_PORT"
            raise RunError(line) from None
        return store

    def _find_parent(self) -> Any:
        """The store of the process from which Lightning starts the others of this machine.

        Raises:
            RunError: it is gone.
        """
        if not self.local:
            return _own_store()
        from torch.distributed import DistError, TCPStore  # pyright: ignore

        try:
            wait = timedelta(seconds=5 * GRACE)
            return TCPStore("127.0.0.1", int(os.environ[PORT]), timeout=wait)
        except DistError:
            raise RunError("") from None

    @property
    def _speaks(self) -> bool:
        """Whether this process speaks where none can say that it is the first to do so."""
        return self.rank == 1 or not self.local

    def __enter__(self) -> "_Meeting":
        here = self._wait_for_all("here", self.count or 1, PATIENCE)
        if here < (self.count or 1):
            raise RunError(f"{here} of {self.count} processes have started; start all of them")
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._over = error is not None
        speaks, lost = True, error is not None and _is_loss(error)
        try:
            if error is None:
                # The first may still evaluate; the others see its store go.
                patience = math.inf if self.rank else PATIENCE
                self._wait_for_all("ended", self._store.add("here", 0), patience)
            else:
                speaks = not self._heard and self._store.add("failed", 1) == 1
                self._wait_for_others(lost) if speaks else self._hear()
        except RuntimeError:  # the store is gone, and the process that kept it
            lost = lost or isinstance(error, RuntimeError)
            speaks = self._speaks or not lost
        self._over = True
        if not speaks and isinstance(error, Exception):
            raise RunError("") from None
        if lost:
            raise RunError(LOST) from error

    def watch(self) -> None:
        """Ends this process, which may hang in a barrier, when another has failed or is gone."""
        line = ""
        try:
            while not self._over and not self._store.check(["failed"]):
                time.sleep(PAUSE)
            if not self._over:
                self._hear()
        except RuntimeError:
            line = f"error: {LOST}\n" if self._speaks else ""
        time.sleep(GRACE)
        if not self._over:
            os.write(2, line.encode())
            os._exit(CODE)

    def _hear(self) -> None:
        with self._lock:
            if not self._heard:
                self._heard = True
                self._store.add("heard", 1)

    def _wait_for_others(self, lost: bool) -> None:
        """Keeps the store open until the others, of which one is perhaps lost, know of a failure.

        Lightning kills a parent that ends after the processes that it started.
        """
        self._heard = True
        others, end = self._store.add("here", 0) - 1 - lost, time.monotonic() + 5 * GRACE
        if self.count and self.rank == 0:
            atexit.register(time.sleep, GRACE + 1)  # the store may end with this process
        while self._store.add("heard", 0) < others and time.monotonic() < end:
            time.sleep(PAUSE / 4)

    def _wait_for_all(self, key: str, count: int, seconds: float) -> int:
        found, end = self._store.add(key, 1), time.monotonic() + seconds
        while found < count and time.monotonic() < end:
            time.sleep(PAUSE / 4)
            found = self._store.add(key, 0)
        return found


@functools.cache
def _own_store() -> Any:
    """The store that this process keeps, as long as it lives, for those that Lightning starts."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ[PORT] = str(store.port)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a store that is gone
    return store


def is_left_to_parent(settings: TrainerSettings) -> bool:
    """Whether Lightning has started this process, whose parent does a run of one process alone.

    It goes through its script from the top, and meets runs that were not what it was started for.
    """
    child = PORT in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"
    return child and count_processes(settings) == 1


def _is_launched() -> bool:
    """Whether torchrun or SLURM has started this process and all others of its run."""
    return in_torchrun() or (in_slurm() and all(name in os.environ for name in TASK))


def _is_loss(error: BaseException) -> bool:
    """Whether this is what a process meets when another one is gone.

    torch has types of errors for its stores and for NCCL. Those of gloo are plain, and begin with
    the name of its source file.
    """
    from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

    return isinstance(error, DistError) or (type(error) is RuntimeError and "gloo/" in str(error))
