"""The comparison as curves over training: one panel a quantity, one line a model.

The x axis is the step, or the tokens, FLOPs or hours that training took until it, so that models
can be compared at equal cost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from eval import RequestError, drawing, plots
from eval.cells import seeds_mean
from eval.comparison import NO_BREAK, TRAIN_LOSS, VALID_BITS, Column, Entry, lay_side_by_side
from eval.gather import Saved, finite
from eval.quantities import Estimate
from eval.tables import group

FORMATS = (".svg", ".png", ".html")
MOST = 12
"""Panels in one drawing, at most; `--columns` chooses others."""
WIDTH, HEIGHT, ACROSS = 290, 190, 3
REPORTED = {TRAIN_LOSS: "loss", VALID_BITS: "val_bits_per_byte"}
"""Quantities that runs report between their saved models, too."""
ASIDE = {"nats/token", "validation nats/token"}
"""Quantities whose curves would only repeat those of bits per byte."""
SKIPPED = 0.02
"""Losses of this first part of training are not drawn: they fall too fast to leave room."""


class Across(NamedTuple):
    """An x axis: its title, the format of its ticks, and the value of a checkpoint's run for a step
    and the tokens seen until it; None where it is not known.
    """

    title: str
    ticks: str
    value: Callable[[Saved, int, float | None], float | None]


def _hours(checkpoint: Saved, step: int, _: float | None) -> float | None:
    seconds = checkpoint.seconds(step)
    return None if seconds is None else seconds / 3600


AXES = {
    "step": Across("training step", ",d", lambda _, step, tokens: step),
    "tokens": Across("tokens seen", "~s", lambda _, step, tokens: tokens),
    "flops": Across("FLOPs spent in training", "~g", lambda c, step, tokens: c.flops(tokens)),
    "time": Across("hours of training", "~g", _hours),
}


def write_plot(
    path: str | Path, entries: list[Entry], axis: str = "step", chosen: Sequence[str] | None = None
) -> str:
    """Draws the panels into a file whose ending, one of `FORMATS`, says the format.

    Args:
        path: of the file.
        entries: of every step.
        axis: one of `AXES`.
        chosen: columns, as in `compare`.

    Returns:
        The path, with the number of panels if some are left out.

    Raises:
        RequestError: there is nothing to draw.
        OSError: the file cannot be written.
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
    models = group(entries, lambda entry: entry.label).values()
    panels = {}
    for column in lay_side_by_side(entries, chosen).columns:
        quantity = column.quantity
        aside = quantity.name in ASIDE or ("method", "chance") in quantity.places
        if quantity.section == "training" or (chosen is None and aside):
            continue
        points = [p for several in models for p in _points(column, several, AXES[axis])]
        if quantity in REPORTED and points:
            start = SKIPPED * max(point["step"] for point in points)
            points = [point for point in points if point["step"] > start]
        if points and max(Counter(point["model"] for point in points).values()) > 1:
            panels[column.heading.replace(NO_BREAK, " ")] = points
    return panels


def _points(column: Column, entries: list[Entry], axis: Across) -> list[dict[str, Any]]:
    """Of one model, by step."""
    by_step: dict[int, tuple[Estimate, float]] = {}
    for entry in entries:
        figure = entry.figures.get(column.quantity)
        places = [axis.value(c, c.step, c.tokens_seen) for c in entry.checkpoints]
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
    """A figure that the runs of a model reported while training, their seeds together."""
    runs = {id(c.run): c for entry in entries for c in entry.checkpoints if c.run}
    values: dict[int, list[tuple[float, float]]] = {}
    for checkpoint in runs.values():
        assert checkpoint.run
        for row in checkpoint.run.metrics:
            x = axis.value(checkpoint, row["step"], row.get("tokens_seen"))
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
        chart = plots.lines(
            points,
            "x",
            None,
            "model",
            axis=x_axis | ({"values": ticks} if ticks else {}),
            upright={"scale": {"zero": False, "nice": True}, "axis": {"tickCount": 5}},
            share=points[0]["share"],
            series={name: i for i, name in enumerate(names)},
            legend=legend,
            size=(WIDTH, HEIGHT),
        )
        drawn.append({**chart, "title": heading})
    return {"concat": drawn, "columns": across, "spacing": 26}
