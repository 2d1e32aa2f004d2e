"""One evaluation over several processes, started by torchrun: each takes its share of the jobs.

Every process appends to a file of its own, so that none waits for another; when all are done the
first one merges the files. What an interrupted run left in them is merged when the next one starts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

Item = TypeVar("Item")
PATIENCE = timedelta(days=7)  # shares of the work differ by hours


def rank() -> int:
    """This process's number, 0 when it is the only one."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int | None:
    """This process's number on its machine; None where torchrun did not start it."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)


def world() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def share(items: list[Item]) -> list[Item]:
    """This process's share, dealt like cards so that costs even out."""
    return items[rank() :: world()]


@contextmanager
def together() -> Iterator[None]:
    """Joins the processes for the time of the block; they can then `wait` for each other."""
    if world() == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def wait() -> None:
    """Until every process has come here."""
    if world() > 1:
        import torch.distributed as dist

        dist.monitored_barrier(timeout=PATIENCE)
