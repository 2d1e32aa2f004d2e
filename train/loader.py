"""Batches cut ahead of time, by processes that do nothing else.

Which samples a batch holds is decided by its first one alone, so the number of processes decides
nothing but the speed. This module imports no Lightning: the processes start by importing it.
"""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from tokenizer import CorpusError
from train.errors import RunError
from train.windows import Batch, Windows


class TrainBatches:
    """Endless batches of `micro` windows; those of all devices together are consecutive samples.

    Args:
        windows: of the training split.
        first: the sample to start from.
        micro: windows per batch.
        rank: which device this is.
        devices: how many there are.
        workers: processes that cut batches; 0 cuts them here.
        pin: whether batches go into pinned memory, from which a GPU copies them by itself.
    """

    def __init__(
        self,
        windows: Windows,
        first: int,
        micro: int,
        rank: int = 0,
        devices: int = 1,
        workers: int = 0,
        pin: bool = False,
    ) -> None:
        self._windows, self._micro = windows, micro
        self._starts = _Starts(first + rank * micro, devices * micro)
        self._workers, self._pin = workers, pin

    def __iter__(self) -> Iterator[Batch]:
        """From the first sample on.

        Raises:
            tokenizer.CorpusError: the data cannot be read any more.
            RunError: a worker was killed while it handed over a batch.
        """
        loader = DataLoader(
            _Batches(self._windows, self._micro),
            batch_size=None,
            sampler=self._starts,
            num_workers=self._workers,
            pin_memory=self._pin,
            # A forked process would inherit the state of CUDA, and of every thread's locks.
            multiprocessing_context="spawn" if self._workers else None,
            worker_init_fn=partial(_settle, parent=os.getpid()) if self._workers else None,
            generator=torch.Generator(),  # of its seeds: the run's own must not depend on workers
        )
        iterators = [iter(loader)]
        # Workers end with their iterator, which an error's traceback may hold until the very end.
        atexit.register(iterators.clear)
        try:
            while True:
                try:
                    batch = next(iterators[0])
                except (ConnectionError, EOFError) as error:  # killed while it hands a batch over
                    raise _worker_died(error) from error
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            iterators.clear()
            atexit.unregister(iterators.clear)


@contextmanager
def killed_workers_named() -> Iterator[None]:
    """Turns torch's report of a killed worker, raised wherever the run is just then, into one line.

    Raises:
        RunError: naming the way on.
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise _worker_died(error) from error


def _worker_died(error: Exception) -> RunError:
    reason = str(error).splitlines()[0].rstrip(". ") if str(error) else "end of file"
    return RunError(
        f"--loader_workers: one died ({reason}; out of memory?); go on with --resume auto, and "
        "fewer of them if need be"
    )


class _Starts(Sampler[int]):
    """The first sample of every batch, without end."""

    def __init__(self, first: int, step: int) -> None:
        self._first, self._step = first, step

    def __iter__(self) -> Iterator[int]:
        return count(self._first, self._step)


class _Batches(Dataset[Any]):
    """A batch for every first sample, or the reason why there is none.

    The reason is handed over as a value: raised in a worker, it would lose its one line to a
    traceback.
    """

    def __init__(self, windows: Windows, size: int) -> None:
        self._windows, self._size = windows, size

    def __getitem__(self, first: int) -> Batch | CorpusError:
        try:
            return self._windows.batch(first, self._size)
        except CorpusError as error:
            return error


def _settle(worker: int, parent: int) -> None:
    """Make a worker live exactly as long as the run.

    Signals meant to end the run reach its whole group, but it needs its workers to end a step.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != parent:  # killed while this started; from now on torch looks after that
        os._exit(1)
