"""A section of the page for each kind of rows but recoveries: a table, and charts over an axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eval.drawing import inline
from eval.plots import lines
from eval.quantities import Estimate, Quantity
from eval.report.figures import AXIS, SIZE, X_SCALE, Panel, evenly
from eval.report.wording import percent
from eval.schema import Row
from eval.summary import Cell
from eval.tables import Column, Table, lay_out, text

ABOUT = {
    "loss": ("How well text is predicted", "Of held-out stories, or of texts that were given."),
    "probe": (
        "What probes read",
        "Linear probes, and trained inverters, are fitted to a layer's outputs and judged on other "
        "text: which token stands at the position itself (offset 0), before it, or after it?",
    ),
    "geometry": (
        "How outputs move with hidden tokens",
        "The Jacobian of the visible outputs with respect to the vectors of the hidden tokens: its "
        "singular values, medians over prompts.",
    ),
    "basin": (
        "How near a start must be",
        "Adam starts at a distance from the truth, in lengths of each token's embedding. Shares of "
        "hidden tokens, and of whole prompts, that come right.",
    ),
    "retrieval": (
        "Retrieval, every number",
        "A sentence is taken out of its story, and the story found again among so many.",
    ),
    "bits": (
        "What outputs say of one token, in bits",
        "All other tokens are given, and the posterior over all choices of the token is exact: "
        "under Gaussian noise, in units of the output's RMS or of the token's effect on it, and "
        "where outputs are rounded. Alone: one output; cumulative: all from distance 1 on. Uniform "
        "prior, all channels; the rows hold other priors and fewer channels.",
    ),
    "curve": (
        "How much must be shown",
        "Tokens recovered over the channels shown, or over the noise on the vectors, and where "
        "recovery crosses one half.",
    ),
}
"""Headings and what is measured, of the kinds in the order of reading."""
AXES = ("radius", "distance", "layer", "step")
"""What an axis is over: the first of these that takes several values."""
LINES = ("offset", "hidden", "method", "slice", "model")
"""What lines are told apart by: the first of these that takes several values."""
CHARTED = (None, "noise 0.25 rms", "noise 1 rms", "noise 4 effect", "int8", "int4", "int2")
"""Precisions that charts show."""
PANELS = 24
"""Charts of a kind; the table has every number."""


@dataclass(frozen=True)
class Section:
    """Rows of one kind.

    Attributes:
        name: the kind.
        title: its heading.
        about: what was measured, in a sentence or two.
        table: every figure.
        panels: charts.
    """

    name: str
    title: str
    about: str
    table: Table
    panels: list[Panel]


def table(group: Sequence[Cell], more: Iterable[Column] = ()) -> Table:
    """Every figure of cells of one kind, and some more fields of their records as figures."""
    known = {q.name: q for cell in group for q in cell.quantities}
    records = [cell.record for cell in group]
    fields = dict.fromkeys(name for record in records for name in record)
    whole = [{name: record.get(name) for name in fields} for record in records]
    return lay_out(whole, [*((q.name, q.words, q.share) for q in known.values()), *more])


def sections(summed: Iterable[Cell]) -> list[Section]:
    """A section for each kind of rows but recoveries, and but those that lenses and claims draw."""
    summed = [cell for cell in summed if cell.kind not in ("recovery", "lens", "claim")]
    summed = [cell for cell in summed if cell.kind != "bits" or _plain(cell)]
    kinds = {cell.kind for cell in summed}
    made = []
    for kind in [k for k in [*ABOUT, *sorted(kinds - {*ABOUT})] if k in kinds]:
        group = [cell for cell in summed if cell.kind == kind]
        if kind == "curve":
            panels = [_curve(cell.about, row) for cell in group for row in cell.rows]
        elif kind == "retrieval":  # drawn with the lenses
            panels = []
        else:
            known = {q.name: q for cell in group for q in cell.quantities if q.main}
            panels = [panel for q in known.values() for panel in _panels(group, q)]
        made.append(Section(kind, *ABOUT.get(kind, (kind, "")), table(group), panels[:PANELS]))
    return made


def _plain(cell: Cell) -> bool:
    """Bits under the uniform prior, of all channels; effects and margins have neither."""
    return cell.place.get("prior") in (None, "uniform") and "channels" not in cell.place


def _panels(group: Sequence[Cell], quantity: Quantity) -> list[Panel]:
    """One figure over the first of `AXES` that varies: models and other places have panels.

    Where the axis is the radius, the deepest layer is drawn; where it is not the step, the first
    and the last step of each model are.
    """
    places = [
        (cell.place | {"model": cell.about["model"], "step": cell.about["step"]}, figure)
        for cell in group
        if cell.place.get("precision") in CHARTED
        and (figure := cell.figures.get(quantity.name))
        and math.isfinite(figure.value)
    ]

    def varied(name: str) -> bool:
        return len({place.get(name) for place, _ in places} - {None}) > 1

    x = next(filter(varied, AXES), None)
    if x is None:
        return []
    if x == "radius":
        places = _kept(places, "layer", lambda layers: layers[-1:])
    if x != "step":
        places = _kept(places, "step", lambda steps: [steps[0], steps[-1]])
    by = next((name for name in LINES if name != x and varied(name)), "model")
    apart = dict.fromkeys(name for place, _ in places for name in place)
    apart = [name for name in apart if name not in (x, by, "step") and varied(name)]
    panels: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for place, figure in places:
        if place.get(x) is not None:
            key = (
                "" if by == "model" else place["model"],
                *(f"{name} {place.get(name)}" for name in apart if name != "model"),
            )
            panels.setdefault(key, []).append(_point(place, figure, x, by, quantity))
    drawn = []
    for (model, *where), points in panels.items():
        title = ", ".join([quantity.words, *where])
        ordered = all(isinstance(point[by], int | float) for point in points)
        points.sort(key=lambda point: (point[by], point["training step"], point[x]))
        steps = sorted({point["training step"] for point in points}, key=lambda step: int(step))
        ticks = {"values": sorted({p[x] for p in points}), "labelExpr": "format(datum.value, ',')"}
        chart = lines(
            points, x, None, by, "" if x == "step" else "training step", states=steps, band=False,
            ordered=ordered, named=quantity.share and not ordered, share=quantity.share, size=SIZE,
            x_scale=X_SCALE, axis=AXIS | ticks,
            legend={"title": by, "symbolLimit": 12}, upright={"scale": {"zero": False}},
        )  # fmt: skip
        drawn.append(Panel(model, title, inline(chart, f"{model}: {title}")))
    return drawn


def _kept(places: list[Any], name: str, which: Any) -> list[Any]:
    """The places of each model with some of the values of a field."""
    values: dict[str, set[Any]] = {}
    for place, _ in places:
        values.setdefault(place["model"], set()).add(place.get(name))
    return [item for item in places
            if item[0].get(name) in which(sorted(values[item[0]["model"]]))]  # fmt: skip


def _point(
    place: dict[str, Any], figure: Estimate, x: str, by: str, quantity: Quantity
) -> dict[str, Any]:
    scale, words = (100, percent) if quantity.share else (1, text)
    value, low, high = (figure.value if end is None else end for end in figure[:3])
    said = words(value) + (" %" if quantity.share else "")
    if low < high:
        said += f" (95 % interval {words(low)} to {words(high)})"
    where = ", ".join(f"{name} {place[name]}" for name in dict.fromkeys((by, x, "step")))
    limits = {"value": scale * value, "low": scale * low, "high": scale * high}
    lines_of = {x: place[x], by: place.get(by), "training step": str(place["step"])}
    return lines_of | limits | {"tip": f"{where}: {said}, n = {figure.n}"}


def _curve(about: dict[str, Any], row: Row) -> Panel:
    """One row of a curve: its values, evenly spaced whatever their size."""
    shown = "channels shown" if row["axis"] == "channels" else "noise"
    points = [
        {shown: i, "value": 100 * top1, "method": row["method"],
         "tip": f"{row['method']}, {shown} {text(value)}: {percent(top1)} % of the tokens"}
        for i, (value, top1) in enumerate(sorted(zip(row["values"], row["top1"], strict=True)))
    ]  # fmt: skip
    chart = lines(
        points, shown, None, "method", share=True, named=True, size=SIZE, x_scale=X_SCALE,
        axis=evenly(sorted(row["values"])),
    )  # fmt: skip
    layer = row["site"]["layer"]
    title = f"step {about['step']:,}, layer {layer}: {row['method']} over {shown}"
    return Panel(about["model"], title, inline(chart, f"{about['model']}: {title}"))
