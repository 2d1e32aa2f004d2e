"""The comparison as curves over training: one panel a quantity, one line a model.

The x axis is the step, or what was spent: tokens, FLOPs or hours, so that models can be compared at
equal cost. Intervals are shaded; of a few points a model they are bars, the models' side by side.
Colours, marks and dashes tell models apart together, and drawings follow the reader's light or dark
setting (a PNG is light).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from eval import drawing, plots
from eval.comparison import NO_BREAK, TRAIN_LOSS, VALID_BITS, Column, Entry, lay_side_by_side
from eval.errors import RequestError
from eval.gather import RunRecord, Saved, finite
from eval.quantities import Estimate
from eval.summary import seeds_mean

FORMATS = (".svg", ".png", ".html")
MOST = 12
"""Panels in one drawing; more are asked for by name."""
WIDTH, HEIGHT, ACROSS = 290, 190, 3
REPORTED = {TRAIN_LOSS: "loss", VALID_BITS: "val_bits_per_byte"}
"""Quantities that runs report between their saved models, too."""
ASIDE = {"nats/token", "validation nats/token"}
"""Quantities whose curves would only repeat those of bits per byte."""
SKIPPED = 0.02
"""Losses of this first part of training are not drawn: they fall too fast to leave room."""


class Across(NamedTuple):
    """What a curve is over: its title, how its ticks read, and its value for a row or a model."""

    title: str
    ticks: str
    of_row: Callable[[Saved, dict[str, Any]], float | None]
    of_checkpoint: Callable[[Saved], float | None]


def _hours(run: RunRecord | None, step: int) -> float | None:
    seconds = run.seconds.get(step) if run else None
    return None if seconds is None else seconds / 3600


AXES = {
    "step": Across("training step", ",d", lambda _, row: row["step"], lambda c: c.step),
    "tokens": Across(
        "tokens seen", "~s", lambda _, row: row.get("tokens_seen"), lambda c: c.tokens_seen
    ),
    "flops": Across(
        "FLOPs spent in training",
        "~g",
        lambda c, row: c.flops(row.get("tokens_seen")),
        lambda c: c.flops(c.tokens_seen),
    ),
    "time": Across(
        "hours of training",
        "~g",
        lambda c, row: _hours(c.run, row["step"]),
        lambda c: _hours(c.run, c.step),
    ),
}  # fmt: skip


def write_plot(
    path: str | Path, entries: list[Entry], axis: str = "step", chosen: Sequence[str] | None = None
) -> str:
    """Draws and writes.

    Args:
        path: its ending says the format, one of `FORMATS`.
        entries: of every step.
        axis: one of `AXES`.
        chosen: columns, as in `compare`.

    Returns:
        What was written, in a line.

    Raises:
        RequestError: there is nothing to draw, or the file cannot be written.
    """
    panels = draw_data(entries, axis, chosen)
    if not panels:
        raise RequestError(
            f"--plot {path}: nothing was measured at several training steps, over --x {axis}; "
            "give runs, or results of more of their models"
        )
    full = sorted(panels, key=lambda heading: -len({p["model"] for p in panels[heading]}))[:MOST]
    drawn = {heading: points for heading, points in panels.items() if heading in full}
    known = {point["model"] for points in drawn.values() for point in points}
    names = [name for name in dict.fromkeys(entry.label for entry in entries) if name in known]
    drawing.write_chart(path, _chart(drawn, names, AXES[axis]))
    more = len(panels) - len(drawn)
    return f"{path}" + (f": {len(drawn)} panels, {more} more by --columns" if more else "")


def draw_data(
    entries: list[Entry], axis: str = "step", chosen: Sequence[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The points of each panel, by its title: model, x, value, low, high, step, n, share.

    Panels in which no model has two points are left out.
    """
    models: dict[str, list[Entry]] = {}
    for entry in entries:
        models.setdefault(entry.label, []).append(entry)
    panels = {}
    for column in lay_side_by_side(entries, chosen).columns:
        if column.quantity.section == "training" or (chosen is None and _aside(column)):
            continue
        points = [p for several in models.values() for p in _points(column, several, AXES[axis])]
        if column.quantity in REPORTED and points:
            start = SKIPPED * max(point["step"] for point in points)
            points = [point for point in points if point["step"] > start]
        if points and max(Counter(point["model"] for point in points).values()) > 1:
            panels[column.heading.replace(NO_BREAK, " ")] = points
    return panels


def _aside(column: Column) -> bool:
    quantity = column.quantity
    return quantity.name in ASIDE or ("method", "chance") in quantity.places


def _points(column: Column, entries: list[Entry], axis: Across) -> list[dict[str, Any]]:
    """Of one model, by step."""
    by_step: dict[int, tuple[Estimate, float]] = {}
    for entry in entries:
        figure = entry.figures.get(column.quantity)
        places = [axis.of_checkpoint(c) for c in entry.checkpoints]
        known = [float(place) for place in places if place is not None]
        if figure is not None and known:
            by_step[entry.step] = figure, fmean(known)
    if column.quantity in REPORTED:
        by_step |= _reported(REPORTED[column.quantity], entries, axis)
    scale = 100 if column.quantity.share else 1
    return [
        {
            "model": entries[0].label,
            "x": x,
            "value": scale * figure.value,
            "low": scale * (figure.value if figure.low is None else figure.low),
            "high": scale * (figure.value if figure.high is None else figure.high),
            "step": step,
            "n": figure.n,
            "share": column.quantity.share,
        }
        for step, (figure, x) in sorted(by_step.items())
    ]


def _reported(name: str, entries: list[Entry], axis: Across) -> dict[int, tuple[Estimate, float]]:
    """What the runs of a model wrote down while training, their seeds together."""
    runs = {id(c.run): c for entry in entries for c in entry.checkpoints if c.run}
    values: dict[int, list[tuple[float, float]]] = {}
    for checkpoint in runs.values():
        assert checkpoint.run
        for row in checkpoint.run.metrics:
            x = axis.of_row(checkpoint, row)
            if finite(row.get(name)) and x is not None:
                values.setdefault(row["step"], []).append((float(row[name]), float(x)))
    return {
        step: (seeds_mean([value for value, _ in several]), fmean(x for _, x in several))
        for step, several in values.items()
    }


def _chart(panels: dict[str, list[dict[str, Any]]], names: list[str], axis: Across) -> plots.Chart:
    across = min(ACROSS, len(panels))
    wide = 45 + 7 * max(map(len, names))  # of a name with its mark
    columns = max(1, across * WIDTH // min(wide, 365))
    legend = {"title": None, "orient": "top", "columns": columns, "symbolSize": 90}
    drawn = []
    for heading, points in panels.items():
        ticks = plots.whole_ticks((point["x"] for point in points), steps=5)
        x_axis = {"title": axis.title, "tickCount": 4, "format": axis.ticks, "grid": False}
        share = points[0]["share"]
        chart = plots.lines(
            points,
            "x",
            None,
            "model",
            axis=x_axis | ({"values": ticks} if ticks else {}),
            upright={"scale": {"zero": False, "nice": True}, "axis": {"tickCount": 5}},
            share=share,
            series={name: i for i, name in enumerate(names)},
            legend=legend,
            size=(WIDTH, HEIGHT),
        )
        drawn.append({**chart, "title": heading})
    return {"concat": drawn, "columns": across, "spacing": 26}
