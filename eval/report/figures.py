"""What the panels show: recovery by layer and by training step, and margins above the floor."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from eval.drawing import inline
from eval.plots import lines
from eval.report.evidence import AFTER, BEFORE, BEST, group
from eval.report.wording import column_order, method, percent, prompt_set, task_label
from eval.summary import Record
from eval.tables import text

COLOURS = {"descent": 5, "adam": 1, "best": 1, "exact": 0}
"""Numbers of colours and marks, of six."""
SIZE = (200, 150)
X_SCALE = {"zero": False, "nice": False, "padding": 14}
AXIS = {"grid": False, "domain": False, "ticks": False, "labelPadding": 8, "labelOverlap": "greedy"}
AXES = {"step": "training step", "channels": "channels shown"}
"""What fields are called that a curve is over."""


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


def by_model(panels: Iterable[Panel]) -> list[tuple[str, list[Panel]]]:
    """Panels in the order that they come."""
    return list(group(panels, lambda panel: panel.model).items())


def recovery(records: list[Record], field: str) -> list[Panel]:
    """Top-1 against a field: one panel per model and question, one line per method and phase.

    Noise and channels are evenly spaced, whatever the values.
    """
    axis, even = AXES.get(field, field), field in ("noise", "channels")
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _panels(records):
        xs = sorted({r[field] for r in cells})
        kept = column_order({r["column"] for r in cells})
        points = [
            {
                axis: xs.index(r[field]) if even else r[field],
                "value": 100 * r["top1"],
                "low": 100 * r["low"],
                "high": 100 * r["high"],
                "by": method(r["column"]).short,
                "training": _phase(r, field),
                "tip": _tip(r, field),
            }
            for r in sorted(cells, key=lambda r: (_phase(r, field) != BEFORE, r[field]))
        ]
        chart = lines(
            points, axis, None, "by", "training", share=True, named=True, band=False, size=SIZE,
            states=(BEFORE, AFTER),
            x_scale=X_SCALE, axis=evenly(xs) if even else AXIS | {"values": xs},
            series={method(c).short: colour(c, columns) for c in kept},
        )  # fmt: skip
        panels.append(Panel(model, title, inline(chart, f"{model}: {title}")))
    return panels


def margins(records: list[Record]) -> list[Panel]:
    """For exact search: the floor, the margin above it, and their ratio in bits, by layer."""
    records = [r for r in records if r["column"] == "exact" and r["margin_floor"]]
    if not records:
        return []
    low = math.floor(math.log10(min(r["margin_floor"] for r in records)))
    high = max(math.ceil(math.log10(max(map(_top, records)))), low + 1)
    powers = [10.0**power for power in range(low, high + 1, max(1, round((high - low) / 5)))]
    upright = {
        "scale": {"type": "log", "domain": [10.0**low, 10.0**high]},
        "axis": {"values": powers, "format": ".0e"},
    }
    panels = []
    for model, title, cells in _panels(records):
        layers = sorted({r["layer"] for r in cells})
        apart = {BEFORE: -0.17, AFTER: 0.17} if len({r["phase"] for r in cells}) > 1 else {}
        points = [
            {
                "layer": layers.index(r["layer"]) + apart.get(r["phase"], 0),
                "value": _top(r),
                "low": r["margin_floor"],
                "high": _top(r),
                "by": "margin",
                "training": r["phase"],
                "text": f"{r['margin_bits']:.0f}",
                "tip": f"layer {r['layer']}, {r['phase']} training: nearest wrong answer "
                f"{text(r['margin'])}, floor {text(r['margin_floor'])}, "
                f"{r['margin_bits']:.1f} bits apart, {_counted(r)}",
            }
            for r in sorted(cells, key=lambda r: (r["phase"] != BEFORE, r["layer"]))
        ]
        chart = lines(points, "layer", None, "by", "training", named=True, band=False, size=SIZE,
                      states=(BEFORE, AFTER),
                      x_scale=X_SCALE, axis=evenly(layers), upright=upright)  # fmt: skip
        panels.append(Panel(model, title, inline(chart, f"{model}: {title}")))
    return panels


def evenly(values: list[float]) -> dict[str, Any]:
    """An axis over the numbers of values, which it names."""
    names = f"{json.dumps([text(value) for value in values])}[datum.value]"
    return AXIS | {"values": [*range(len(values))], "labelExpr": names}


def _top(record: Record) -> float:
    return max(record["margin"], record["margin_floor"])


def _phase(record: Record, field: str) -> str:
    """Along training all points are of one line."""
    return AFTER if field == "step" else record["phase"]


def _tip(record: Record, field: str) -> str:
    where = f"{field if field == 'step' else AXES.get(field, field)} {text(record[field])}"
    if field != "step":
        where += f", {record['phase']} training"
    # in the column of the best method, which that was
    name = method(record["method"] if record["column"] == BEST else record["column"]).title
    low, high = percent(record["low"]), percent(record["high"])
    return (
        f"{name}, {where}: {percent(record['top1'])} % (95 % interval {low} to {high}), "
        f"{_counted(record)}"
    )


def _panels(records: list[Record]) -> list[tuple[str, str, list[Record]]]:
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
