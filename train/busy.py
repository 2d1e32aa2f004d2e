"""A machine whose cores other processes use: said before training, as it is then slow."""

import os
import time
from pathlib import Path

import torch
from lightning.pytorch import Trainer

STAT = Path("/proc/stat")
MOMENT = 0.1
"""Seconds in which other processes are watched."""
MISSING = 0.75
"""Cores that training lacks, from which on a machine is called busy."""


def busy_machine(trainer: Trainer) -> str | None:
    """A line that says that other processes use the cores that training is about to use, if so.

    Linux alone tells how much of the last moment each core was idle.
    """
    if trainer.strategy.root_device.type != "cpu" or trainer.world_size > 1 or not STAT.is_file():
        return None
    threads, before, own = torch.get_num_threads(), _core_ticks(), time.process_time()
    time.sleep(MOMENT)
    own = (time.process_time() - own) * os.sysconf("SC_CLK_TCK")
    idle, passed = (after - early for after, early in zip(_core_ticks(), before, strict=True))
    cores = len(os.sched_getaffinity(0))
    free = min(1.0, (idle + own) / max(1, passed)) * cores
    if min(threads, cores) - free < MISSING:
        return None
    fewer = max(1, round(free))
    advice = f"OMP_NUM_THREADS={fewer} may be faster" if fewer < threads else "it will be slow"
    return (
        f"this machine is busy: {free:.1f} of {cores} cores are free, training asks for {threads}; "
        f"{advice}"
    )


def _core_ticks() -> tuple[int, int]:
    """Ticks of the cores that this process may use, since the machine started: idle, and all."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text().splitlines()]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user
    ticks = [list(map(int, words[1:9])) for words in lines if words[0] in mine]
    return sum(sum(core[3:5]) for core in ticks), sum(map(sum, ticks))
