"""Timing of short pieces of work, side by side: on one CPU thread, or in CUDA graphs."""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, TypeVar

import torch

Timer = Callable[[], float]  # returns the seconds that one call took
Call = Callable[[int], object]  # works on the operands of that number
Name = TypeVar("Name")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def misfits() -> tuple[type[Exception], ...]:
    """What is raised where work is too large for the device, or cannot be compiled for it."""
    if find_spec("triton") is None:
        return (RuntimeError,)
    from triton.errors import TritonError

    return RuntimeError, TritonError


def reason(error: Exception) -> str:
    """The name of an error, and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def cpu_timer(call: Call) -> Timer:
    """Return a timer of single calls, in seconds of this process: others' turns do not count."""
    call(0)

    def seconds() -> float:
        start = time.process_time()
        call(0)
        return time.process_time() - start

    return seconds


def graph_timer(call: Call, operands: int, at_least: float = 0.004) -> Timer:
    """Return a timer of a CUDA graph, free of the host's time to launch.

    Args:
        call: what to time; nothing in it may wait for the device.
        operands: how many sets of operands there are. The graph goes through all of them, so that
            none is found in the cache where the last call left it.
        at_least: seconds that a reading should last; the graph is replayed so many times.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in [*range(operands)] * 2:
            call(number)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(operands):
            call(number)

    def seconds(replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / (replays * operands)

    seconds(1)
    replays = 1 + int(at_least / (seconds(1) * operands))
    return lambda: seconds(replays)


def in_turns(timers: dict[Name, Timer], rounds: int) -> dict[Name, list[float]]:
    """Return each timer's readings over rounds in which all of them take a turn."""
    readings: dict[Name, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            readings[name].append(timer())
    return readings


class Peak(NamedTuple):
    """What the device reaches on the simplest work there is."""

    flops: float  # a second, multiplying two square matrices of 8192
    bandwidth: float  # bytes a second, copying one gigabyte


def peak(dtype: torch.dtype) -> Peak:
    """Measure the device's peaks."""
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    timers = {
        "product": graph_timer(lambda _: a @ b, 1),
        "copy": graph_timer(lambda _: target.copy_(source), 1),
    }
    product, copy = map(statistics.median, in_turns(timers, 10).values())
    return Peak(2 * side**3 / product, 2 * source.nbytes / copy)
