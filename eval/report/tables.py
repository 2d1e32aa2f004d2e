"""The numbers of the report as tables: the summary, every layer, every cell, the terminal's."""

import io
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eval.report.evidence import (
    AFTER,
    BEFORE,
    Score,
    Task,
    deepest,
    group,
    headline,
    plain,
    scores,
)
from eval.report.measure import measure
from eval.report.wording import (
    column_order,
    method,
    percent,
    prompt_order,
    site_label,
    task_label,
)
from eval.rows import Row

Record = dict[str, Any]


def summary_table(rows: list[Row]) -> list[Record]:
    """Before and after training at each model's deepest site, one record per cell.

    Questions are the self tokens where the most is shown, and the non-self tokens of every slice.
    A record holds `model, layer, part, task, prompts, phase, step, column` and what
    `measure.measure` gives: `count` of prompts, `tokens`, `top1` and its interval `low, high`, ...

    Raises:
        RequestError: there are no rows.
    """
    return summary_records(headline(plain(scores(rows))))


def summary_records(placed: list[Score]) -> list[Record]:
    """`summary_table` of scores already placed."""
    kept = []
    for asked in group(_questions(placed), lambda s: (s.model, s.task, s.prompts)).values():
        kept += deepest(asked)
    return _records(kept)


def layer_records(placed: list[Score]) -> list[Record]:
    """The summary's questions at every site, before and after training."""
    return _records(_questions(placed))


def every_cell(placed: list[Score]) -> list[Record]:
    """Every checkpoint, site, question, prompt set and method, one record each."""
    cells = group(
        placed,
        lambda s: (s.model, s.step, s.part, s.layer, s.task, s.prompts, s.variation, s.method),
    )
    names = column_order({s.method for s in placed})
    models = list(group(placed, lambda s: s.model))

    def place(key: tuple) -> tuple:
        model, step, part, layer, task, prompts, departs, name = key
        order = (models.index(model), step, part, layer, prompt_order(prompts), task)
        return (*order, str(departs), names.index(name))

    return [record(cells[key]) | {"method": key[-1]} for key in sorted(cells, key=place)]


def by_method(lines: list[Record], placed: list[Score]) -> list[tuple[str, list[Record]]]:
    """Every method at the sites of a table's lines, one line per method, by model.

    Each has `method`, its `family`, the `asked` lines, and `cells`: records by
    `(phase, number of the line)`.
    """
    keys = ("model", "task", "prompts", "part", "layer")
    sites = group(placed, lambda s: tuple(getattr(s, key) for key in keys))
    found = []
    for model, asked in group(lines, lambda line: line["model"]).items():
        cells: dict[str, dict[tuple[str, int], Record]] = {}
        families = {}
        for i, line in enumerate(asked):
            here = [s for s in sites[tuple(line[k] for k in keys)] if s.phase in (BEFORE, AFTER)]
            for (phase, name), own in group(here, lambda s: (s.phase, s.method)).items():
                cells.setdefault(name, {})[phase, i] = record(own)
                families[name] = own[0].row["family"]
        own_lines = [
            {"method": name, "family": families[name], "asked": asked, "cells": cells[name]}
            for name in column_order(set(cells))
        ]
        order = {"gradient": 0, "search": 2, "control": 3}
        found.append((model, sorted(own_lines, key=lambda line: order.get(line["family"], 1))))
    return found


def varied(placed: list[Score]) -> list[Record]:
    """Controls, noise, ablations, padding: one line per question that is not a plain one.

    Each has `variation`, `model, step, layer, part, task, prompts`, and `cells`, records by method.
    """
    kept = []
    apart = [s for s in placed if s.variation]
    for asked in group(apart, lambda s: (s.variation, s.model, s.prompts)).values():
        tasks = questions(asked)
        kept += [s for s in asked if s.task in tasks]
    models = list(group(placed, lambda s: s.model))
    keys = ("variation", "model", "step", "part", "layer", "prompts", "task")

    def place(key: tuple) -> tuple:
        departs, model, step, part, layer, prompts, task = key
        noise = dict(departs).get("noise", 0.0)
        others = str([item for item in departs if item[0] != "noise"])
        asked = (models.index(model), step, part, layer, prompt_order(prompts), task)
        return (noise > 0, others, noise, *asked)

    lines = group(kept, lambda s: tuple(getattr(s, key) for key in keys))
    return [
        dict(zip(keys, key, strict=True))
        | {"cells": {n: record(own) for n, own in group(lines[key], lambda s: s.method).items()}}
        for key in sorted(lines, key=place)
    ]


def questions(placed: list[Score]) -> list[Task]:
    """The summary's questions: self tokens where the most is shown, then all non-self ones."""
    tasks = sorted({s.task for s in placed})
    return [t for t in tasks if not t.nonself][:1] + [t for t in tasks if t.nonself]


def pivot(records: list[Record]) -> list[Record]:
    """Records as lines of a table: one per model, site, question and prompt set.

    Each line has `cells`, the records by `(phase, column)`, and `count`, its prompts in words.
    """
    lines = []
    keys = ("model", "task", "prompts", "part", "layer")
    models = list(group(records, lambda r: r["model"]))
    groups = group(records, lambda r: tuple(r[k] for k in keys))

    def place(key: tuple) -> tuple:
        model, task, prompts, *site = key
        return (models.index(model), prompt_order(prompts), task, *site)

    for key in sorted(groups, key=place):
        cells = {(r["phase"], r["column"]): r for r in groups[key]}
        counts = sorted({r["count"] for r in cells.values()})
        count = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
        lines.append(dict(zip(keys, key, strict=True)) | {"cells": cells, "count": count})
    return lines


def nested(lines: list[Record]) -> list[tuple[str, list[list[Record]]]]:
    """Lines by model, and within it by question and prompt set."""
    return [
        (model, list(group(own, lambda r: (r["task"], r["prompts"])).values()))
        for model, own in group(lines, lambda r: r["model"]).items()
    ]


def terminal_table(rows: list[Row], width: int = 100) -> str:
    """The summary as plain text, at most `width` characters wide.

    Raises:
        RequestError: there are no rows.
    """
    records = summary_table(rows)
    columns = column_order({r["column"] for r in records})
    several = len({r["prompts"] for r in records}) > 1
    title = "Tokens recovered before and after training, % (top-1)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", collapse_padding=True)
    for name in ("model", "layer", "tokens asked for"):
        table.add_column(name, no_wrap=name == "layer")
    for when in (BEFORE, AFTER):
        for column in columns:
            table.add_column(f"{when}\n{method(column).word}", justify="right")
    table.add_column("prompts", justify="right")
    model = None
    for line in pivot(records):
        if model not in (None, line["model"]):
            table.add_section()
        asked = task_label(line["task"]) + (f", {line['prompts']}" if several else "")
        cells = [line["cells"].get((when, c)) for when in (BEFORE, AFTER) for c in columns]
        table.add_row(
            line["model"] if line["model"] != model else "",
            site_label(line["layer"], line["part"]),
            asked,
            *(percent(cell["top1"]) if cell else "–" for cell in cells),
            line["count"],
        )
        model = line["model"]
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def _questions(placed: list[Score]) -> list[Score]:
    """The scores that the summary asks for, before and after training."""
    kept = []
    for asked in group(placed, lambda s: (s.model, s.prompts)).values():
        tasks = questions(asked)
        kept += [s for s in asked if s.task in tasks and s.phase in (BEFORE, AFTER)]
    return kept


def _records(placed: list[Score]) -> list[Record]:
    cells = group(
        placed, lambda s: (s.model, s.part, s.layer, s.task, s.prompts, s.phase, s.column)
    )
    return [record(cell) for cell in cells.values()]


def record(cell: list[Score]) -> Record:
    """The record of scores of equal place."""
    s = cell[0]
    place = {
        "model": s.model,
        "layer": s.layer,
        "part": s.part,
        "task": s.task,
        "prompts": s.prompts,
        "phase": s.phase,
        "step": s.step,
        "column": s.column,
        "variation": s.variation,
    }
    return place | measure(cell)
