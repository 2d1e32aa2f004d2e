"""The comparison as curves over training: one panel a quantity, one line a model.

The x axis is the step, or what was spent: tokens, FLOPs or hours, so that models can be compared at
equal cost. Intervals are shaded; of a few points a model they are bars, the models' side by side.
Colours, marks and dashes tell models apart together, and drawings follow the reader's light or dark
setting (a PNG is light).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from arch.files import write_file
from eval.comparison.entries import Entry
from eval.comparison.evidence import Checkpoint, Run, finite
from eval.comparison.figures import TRAIN_LOSS, TRAINING, VALID_BITS, Figure, flops, pool
from eval.comparison.table import NO_BREAK, Column, compare
from eval.errors import RequestError
from eval.files import write_text
from eval.plots import SERIES, SERIES_DARK, theme, whole_ticks

FORMATS = (".svg", ".png", ".html")
MOST = 12
"""Panels in one drawing; more are asked for by name."""
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
WIDTH, HEIGHT, ACROSS = 290, 190, 3
REPORTED = {TRAIN_LOSS: "loss", VALID_BITS: "val_bits_per_byte"}
"""Quantities that runs report between their saved models, too."""
FEW = 5
"""Points of a model in a panel whose intervals are bars."""
APART = 0.012
"""Between models that are drawn side by side, as a share of the axis."""
ASIDE = {"nats/token", "validation nats/token"}
"""Quantities whose curves would only repeat those of bits per byte."""
SKIPPED = 0.02
"""Losses of this first part of training are not drawn: they fall too fast to leave room."""


class Axis(NamedTuple):
    """What a curve is over: its title, how its ticks read, and its value for a row or a model."""

    title: str
    ticks: str
    of_row: Callable[[Checkpoint, dict[str, Any]], float | None]
    of_checkpoint: Callable[[Checkpoint], float | None]


def _hours(run: Run | None, step: int) -> float | None:
    seconds = run.seconds.get(step) if run else None
    return None if seconds is None else seconds / 3600


AXES = {
    "step": Axis("training step", ",d", lambda _, row: row["step"], lambda c: c.step),
    "tokens": Axis(
        "tokens seen", "~s", lambda _, row: row.get("tokens_seen"), lambda c: c.tokens_seen
    ),
    "flops": Axis(
        "FLOPs spent in training",
        "~g",
        lambda c, row: flops(c, row.get("tokens_seen")),
        lambda c: flops(c, c.tokens_seen),
    ),
    "time": Axis(
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
    spec = _chart(drawn, names, AXES[axis]).to_dict()
    _write(Path(path), spec)
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
    for column in compare(entries, chosen).columns:
        if column.quantity.section == TRAINING or (chosen is None and _aside(column)):
            continue
        points = [p for own in models.values() for p in _points(column, own, AXES[axis])]
        if column.quantity in REPORTED and points:
            start = SKIPPED * max(point["step"] for point in points)
            points = [point for point in points if point["step"] > start]
        if points and _most(points) > 1:
            panels[column.heading.replace(NO_BREAK, " ")] = points
    return panels


def _aside(column: Column) -> bool:
    quantity = column.quantity
    return quantity.name in ASIDE or ("method", "chance") in quantity.places


def _points(column: Column, entries: list[Entry], axis: Axis) -> list[dict[str, Any]]:
    """Of one model, by step."""
    found: dict[int, tuple[Figure, float]] = {}
    for entry in entries:
        figure = entry.figures.get(column.quantity)
        places = [axis.of_checkpoint(c) for c in entry.checkpoints]
        known = [float(place) for place in places if place is not None]
        if figure is not None and known:
            found[entry.step] = figure, fmean(known)
    if column.quantity in REPORTED:
        found |= _reported(REPORTED[column.quantity], entries, axis)
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
        for step, (figure, x) in sorted(found.items())
    ]


def _reported(name: str, entries: list[Entry], axis: Axis) -> dict[int, tuple[Figure, float]]:
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
        step: (pool([value for value, _ in own]), fmean(x for _, x in own))
        for step, own in values.items()
    }


def _chart(panels: dict[str, list[dict[str, Any]]], names: list[str], axis: Axis) -> Any:
    import altair as alt

    columns = min(ACROSS, len(panels))
    legend = alt.Legend(
        title=None,
        orient="top",
        columns=3 * columns,
        symbolSize=90,
        symbolOpacity=1,
        labelLimit=320,
    )
    dashes = [DASHES[i // len(SERIES) % len(DASHES)] for i in range(len(names))]
    colour = alt.Color("model:N", legend=legend, scale=_scale(alt, names, SERIES))
    shape = alt.Shape("model:N", legend=legend, scale=_scale(alt, names, MARKS))
    dash = alt.StrokeDash("model:N", legend=None, scale=alt.Scale(domain=names, range=dashes))
    drawn = []
    for heading, points in panels.items():
        share, most = points[0]["share"], _most(points)
        ticks = whole_ticks((point["x"] for point in points), steps=5)
        points = _side_by_side(points, names) if _overlap(points) else points
        base = alt.Chart(alt.Data(values=points)).encode(
            x=alt.X(
                "x:Q",
                title=axis.title,
                axis=alt.Axis(
                    tickCount=4, values=ticks or alt.Undefined, format=axis.ticks, grid=False
                ),
            ),
            color=colour,
        )
        y = alt.Y(
            "value:Q",
            title=None,
            axis=alt.Axis(tickCount=5),
            scale=alt.Scale(domain=[0, 100]) if share else alt.Scale(zero=False, nice=True),
        )
        limits = {"y": alt.Y("low:Q", title=None), "y2": "high:Q"}
        if most <= FEW:
            interval = base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(**limits)
        else:
            interval = base.mark_area(opacity=0.16).encode(**limits)
        line = base.mark_line(strokeWidth=1.5 if most <= FEW else 2).encode(y=y, strokeDash=dash)
        tooltip = [
            alt.Tooltip("model:N"),
            alt.Tooltip("step:Q", format=","),
            alt.Tooltip("value:Q", format=".4~g", title=heading),
            alt.Tooltip("low:Q", format=".4~g", title="95 % from"),
            alt.Tooltip("high:Q", format=".4~g", title="to"),
            alt.Tooltip("n:Q"),
        ]
        mark = base.mark_point(filled=True, size=12 if most > 25 else 50, opacity=1).encode(
            y=y, shape=shape, tooltip=tooltip
        )
        layers = alt.layer(interval, line, mark)
        drawn.append(layers.properties(width=WIDTH, height=HEIGHT, title=heading))
    return alt.concat(*drawn, columns=columns, spacing=26).resolve_scale(x="independent")


def _most(points: list[dict[str, Any]]) -> int:
    """Points of the model that has most."""
    counted = [point["model"] for point in points]
    return max(counted.count(model) for model in set(counted))


def _overlap(points: list[dict[str, Any]]) -> bool:
    """Whether intervals of a few points would hide each other."""
    known = [point["x"] for point in points if point["low"] < point["high"]]
    return _most(points) <= FEW and len(set(known)) < len(known)


def _side_by_side(points: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """The points moved a little, each model's by its own distance."""
    xs = [point["x"] for point in points]
    width = APART * (max(xs) - min(xs))
    middle = (len(names) - 1) / 2
    return [
        {**point, "x": point["x"] + width * (names.index(point["model"]) - middle)}
        for point in points
    ]


def _scale(alt: Any, names: list[str], styles: Sequence[Any]) -> Any:
    return alt.Scale(domain=names, range=[styles[i % len(styles)] for i in range(len(names))])


def _write(path: Path, spec: dict[str, Any]) -> None:
    import vl_convert

    light = theme(dark=False)
    if path.suffix == ".png":
        write_file(path, vl_convert.vegalite_to_png(spec, config=light, scale=2))
    elif path.suffix == ".svg":
        svg = vl_convert.vegalite_to_svg(spec, config=light)
        start = svg.index(">", svg.index("<svg")) + 1
        write_text(path, f"{svg[:start]}<style>{_in_the_dark()}</style>{svg[start:]}")
    else:
        page = vl_convert.vegalite_to_html(spec, bundle=True, config=light, renderer="svg")
        write_text(path, page.replace("</head>", f"<style>{_in_the_dark()}</style></head>", 1))


def _in_the_dark() -> str:
    """Style rules that put the dark theme's colours in the place of the light one's."""
    light, dark = (_colours(theme(is_dark)) for is_dark in (False, True))
    pairs = [*zip(light, dark, strict=True), *zip(SERIES, SERIES_DARK, strict=True)]
    rules = "".join(
        f'[fill="{old}"]{{fill:{new}}}[stroke="{old}"]{{stroke:{new}}}' for old, new in pairs
    )
    ground = dark[0]
    return f"@media (prefers-color-scheme: dark){{svg,body{{background:{ground}}}{rules}}}"


def _colours(config: dict[str, Any]) -> list[str]:
    """Background, ink, muted ink and lines of a theme."""
    axis = config["axis"]
    return [config["background"], config["title"]["color"], axis["labelColor"], axis["gridColor"]]
