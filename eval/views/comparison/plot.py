"""The comparison over training: four panels of the fixed figures, a line for each model."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.analysis.summary import Record
from eval.drawing import figures, plots
from eval.messages import RequestError, say_once
from eval.views.comparison.table import BITS, FIGURES, Figure

FORMATS = (".svg", ".png")
PANELS = tuple(figure for figure in FIGURES if figure.name != "hidden_1")
"""Bits per byte, shown tokens, three hidden tokens, bits at distance 4."""
AXES = {
    "step": ("steps", "training step", 1.0, ",d"),
    "tokens": ("tokens", "tokens seen", 1.0, "~s"),
    "flops": ("flops", "FLOPs spent in training", 1.0, "~g"),
    "time": ("seconds", "hours of training", 3600.0, "~g"),
}
"""What the panels are over: a field of records, its title, its unit, and the format of ticks."""
SKIPPED = 0.02
"""Losses of this first part of each training are not drawn: they fall too fast to leave room."""
WIDTH, HEIGHT = 290, 190


def write_plot(
    path: str | Path, records: Sequence[Record], curves: Sequence[Record], axis: str
) -> None:
    """Draws a panel for each measured figure into a file; its ending, of `FORMATS`, is its format.

    Args:
        records: of `eval.views.comparison.table.checkpoint_records`, of every step.
        curves: the same of what runs reported between their saved models.
        axis: one of `AXES`.

    Raises:
        RequestError: no figure was measured at two steps of a model.
        OSError: the file cannot be written.
    """
    import altair as alt

    field, title, *_ = AXES[axis]
    measured = [r for r in [*records, *curves] if any(r[f.name] is not None for f in PANELS)]
    if unknown := dict.fromkeys(record["model"] for record in measured if record[field] is None):
        say_once(
            f"--x {axis}: left out of the plot: figures of {', '.join(unknown)}, whose {title} are "
            "not known at some points; --x step is known of all"
        )
    panels = {figure: plot_data(records, curves, figure, axis) for figure in PANELS}
    points = Counter((p["model"], figure) for figure, panel in panels.items() for p in panel)
    if max(points.values(), default=0) < 2:
        raise RequestError(
            f"--plot {path}: nothing was measured at several training steps, over --x {axis}; "
            "give runs, or results of more of their models"
        )
    seen = {model for model, _ in points}
    names = list(dict.fromkeys(record["model"] for record in records if record["model"] in seen))
    drawn = [_panel(figure, panel, names, axis) for figure, panel in panels.items() if panel]
    chart = alt.concat(*drawn, columns=2, spacing=26).resolve_scale(x="shared")
    if len(names) > plots.LISTED:
        chart = chart.resolve_scale(color="independent", shape="independent")
    figures.write_chart(path, chart)


def plot_data(
    records: Sequence[Record], curves: Sequence[Record], figure: Figure, axis: str
) -> list[dict[str, Any]]:
    """The points of a panel: model, x, value, low, high, and `of` what bits per byte are.

    Bits per byte are those of `curves`, of the models that have such. Figures of which the axis
    does not know where they stand are left out.
    """
    if figure is BITS:
        known = [record for record in curves if record[BITS.name] is not None]
        models = {record["model"] for record in known}
        records = [*(record for record in records if record["model"] not in models), *known]
    field, _, unit, _ = AXES[axis]
    points = [
        {"of": record["bits_per_byte_of"], "model": record["model"], "x": record[field] / unit,
         "value": record[figure.name], "low": record[f"{figure.name}_low"],
         "high": record[f"{figure.name}_high"]}
        for record in records
        if record[figure.name] is not None and record[field] is not None
    ]  # fmt: skip
    last = dict[str, float]()
    for point in points:
        last[point["model"]] = max(point["x"], last.get(point["model"], 0.0))
    return [p for p in points if figure is not BITS or p["x"] >= SKIPPED * last[p["model"]]]


def _panel(figure: Figure, points: list[Record], names: list[str], axis: str) -> plots.Chart:
    _, title, _, ticks = AXES[axis]
    along = {"title": title, "tickCount": 4, "format": ticks}
    chart = plots.lines(
        points,
        "x",
        "",
        "model",
        names=names,
        percent=figure.percent,
        axis=along,
        size=(WIDTH, HEIGHT),
    )
    heading = figure.heading + " %" * figure.percent
    if figure is BITS:
        sources = {point["of"] for point in points}
        names_of = {"validation": "training's validation", "loss": "eval loss"}
        heading += f" of {' or '.join(names_of[of] for of in names_of if of in sources)}"
        skipped = f"without the first {100 * SKIPPED:g} % of each training"
        return chart.properties(title=[heading, skipped])
    return chart.properties(title=heading)
