"""What a request will cost: rows and seconds for each model, by a few rows of each kind of task."""

import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from eval.inversion.task import Task

SIZES = ("mixers", "d_model", "n_layers", "context", "parameters")
"""Models that are equal in these take equal time."""
ROWS = 2
"""Prompts whose time is taken of a search, after one that is not."""
STEPS, PARTS = ("steps", "resolve"), 20
"""Settings of gradient solvers that count steps, and the part of them that is timed."""


class Time(NamedTuple):
    """Seconds of a row, and those that the first row at a site takes beyond it."""

    row: float
    site: float


def price(tasks: list[Task], there: Collection[str]) -> list[dict[str, Any]]:
    """A record for each model: model, step, rows, to_do, seconds, longest (the slowest solver).

    A few rows of each solver and slice are computed in a middle layer and thrown away. Tasks of one
    solver take longer or shorter with the prompt, so that the seconds are an estimate.

    Args:
        tasks: of a request.
        there: keys of rows that need not be computed.
    """
    times: dict[Hashable, Time] = {}
    groups: dict[Hashable, list[Task]] = defaultdict(list)
    for task, _ in _left(tasks, there):
        groups[_kind(task)].append(task)
    with TemporaryDirectory(prefix="eval-") as directory:
        for kind, alike in groups.items():
            times[kind] = _time(alike[len(alike) // 2], Path(directory))
    by_model: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        by_model[id(task.checkpoint)].append(task)
    return [_priced(alike, there, times) for alike in by_model.values()]


def _kind(task: Task) -> Hashable:
    about = task.checkpoint.provenance
    sizes = str([about.get(name) for name in SIZES])
    return sizes, task.solver.name, str(task.settings), str(task.slice), task.noise


def _time(task: Task, directory: Path) -> Time:
    """Times one prompt, which pays what a site costs once, and then others.

    Of a gradient solver, whose rows share their steps, it is a batch with a part of the steps, and
    with twice as many.
    """
    steps = {name: n for name, n in task.solver.settings.items() if name in STEPS and n > PARTS}
    if task.solver.family == "gradient" and steps:
        short, double = (
            replace(task, solver=task.solver.configured(
                {name: times * n // PARTS for name, n in steps.items()}
            ))
            for times in (1, 2)
        )  # fmt: skip
        _seconds(replace(short, trials=task.trials[:1]), directory)
        few = _seconds(short, directory)
        more = max(0.0, _seconds(double, directory) - few)
        return Time((few + (PARTS - 1) * more) / len(task.keys), 0.0)
    others = task.trials[1 : 1 + ROWS] or task.trials[:1]
    first = _seconds(replace(task, trials=task.trials[:1]), directory)
    seconds = _seconds(replace(task, trials=others), directory) / len(others)
    return Time(seconds / len(task.sites), max(0.0, first - seconds) / len(task.sites))


def _seconds(task: Task, directory: Path) -> float:
    started = time.perf_counter()
    task.rows(directory)
    return time.perf_counter() - started


def _priced(
    tasks: list[Task], there: Collection[str], times: dict[Hashable, Time]
) -> dict[str, Any]:
    about = tasks[0].checkpoint.provenance
    rows = [key for task in tasks for key in task.keys]
    by_solver: dict[str, float] = defaultdict(float)
    paid: set[Hashable] = set()  # what a site costs once, such as a fit that the model keeps
    for task, to_do in _left(tasks, there):
        kind = _kind(task)
        sites = {(kind, site) for site in task.sites} - paid
        paid |= sites
        by_solver[task.solver.name] += to_do * times[kind].row + len(sites) * times[kind].site
    return {
        "model": about["name"],
        "step": about["step"],
        "rows": len(rows),
        "to_do": sum(to_do for _, to_do in _left(tasks, there)),
        "seconds": sum(by_solver.values()),
        "longest": max(by_solver, key=lambda name: by_solver[name], default=""),
    }


def _left(tasks: list[Task], there: Collection[str]) -> Iterator[tuple[Task, int]]:
    """The tasks of which rows are missing, and how many."""
    for task in tasks:
        if missing := len(set(task.keys).difference(there)):
            yield task, missing
