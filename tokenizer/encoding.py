"""Stories to ids in processes of their own, a bounded number of batches ahead.

The tokenizer's own threads leave the making of arrays to one core; processes share that out, too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from tokenizers import Tokenizer

from tokenizer import bpe
from tokenizer.errors import CorpusError
from tokenizer.layout import Encoder, Laid, Layout

LETTERS = 8 << 20  # in a batch, so that memory stays bounded where stories are books
AHEAD = 2  # batches a process: one in work, one that waits

Owner = TypeVar("Owner")


def encoded(
    stories: Iterable[tuple[Owner, str]],
    tokenizer: Tokenizer,
    layout: Layout,
    workers: int | None = None,
) -> Iterator[tuple[Owner, Laid]]:
    """Yield stories of several owners, laid out: batch by batch, each owner's in their order.

    Args:
        stories: With the owner of each.
        tokenizer: Encodes them.
        layout: How to lay them out.
        workers: Processes; 1 is this one, all cores are used when not given.

    Raises:
        CorpusError: A process was killed.
    """
    workers = workers or _cores()
    if workers == 1:
        encode = Encoder(tokenizer, layout)
        for owner, batch in _batches(stories):
            for laid in encode(batch):
                yield owner, laid
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=_start,
        initargs=(tokenizer.to_str(), layout),
    )
    waiting: deque[tuple[Owner, Future[list[Laid]]]] = deque()
    try:
        for owner, batch in _batches(stories):
            waiting.append((owner, pool.submit(_encode, batch)))
            while len(waiting) > AHEAD * workers:
                yield from _done(waiting)
        while waiting:
            yield from _done(waiting)
    except BrokenProcessPool as error:
        raise CorpusError(
            f"--workers {workers}: one was killed (out of memory?); start again with fewer"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """How many this process may use, or, where the system does not tell, how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _done(waiting: deque[tuple[Owner, Future[list[Laid]]]]) -> Iterator[tuple[Owner, Laid]]:
    owner, future = waiting.popleft()
    for laid in future.result():
        yield owner, laid


def _batches(stories: Iterable[tuple[Owner, str]]) -> Iterator[tuple[Owner, list[str]]]:
    """Yield batches of one owner's stories; whoever has enough of them comes first."""
    pending: dict[Owner, list[str]] = {}
    letters: dict[Owner, int] = {}
    for owner, story in stories:
        batch = pending.setdefault(owner, [])
        batch.append(story)
        letters[owner] = letters.get(owner, 0) + len(story)
        if len(batch) == bpe.BATCH or letters[owner] > LETTERS:
            yield owner, pending.pop(owner)
            letters[owner] = 0
    yield from pending.items()


_encoder: Callable[[Iterable[str]], Iterator[Laid]]
"""Of a process of the pool, which is the only place where it is set: made once, not for a batch."""


def _start(tokenizer: str, layout: Layout) -> None:
    """Prepare a process of the pool."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that packs
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(Tokenizer.from_str(tokenizer), layout)


def _end_with_parent() -> None:
    """End this process with its parent: killed, it cannot say that there is nothing left to do."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _encode(stories: list[str]) -> list[Laid]:
    return list(_encoder(stories))
