"""Panels of the page, and the sections of rows that are no recoveries: a table and panels each."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from markupsafe import Markup

from eval.cells import Cell, Record, figures_table, quantities_of
from eval.drawing import inline
from eval.plots import lines
from eval.quantities import Estimate, Quantity
from eval.report.evidence import AFTER, BEFORE, BEST, column_order, method, prompt_set, task_label
from eval.tables import Table, group, percent, text

COLOURS = {"descent": 5, "adam": 1, "best": 1, "exact": 0}
"""Numbers of colours and marks, of six."""
X_SCALE = {"zero": False, "nice": False, "padding": 14}
AXIS = {"grid": False, "domain": False, "ticks": False, "labelPadding": 8, "labelOverlap": "greedy"}
WORDS = {"step": "training step", "channels": "channels shown"}
"""The titles of fields that a curve is over."""
KINDS = yaml.safe_load((Path(__file__).parent / "templates" / "kinds.yaml").read_text("utf-8"))
"""Heading and description of the sections, in the order of reading."""
AXES = ("distance", "layer", "step")
"""The x axis of a kind's panels: the first of these that takes several values."""
LINES = ("offset", "hidden", "method", "slice", "model")
"""The field of a kind's lines: the first of these that takes several values."""
CHARTED = (None, "noise 0.25 rms", "noise 1 rms", "noise 4 effect", "int8", "int4", "int2")
"""Precisions that charts show."""
PANELS = 24
"""Panels of a kind, at most; the table has every number."""


class Panel(NamedTuple):
    """A drawing under its heading."""

    model: str
    title: str
    svg: Markup


class KindSection(NamedTuple):
    """Rows of one kind: a heading, a description, a table of every figure, and panels."""

    name: str
    title: str
    about: str
    table: Table
    panels: list[tuple[str, list[Panel]]]


def colour(column: str, columns: Iterable[str]) -> int:
    """A method's number in the palette; known methods always have the same."""
    others = [c for c in columns if c not in COLOURS]
    return COLOURS[column] if column in COLOURS else 2 + others.index(column) % 3


def recovery(records: list[Record], field: str) -> list[tuple[str, list[Panel]]]:
    """Top-1 against a field: one panel per model and question, one line per method and phase.

    Noise and channels are evenly spaced, whatever the values. Along training all points are of one
    line.
    """
    axis, even = WORDS.get(field, field), field in ("noise", "channels")
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _questions(records):
        xs = sorted({r[field] for r in cells})
        phases = [AFTER if field == "step" else r["phase"] for r in cells]
        points = [
            {
                axis: xs.index(r[field]) if even else r[field],
                "value": 100 * r["top1"],
                "low": 100 * r["low"],
                "high": 100 * r["high"],
                "by": r["column"],
                "training": phase,
                "tip": _tip(r, field),
            }
            for r, phase in zip(cells, phases, strict=True)
        ]
        points.sort(key=lambda point: (point["training"] != BEFORE, point[axis]))
        series = {c: colour(c, columns)
                  for c in column_order({r["column"] for r in cells})}  # fmt: skip
        panels.append(_panel(
            model, title, points, axis, "by", "training", share=True, states=(BEFORE, AFTER),
            axis=_evenly(xs) if even else AXIS | {"values": xs}, series=series,
        ))  # fmt: skip
    return _by_model(panels)


def margins(records: list[Record]) -> list[tuple[str, list[Panel]]]:
    """For exact search: the floor, the margin above it, and their ratio in bits, by layer."""
    records = [
        r | {"top": max(r["margin"], r["margin_floor"])}
        for r in records
        if r["column"] == "exact" and r["margin_floor"]
    ]
    if not records:
        return []
    low = math.floor(math.log10(min(r["margin_floor"] for r in records)))
    high = max(math.ceil(math.log10(max(r["top"] for r in records))), low + 1)
    powers = [10.0**power for power in range(low, high + 1, max(1, round((high - low) / 5)))]
    upright = {
        "scale": {"type": "log", "domain": [10.0**low, 10.0**high]},
        "axis": {"values": powers, "format": ".0e"},
    }
    panels = []
    for model, title, cells in _questions(records):
        layers = sorted({r["layer"] for r in cells})
        apart = {BEFORE: -0.17, AFTER: 0.17} if len({r["phase"] for r in cells}) > 1 else {}
        points = [
            {
                "layer": layers.index(r["layer"]) + apart.get(r["phase"], 0),
                "value": r["top"],
                "low": r["margin_floor"],
                "high": r["top"],
                "by": "margin",
                "training": r["phase"],
                "text": f"{r['margin_bits']:.0f}",
                "tip": f"layer {r['layer']}, {r['phase']} training: nearest wrong answer "
                f"{text(r['margin'])}, floor {text(r['margin_floor'])}, "
                f"{r['margin_bits']:.1f} bits apart, {_counted(r)}",
            }
            for r in sorted(cells, key=lambda r: (r["phase"] != BEFORE, r["layer"]))
        ]
        more = {"states": (BEFORE, AFTER), "axis": _evenly(layers), "upright": upright}
        panels.append(_panel(model, title, points, "layer", "by", "training", **more))
    return _by_model(panels)


def sections(summed: Iterable[Cell]) -> list[KindSection]:
    """A section for each kind of rows, but for recoveries and lenses."""
    kinds = group(filter(_is_shown, summed), lambda cell: cell.kind)
    made = []
    for kind in [*(k for k in KINDS if k in kinds), *sorted(kinds.keys() - {*KINDS})]:
        cells = kinds[kind]
        main = [quantity for quantity in quantities_of(cells) if quantity.main]
        panels = [panel for quantity in main for panel in _panels(cells, quantity)]
        words = KINDS.get(kind, {"title": kind, "about": ""})
        drawn = _by_model(panels[:PANELS])
        made.append(KindSection(kind, table=figures_table(cells), panels=drawn, **words))
    return made


def _is_shown(cell: Cell) -> bool:
    """Whether a section shows it; bits under the uniform prior."""
    if cell.kind == "bits":
        return cell.place.get("prior") in (None, "uniform")
    return cell.kind not in ("recovery", "lens")


def _panels(cells: Sequence[Cell], quantity: Quantity) -> list[Panel]:
    """One figure over the first of `AXES` that varies: models and other places have panels.

    Where the axis is not the step, the first and the last step of each model are drawn.
    """
    places = [
        (cell.place | {"model": cell.about["model"], "step": cell.about["step"]}, figure)
        for cell in cells
        if cell.place.get("precision") in CHARTED
        and (figure := cell.figures.get(quantity.name))
        and math.isfinite(figure.value)
    ]

    def varied(name: str) -> bool:
        return len({place.get(name) for place, _ in places} - {None}) > 1

    x = next(filter(varied, AXES), None)
    if x is None:
        return []
    if x != "step":
        places = _ends(places)
    by = next((name for name in LINES if name != x and varied(name)), "model")
    apart = dict.fromkeys(name for place, _ in places for name in place)
    apart = [n for n in apart if n not in (x, by, "step", "model") and varied(n)]
    panels = group(
        ((place, figure) for place, figure in places if place.get(x) is not None),
        lambda item: (
            "" if by == "model" else item[0]["model"],
            *(f"{name} {item[0].get(name)}" for name in apart),
        ),
    )
    drawn = []
    for (model, *where), several in panels.items():
        points = [_point(place, figure, x, by, quantity) for place, figure in several]
        ordered = all(isinstance(point[by], int | float) for point in points)
        points.sort(key=lambda point: (point[by], point["training step"], point[x]))
        steps = sorted({point["training step"] for point in points}, key=lambda step: int(step))
        ticks = {"values": sorted({p[x] for p in points}), "labelExpr": "format(datum.value, ',')"}
        drawn.append(_panel(
            model, ", ".join([quantity.words, *where]), points, x, by,
            "" if x == "step" else "training step", states=steps, ordered=ordered,
            named=quantity.share and not ordered, share=quantity.share, axis=AXIS | ticks,
            legend={"title": by, "symbolLimit": 12}, upright={"scale": {"zero": False}},
        ))  # fmt: skip
    return drawn


def _ends(places: list[Any]) -> list[Any]:
    """The places of each model at its first and its last step."""
    steps = group(places, lambda item: item[0]["model"])
    ends = {model: {f([place["step"] for place, _ in several]) for f in (min, max)}
            for model, several in steps.items()}  # fmt: skip
    return [item for item in places if item[0]["step"] in ends[item[0]["model"]]]


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


def _panel(
    model: str, title: str, points: list[Record], x: str, by: str, dash: str = "", **more: Any
) -> Panel:
    """Lines `by` a field, with their names at the right end unless `more` says otherwise."""
    more = {"named": True, "band": False, "size": (200, 150), "x_scale": X_SCALE} | more
    return Panel(
        model, title, inline(lines(points, x, None, by, dash, **more), f"{model}: {title}")
    )


def _by_model(panels: Iterable[Panel]) -> list[tuple[str, list[Panel]]]:
    return list(group(panels, lambda panel: panel.model).items())


def _evenly(values: list[float]) -> dict[str, Any]:
    """An axis over the numbers of values, which it names."""
    names = f"{json.dumps([text(value) for value in values])}[datum.value]"
    return AXIS | {"values": [*range(len(values))], "labelExpr": names}


def _tip(record: Record, field: str) -> str:
    where = f"{field if field == 'step' else WORDS.get(field, field)} {text(record[field])}"
    if field != "step":
        where += f", {record['phase']} training"
    # in the column of the best method, that method's name
    name = method(record["method"] if record["column"] == BEST else record["column"]).title
    low, high = percent(record["low"]), percent(record["high"])
    return (
        f"{name}, {where}: {percent(record['top1'])} % (95 % interval {low} to {high}), "
        f"{_counted(record)}"
    )


def _questions(records: list[Record]) -> list[tuple[str, str, list[Record]]]:
    """Records by panel, in their order: `(model, title, records)`."""
    several = len({r["prompts"] for r in records}) > 1
    panels = group(records, lambda r: (r["model"], r["prompts"], r["part"], r["task"]))
    drawn = []
    for (model, prompts, part, task), rows in panels.items():
        title = task_label(task) + (f", {prompt_set(prompts)}" if several else "")
        drawn.append((model, title if part == "block" else f"{title}, {part}", rows))
    return drawn


def _counted(record: Record) -> str:
    models = f" x {record['models']} training seeds" if record["models"] > 1 else ""
    return f"{record['count']} prompts{models}"
