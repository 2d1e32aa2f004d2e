"""What the panels show: recovery by layer and by training step, and margins above the floor."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from eval.inversion.fields import channel_count
from eval.report.evidence import AFTER, BEFORE, BEST, Score, Task, deepest, group
from eval.report.svg import Bar, Line, Point, bars, curves
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

COLOURS = {"descent": 0, "adam": 1, "best": 1, "exact": 2}
"""Numbers of colours in the style sheet; there are six, c0 to c5."""


@dataclass(frozen=True)
class Panel:
    """A drawing under its heading."""

    model: str
    title: str
    svg: Markup


def colour(column: str, columns: Iterable[str]) -> int:
    """A method's number in the palette; known methods always have the same."""
    others = [c for c in columns if c not in COLOURS]
    return COLOURS[column] if column in COLOURS else 3 + others.index(column) % 3


def recovery_by_layer(placed: list[Score]) -> list[Panel]:
    """Top-1 against layer: one panel per model and question, one line per method and phase."""
    records = layer_records(placed)
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _panels(records):
        lines = []
        for (phase, column), own in group(cells, lambda r: (r["phase"], r["column"])).items():
            points = [_point(r["layer"], r, f"layer {r['layer']}, {phase} training") for r in own]
            lines.append(_line(column, columns, phase == BEFORE, points))
        panels.append(Panel(model, title, curves(lines, "layer", f"{model}: {title}")))
    return panels


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
                records += [record(cell) for cell in cells]
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _panels(records):
        lines = []
        for column, own in group(cells, lambda r: r["column"]).items():
            points = [_point(r["step"], r, f"step {r['step']:,}") for r in own]
            lines.append(_line(column, columns, False, points))
        panels.append(Panel(model, title, curves(lines, "training step", f"{model}: {title}")))
    return panels


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
    low = math.floor(math.log10(min(r["margin_floor"] for r in records)))
    high = math.ceil(math.log10(max(max(r["margin"], r["margin_floor"]) for r in records)))
    powers = (low, max(high, low + 1))
    panels = []
    for model, title, cells in _panels(records):
        drawn = [_margin(r) for r in cells]
        svg = bars(drawn, powers, COLOURS["exact"], f"{model}: {title}")
        panels.append(Panel(model, title, svg))
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
    columns = column_order({r["column"] for r in records})
    panels = []
    for model, title, cells in _panels(records):
        xs = sorted({r["x"] for r in cells})
        ticks = {float(i): number(x) for i, x in enumerate(xs)}
        lines = []
        for (phase, column), own in group(cells, lambda r: (r["phase"], r["column"])).items():
            points = [
                _point(xs.index(r["x"]), r, f"{axis} {number(r['x'])}, {phase} training")
                for r in own
            ]
            lines.append(_line(column, columns, phase == BEFORE, points))
        panels.append(Panel(model, title, curves(lines, axis, f"{model}: {title}", ticks)))
    return panels


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


def _line(column: str, columns: list[str], hollow: bool, points: list[Point]) -> Line:
    return Line(method(column).short, colour(column, columns), hollow, sorted(points))


def _point(x: float, record: Record, where: str) -> Point:
    title = (
        f"{_named(record)}, {where}: {percent(record['top1'])} % "
        f"(95 % interval {percent(record['low'])} to {percent(record['high'])}), "
        f"{_counted(record)}"
    )
    return Point(x, record["top1"], record["low"], record["high"], title)


def _named(record: Record) -> str:
    """The method; in the column of the best one, which that was."""
    return method(record["method"] if record["column"] == BEST else record["column"]).name


def _counted(record: Record) -> str:
    models = f" x {record['models']} training seeds" if record["models"] > 1 else ""
    return f"{record['count']} prompts{models}"


def _margin(record: Record) -> Bar:
    title = (
        f"layer {record['layer']}, {record['phase']} training: "
        f"nearest wrong answer {number(record['margin'])}, floor {number(record['margin_floor'])}, "
        f"{record['bits']:.1f} bits apart, {_counted(record)}"
    )
    floor = record["margin_floor"]
    high = max(record["margin"], floor)
    hollow = record["phase"] == BEFORE
    return Bar(record["layer"], floor, high, f"{record['bits']:.0f}", hollow, title)
