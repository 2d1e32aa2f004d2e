"""The records and lines of the report's tables, its summary for a terminal, and its sources.

Recoveries are pooled by any of the fields of `evidence.Placed`, by `eval.summary.measure`.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence

from eval.cells import Record, clusters, measure
from eval.lenses.markup import visible
from eval.quantities import MEASURED
from eval.recovery import hidden_positions, layers, margin_bits, part, prompt_of, weights
from eval.report.evidence import (
    AFTER,
    BEFORE,
    BETWEEN,
    PHASES,
    PLACE,
    Placed,
    asked_in_tables,
    column_order,
    deepest,
    headline,
    once,
    place_rows,
    plain_questions,
    prompt_order,
    prompt_set,
    site_label,
    task_label,
    variation_order,
)
from eval.schema import Row
from eval.statistics import Interval, share
from eval.tables import NONE, Table, group, percent, terminal
from eval.verdicts import SHORT, Joined, question

FEW = 24  # answers, or lines of a table, that a terminal shows in full
VARIED = ("variation", "model", "step", "part", "layer", "prompts", "task")
FAMILIES = ("gradient", "", "search", "control")
"""In the order of reading; the empty one stands for all others."""


def summary_table(rows: list[Row]) -> list[Record]:
    """Before and after training, one record (`pool`) per cell: at every site, or at the deepest.

    The deepest of each model where all sites would make more lines than `FEW`. Questions are the
    self tokens where the most is shown, and the non-self tokens of every slice.

    Raises:
        RequestError: there are no rows.
    """
    placed = headline(plain_questions(place_rows(rows)))
    every = by_layer(placed)
    return every if len(pivot(every)) <= FEW else at_deepest(placed)


def at_deepest(placed: list[Placed]) -> list[Record]:
    """The summary's questions at each model's deepest site, before and after training."""
    return pool(deepest(asked_in_tables(placed)), *PLACE, "phase", "column")


def by_layer(placed: list[Placed]) -> list[Record]:
    """The summary's questions at every site, before and after training."""
    return pool(asked_in_tables(placed), *PLACE, "phase", "column")


def by_step(placed: list[Placed]) -> list[Record]:
    """The summary's questions at the deepest site, for models with more than two steps."""
    several = group(placed, lambda s: s.model).values()
    long = [s for line in several if len({s.step for s in line}) > 2 for s in line]
    return pool(deepest(asked_in_tables(long, ends=False)), *PLACE, "column", "step")


def by_value(placed: list[Placed], name: str) -> list[Record]:
    """The same over the `noise` or `channels`, where more than two values of it were asked."""
    known = asked_in_tables(
        [s for s in placed if s.phase != BETWEEN and getattr(s, name) is not None]
    )
    curves = group(known, lambda s: (*s.place, s.phase, s.column))
    varied = [line for line in curves.values() if len({getattr(s, name) for s in line}) > 2]
    return pool(deepest([s for line in varied for s in line]), *PLACE, "phase", "column", name)


def pool(placed: Sequence[Placed], *by: str) -> list[Record]:
    """A record for all rows that are equal in some fields, in these fields' order of reading.

    A record holds the fields of the first of its rows, the numbers of prompts (`count`), `models`
    and `tokens`, and figures: `top1` between `low` and `high`, `top5`; `margin`, `margin_floor`
    and `margin_bits` are of the row with the fewest bits.
    """
    models = list(dict.fromkeys(s.model for s in placed))
    names = column_order({name for s in placed for name in (s.method, s.column)})
    order = {
        "model": models.index,
        "prompts": prompt_order,
        "phase": PHASES.index,
        "variation": variation_order,
        "method": names.index,
        "column": names.index,
        "family": lambda name: FAMILIES.index(name if name in FAMILIES else ""),
    }
    cells = group(placed, lambda s: tuple(getattr(s, name) for name in by))
    keys = sorted(cells, key=lambda key: [
        order[name](value) if name in order else value
        for name, value in zip(by, key, strict=True)
    ])  # fmt: skip
    return [_record(cells[key]) for key in keys]


def pivot(
    rows: Iterable[Record],
    lines: Sequence[str] = PLACE,
    cells: Sequence[str] = ("phase", "column"),
) -> list[Record]:
    """Records as lines of a table: those that are equal in the fields `lines`.

    Each has these fields, `cells`, which are its records by the fields `cells`, and `count`, its
    prompts in words.
    """
    pivoted = []
    for key, several in group(rows, lambda r: tuple(r[name] for name in lines)).items():
        counts = [r["count"] for r in several]
        pivoted.append({
            **dict(zip(lines, key, strict=True)),
            "cells": {tuple(r[name] for name in cells): r for r in several},
            "count": "–".join(map(str, dict.fromkeys((min(counts), max(counts))))),
        })  # fmt: skip
    return pivoted


def nested(lines: list[Record]) -> list[tuple[str, list[list[Record]]]]:
    """Lines by model, and within it by question and prompt set."""
    return [
        (model, list(group(several, lambda r: (r["task"], r["prompts"])).values()))
        for model, several in group(lines, lambda r: r["model"]).items()
    ]


def by_method(
    lines: list[Record], placed: list[Placed]
) -> list[tuple[str, list[Record], list[Record]]]:
    """Every method at the sites of a table's lines: by model these, and a line for each method."""
    sites = {tuple(line[name] for name in PLACE) for line in lines}
    here = [s for s in asked_in_tables(placed) if s.place in sites]
    place, fields = ("model", "family", "method"), (*PLACE[1:], "phase")
    of_methods = group(pivot(pool(here, *place, *fields), place, fields), lambda r: r["model"])
    models = group(lines, lambda line: line["model"])
    return [(model, rows, of_methods[model]) for model, rows in models.items()]


def varied(placed: list[Placed]) -> list[Record]:
    """Controls, noise, ablations, padding: one line per question that is not a plain one."""
    apart = group((s for s in placed if s.variation), lambda s: s.variation)
    kept = [s for several in apart.values() for s in asked_in_tables(several, ends=False)]
    return pivot(pool(kept, *VARIED, "method"), VARIED, ("method",))


def outcomes(
    lines: list[Record], placed: list[Placed], joined: Mapping[Hashable, Joined]
) -> list[tuple[str, list[Record]]]:
    """The verdicts on the tokens of a table's lines over all methods together, by model.

    Of the lines where both gradients and search were tried: each with the `shares` of the verdicts
    and how many `tokens` they are of, both by phase. `placed` are the rows that the lines were made
    of, `joined` the verdicts by `recovery.question`.
    """
    cells = group(placed, lambda s: (*s.place, s.phase))
    kept = []
    for line in lines:
        hidden, of, tokens = line["task"].nonself, {}, {}
        for phase in (BEFORE, AFTER):
            here = cells.get((*(line[name] for name in PLACE), phase), [])
            several = dict.fromkeys(question(s.row) for s in here)
            tried = [joined[q] for q in several if q in joined and joined[q].decisive]
            if known := shares(tried, hidden):
                of[phase] = known
                tokens[phase] = sum(j.count(hidden).total() for j in tried)
        if of:
            kept.append(line | {"shares": of, "tokens": tokens})
    return list(group(kept, lambda line: line["model"]).items())


def shares(joined: list[Joined], hidden: bool) -> dict[str, Interval] | None:
    """The share of each verdict among hidden or shown tokens; None without such tokens."""
    counts = [j.count(hidden) for j in joined]
    totals = [count.total() for count in counts]
    if not sum(totals):
        return None
    by = clusters([j.rows[0] for j in joined])
    return {v: share([count[v] for count in counts], totals, *by) for v in SHORT}


def terminal_table(rows: list[Row]) -> str:
    """The summary as plain text.

    Raises:
        RequestError: there are no rows.
    """
    summary = summary_table(rows)
    several = len({r["prompts"] for r in summary}) > 1
    known = {(r["phase"], r["column"]) for r in summary}
    columns = [(phase, column) for phase in (BEFORE, AFTER)
               for column in column_order({r["column"] for r in summary})
               if (phase, column) in known]  # fmt: skip
    lines = [
        [
            line["model"],
            site_label(line["layer"], line["part"]),
            task_label(line["task"]) + (f", {line['prompts']}" if several else ""),
            *(percent(line["cells"][c]["top1"]) if c in line["cells"] else NONE for c in columns),
            line["count"],
        ]
        for line in pivot(summary)
    ]
    both = len({phase for phase, _ in columns}) > 1
    headings = [f"{phase}\n{column}" if both else column for phase, column in columns]
    title = f"Tokens recovered{' before and after training' * both}, % (top-1)"
    table = Table(["model", "layer", "tokens\nasked for", *headings, "prompts"], lines, title)
    return terminal(table)


def answer_lines(rows: list[Row]) -> list[str]:
    """Each prompt, and below it what was recovered of it, a line for each row; wrong tokens marked.

    Of few rows: none where there are more than `FEW`.
    """
    if len(rows) > FEW:
        return []
    prompts = []
    for (model, step, text), some in group(rows, _asked).items():
        lines = [
            [
                f"layer {site_label(max(layers(row)), part(row))}",
                row["slice"],
                row["method"],
                "".join(
                    visible(piece) if found == true else f"[{visible(piece)}]"
                    for piece, found, true in zip(
                        row["found_text"], row["found"], row["truth"], strict=True
                    )
                ),
            ]
            for row in some
        ]
        width = [max(len(line[i]) for line in lines) for i in range(3)]
        named = [
            "  ".join([*(f"{cell:{w}}" for cell, w in zip(line, width, strict=False)), line[3]])
            for line in lines
        ]
        title = f"{model}, step {step}: {visible(text)}"
        prompts.append("\n  ".join([title, *named]))
    return prompts


def _asked(row: Row) -> tuple[str, int, str]:
    return row["checkpoint"]["name"], row["checkpoint"]["step"], row["text"]


def collision_lines(placed: list[Placed]) -> list[Record]:
    """Positions at which an exact search could not tell several tokens apart."""
    return [
        {
            "model": s.model,
            "step": s.step,
            "site": site_label(s.layer, s.part),
            "slice": s.row["slice"],
            "prompt": f"{prompt_set(s.prompts)} {s.row['prompt'] + 1}",
            "position": collision["position"] + 1,
            "hidden": collision["position"] in hidden_positions(s.row),
            "tokens": [visible(token) for token in collision["tokens"]],
        }
        for s in once(placed)
        for collision in s.row["collisions"]
    ]


def checkpoint_lines(placed: list[Placed]) -> list[Record]:
    """Every checkpoint asked about, once, with the largest floor measured on it."""
    lines = []
    for model, several in group(placed, lambda s: s.model).items():
        groups = group(several, lambda s: (s.step, s.row["checkpoint"]["path"]))
        for key in sorted(groups):
            floors = [s.row["floor"] for s in groups[key] if s.row["floor"] is not None]
            place = {"label": model, "floor": max(floors, default=None)}
            lines.append(groups[key][0].row["checkpoint"] | place)
    return lines


def method_lines(placed: list[Placed]) -> list[Record]:
    """Every method used, with its settings and its cost."""
    groups = group((s.row for s in once(placed)), lambda row: row["method"])
    lines = []
    for name in column_order(set(groups)):
        settings = [
            ", ".join(f"{n} {v if isinstance(v, str) else json.dumps(v)}"
                      for n, v in row["settings"].items())
            for row in groups[name]
        ]  # fmt: skip
        cost = _cost(groups[name])
        lines.append({"name": name, "settings": list(dict.fromkeys(settings))} | cost)
    return lines


def totals(placed: list[Placed]) -> Record:
    """Counts over all rows."""
    placed = once(placed)
    rows = [s.row for s in placed]
    return {
        "prompts": len({prompt_of(row) for row in rows}),
        "models": len({s.model for s in placed}),
        "lengths": sorted({row["length"] for row in rows}),
        "seeds": len({row["seed"] for row in rows}),
        "exact": sum(s.column == "exact" for s in placed),
        "enumerated": sum(row["certificate"] == "enumerated" for row in rows),
    } | _cost(rows)


def _record(cell: list[Placed]) -> Record:
    """Rows of equal place as one."""
    kind, rows = cell[0].kind, [s.row for s in cell]
    names = {kind: "top1", f"{kind}_tokens": "tokens", f"{kind}_top5": "top5"}
    figures = measure(rows, [q for q in MEASURED["recovery"].quantities if q.name in names])
    share = figures[kind]
    surely = [row for row in rows if margin_bits(row) is not None]
    nearest = min(surely, key=lambda row: row["margin_bits"], default={})
    return (
        vars(cell[0])
        | {"count": share.n, "models": len({weights(row) for row in rows})}
        | {names[name]: figure.value for name, figure in figures.items()}
        | {"low": share.low, "high": share.high}
        | {name: nearest.get(name) for name in ("margin", "margin_floor", "margin_bits")}
    )


def _cost(rows: list[Row]) -> Record:
    totals = {name: sum(row[name] for row in rows) for name in ("evaluations", "seconds")}
    return {"rows": len(rows)} | totals
