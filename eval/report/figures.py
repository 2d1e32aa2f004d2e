"""What the panels show: recovery by layer and by training step, and margins above the floor."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from eval.drawing import inline
from eval.plots import lines
from eval.recovery import channel_count
from eval.report.evidence import AFTER, BEFORE, BEST, Score, Task, deepest, group
from eval.report.tables import Record, layer_records, questions, record
from eval.report.wording import (
    column_order,
    method,
    number,
    percent,
    prompt_order,
    prompt_set,
    task_label,
)

COLOURS = {"descent": 5, "adam": 1, "best": 1, "exact": 0}
"""Numbers of colours and marks, of six."""
SIZE = (200, 150)
X_SCALE = {"zero": False, "nice": False, "padding": 14}
AXIS = {"grid": False, "domain": False, "ticks": False, "labelPadding": 8, "labelOverlap": "greedy"}


@dataclass(frozen=True)
class Panel:
    """A drawing under its heading."""

    model: str
    title: str
    svg: Markup


def colour(column: str, columns: Iterable[str]) -> int:
    """A method's number in the palette; known methods always have the same."""
    others = [c for c in columns if c not in COLOURS]
    return COLOURS[column] if column in COLOURS else 2 + others.index(column) % 3


def recovery_by_layer(placed: list[Score]) -> list[Panel]:
    """Top-1 against layer: one panel per model and question, one line per method and phase."""
    return _curves([r | {"x": r["layer"]} for r in layer_records(placed)], "layer")


def recovery_by_step(placed: list[Score]) -> list[Panel]:
    """Top-1 against training step at the deepest site, for models with more than two steps."""
    records = []
    for own in group(placed, lambda s: s.model).values():
        if len({s.step for s in own}) <= 2:
            continue
        for asked in group(own, lambda s: s.prompts).values():
            for task in questions(asked):
                here = deepest([s for s in asked if s.task == task])
                cells = group(here, lambda s: (s.column, s.step)).values()
                records += [record(cell) | {"x": cell[0].step, "phase": AFTER} for cell in cells]
    return _curves(records, "training step")


def recovery_by_noise(placed: list[Score]) -> list[Panel]:
    """Top-1 against the noise on the vectors, none of it at the left, where that was varied."""

    def noise(s: Score) -> float | None:
        departs = dict(s.variation)
        return departs.get("noise", 0.0) if departs.keys() <= {"noise"} else None

    return _recovery_against(noise, "noise", placed)


def recovery_by_channels(placed: list[Score]) -> list[Panel]:
    """Top-1 against the number of channels shown, from the first one on, where that was varied."""

    def channels(s: Score) -> float | None:
        departs = dict(s.variation)
        return channel_count(s.row) if departs.keys() <= {"channels"} else None

    return _recovery_against(channels, "channels shown", placed)


def margins(placed: list[Score]) -> list[Panel]:
    """For exact search: the floor, the margin above it, and their ratio in bits, by layer."""
    records = [r for r in layer_records(placed) if r["column"] == "exact" and r["margin_floor"]]
    if not records:
        return []
    tops = [max(r["margin"], r["margin_floor"]) for r in records]
    low = math.floor(math.log10(min(r["margin_floor"] for r in records)))
    high = max(math.ceil(math.log10(max(tops))), low + 1)
    powers = [10.0**power for power in range(low, high + 1, max(1, round((high - low) / 5)))]
    upright = {
        "scale": {"type": "log", "domain": [10.0**low, 10.0**high]},
        "axis": {"values": powers, "format": ".0e"},
    }
    panels = []
    for model, title, cells in _panels(records):
        layers = sorted({r["layer"] for r in cells})
        both = len({r["phase"] for r in cells}) > 1
        points = [
            {
                "layer": layers.index(r["layer"])
                + (0 if not both else -0.17 if r["phase"] == BEFORE else 0.17),
                "value": max(r["margin"], r["margin_floor"]),
                "low": r["margin_floor"],
                "high": max(r["margin"], r["margin_floor"]),
                "by": "margin",
                "training": r["phase"],
                "text": f"{r['bits']:.0f}",
                "tip": f"layer {r['layer']}, {r['phase']} training: nearest wrong answer "
                f"{number(r['margin'])}, floor {number(r['margin_floor'])}, "
                f"{r['bits']:.1f} bits apart, {_counted(r)}",
            }
            for r in _in_order(cells, "layer")
        ]
        chart = lines(points, "layer", None, "by", "training", named=True, band=False, size=SIZE,
            states=(BEFORE, AFTER),
                      x_scale=X_SCALE, axis=evenly(layers), upright=upright)  # fmt: skip
        panels.append(Panel(model, title, inline(chart, f"{model}: {title}")))
    return panels


def _recovery_against(
    value: Callable[[Score], float | None], axis: str, placed: list[Score]
) -> list[Panel]:
    """Panels over a value that scores may have, evenly spaced whatever the values; see above."""
    records = []
    known = [s for s in placed if s.phase in (BEFORE, AFTER) and value(s) is not None]
    tasks = {
        key: questions(own) for key, own in group(known, lambda s: (s.model, s.prompts)).items()
    }
    for asked in group(known, lambda s: (s.model, s.task, s.prompts)).values():
        lines = group(asked, lambda s: (s.part, s.layer, s.phase, s.column)).values()
        varied = [s for own in lines if len({value(s) for s in own}) > 2 for s in own]
        if not varied or asked[0].task not in tasks[asked[0].model, asked[0].prompts]:
            continue
        for cell in group(deepest(varied), lambda s: (s.phase, s.column, value(s))).values():
            records.append(record(cell) | {"x": value(cell[0])})
    return _curves(records, axis, even=True)


def _curves(records: list[Record], axis: str, even: bool = False) -> list[Panel]:
    """Panels of top-1 over `x`, which `axis` is; `even`: evenly spaced whatever the values."""
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _panels(records):
        xs = sorted({r["x"] for r in cells})
        kept = column_order({r["column"] for r in cells})
        points = [
            {
                axis: xs.index(r["x"]) if even else r["x"],
                "value": 100 * r["top1"],
                "low": 100 * r["low"],
                "high": 100 * r["high"],
                "by": method(r["column"]).short,
                "training": r["phase"],
                "tip": _tip(r, axis),
            }
            for r in _in_order(cells, "x")
        ]
        chart = lines(
            points, axis, None, "by", "training", share=True, named=True, band=False, size=SIZE,
            states=(BEFORE, AFTER),
            x_scale=X_SCALE, axis=evenly(xs) if even else AXIS | {"values": xs},
            series={method(c).short: colour(c, columns) for c in kept},
        )  # fmt: skip
        panels.append(Panel(model, title, inline(chart, f"{model}: {title}")))
    return panels


def _in_order(cells: list[Record], x: str) -> list[Record]:
    return sorted(cells, key=lambda r: (r["phase"] != BEFORE, r[x]))


def evenly(values: list[float]) -> dict[str, Any]:
    """An axis over the numbers of values, which it names."""
    names = f"{json.dumps([number(value) for value in values])}[datum.value]"
    return AXIS | {"values": [*range(len(values))], "labelExpr": names}


def _tip(record: Record, axis: str) -> str:
    where = f"{axis.removeprefix('training ')} {number(record['x'])}"
    if axis != "training step":
        where += f", {record['phase']} training"
    # in the column of the best method, which that was
    name = method(record["method"] if record["column"] == BEST else record["column"]).name
    return (
        f"{name}, {where}: {percent(record['top1'])} % (95 % interval {percent(record['low'])} to "
        f"{percent(record['high'])}), {_counted(record)}"
    )


def _panels(records: list[Record]) -> list[tuple[str, str, list[Record]]]:
    """Records by panel, in the order of reading: `(model, title, records)`."""
    models = list(group(records, lambda r: r["model"]))
    several = len({r["prompts"] for r in records}) > 1
    panels = group(records, lambda r: (r["model"], r["prompts"], r["part"], r["task"]))

    def place(key: tuple[str, str, str, Task]) -> tuple:
        model, prompts, part, task = key
        return (models.index(model), prompt_order(prompts), part, task)

    found = []
    for key in sorted(panels, key=place):
        model, prompts, part, task = key
        title = task_label(task) + (f", {prompt_set(prompts)}" if several else "")
        found.append((model, title if part == "block" else f"{title}, {part}", panels[key]))
    return found


def _counted(record: Record) -> str:
    models = f" x {record['models']} training seeds" if record["models"] > 1 else ""
    return f"{record['count']} prompts{models}"
