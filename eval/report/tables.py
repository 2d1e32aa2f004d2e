"""The numbers of the report as records and lines of tables, and its summary for a terminal.

Scores are pooled by any of their fields; what they say together is `eval.summary.measure`'s.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from eval.quantities import MEASURED
from eval.recovery import Joined, margin_bits, question, shares, weights
from eval.report.evidence import (
    AFTER,
    BEFORE,
    BETWEEN,
    PHASES,
    PLACE,
    Score,
    asked,
    deepest,
    group,
    headline,
    plain,
    scores,
)
from eval.report.wording import (
    column_order,
    method,
    percent,
    prompt_order,
    site_label,
    task_label,
    variation_order,
)
from eval.schema import Row
from eval.summary import Record, measure
from eval.tables import NONE, Table, terminal

VARIED = ("variation", "model", "step", "part", "layer", "prompts", "task")
FAMILIES = ("gradient", "", "search", "control")
"""In the order of reading; the empty one stands for all others."""


def summary_table(rows: list[Row]) -> list[Record]:
    """Before and after training at each model's deepest site, one record per cell.

    Questions are the self tokens where the most is shown, and the non-self tokens of every slice.
    A record is one of `records`.

    Raises:
        RequestError: there are no rows.
    """
    return summary_records(headline(plain(scores(rows))))


def summary_records(placed: list[Score]) -> list[Record]:
    """`summary_table` of scores already placed."""
    return records(deepest(asked(placed)), *PLACE, "phase", "column")


def by_layer(placed: list[Score]) -> list[Record]:
    """The summary's questions at every site, before and after training."""
    return records(asked(placed), *PLACE, "phase", "column")


def by_step(placed: list[Score]) -> list[Record]:
    """The summary's questions at the deepest site, for models with more than two steps."""
    several = group(placed, lambda s: s.model).values()
    long = [s for line in several if len({s.step for s in line}) > 2 for s in line]
    return records(deepest(asked(long, ends=False)), *PLACE, "column", "step")


def by_value(placed: list[Score], name: str) -> list[Record]:
    """The same over the `noise` or `channels`, where more than two values of it were asked."""
    known = asked([s for s in placed if s.phase != BETWEEN and getattr(s, name) is not None])
    curves = group(
        known, lambda s: (s.model, s.task, s.prompts, s.part, s.layer, s.phase, s.column)
    )
    varied = [line for line in curves.values() if len({getattr(s, name) for s in line}) > 2]
    return records(deepest([s for line in varied for s in line]), *PLACE, "phase", "column", name)


def records(placed: Sequence[Score], *by: str) -> list[Record]:
    """A record for all scores that are equal in some fields, in these fields' order of reading.

    A record holds the fields of the first of its scores, how many prompts (`count`), `models` and
    `tokens` it is of, and figures: `top1` between `low` and `high`, `top5`; `margin`,
    `margin_floor` and `margin_bits` are of the row with the fewest bits.
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

    def place(key: tuple[Any, ...]) -> list[Any]:
        return [order.get(name, lambda same: same)(v) for name, v in zip(by, key, strict=True)]

    cells = group(placed, lambda s: tuple(getattr(s, name) for name in by))
    return [_record(cells[key]) for key in sorted(cells, key=place)]


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
        counts = sorted({r["count"] for r in several})
        pivoted.append(
            dict(zip(lines, key, strict=True))
            | {"cells": {tuple(r[name] for name in cells): r for r in several}}
            | {"count": f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"}
        )
    return pivoted


def nested(lines: list[Record]) -> list[tuple[str, list[list[Record]]]]:
    """Lines by model, and within it by question and prompt set."""
    return [
        (model, list(group(several, lambda r: (r["task"], r["prompts"])).values()))
        for model, several in group(lines, lambda r: r["model"]).items()
    ]


def by_method(
    lines: list[Record], placed: list[Score]
) -> list[tuple[str, list[Record], list[Record]]]:
    """Every method at the sites of a table's lines: by model these, and a line for each method."""
    sites = {tuple(line[name] for name in PLACE) for line in lines}
    here = [s for s in asked(placed) if s.place in sites]
    of_methods = pivot(
        records(here, "model", "family", "method", *PLACE[1:], "phase"),
        ("model", "family", "method"),
        (*PLACE[1:], "phase"),
    )
    several = group(of_methods, lambda line: line["model"])
    return [
        (model, rows, several[model]) for model, rows in group(lines, lambda r: r["model"]).items()
    ]


def varied(placed: list[Score]) -> list[Record]:
    """Controls, noise, ablations, padding: one line per question that is not a plain one."""
    apart = group([s for s in placed if s.variation], lambda s: s.variation)
    kept = [s for several in apart.values() for s in asked(several, ends=False)]
    return pivot(records(kept, *VARIED, "method"), VARIED, ("method",))


def outcomes(
    lines: list[Record], placed: list[Score], joined: Mapping[Hashable, Joined]
) -> list[tuple[str, list[Record]]]:
    """What became of the tokens of a table's lines when all methods are taken together, by model.

    Of the lines where both gradients and search were tried: each with the `shares` of the verdicts
    and how many `tokens` they are of, both by phase.

    Args:
        lines: of `pivot`.
        placed: the scores that they were made of.
        joined: verdicts by `recovery.question`.
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
    headings = [f"{phase}\n{method(column).word}" for phase, column in columns]
    title = "Tokens recovered before and after training, % (top-1)"
    table = Table(["model", "layer", "tokens\nasked for", *headings, "prompts"], lines, 3, title)
    return terminal(table)


def _record(cell: list[Score]) -> Record:
    """Scores of equal place as one."""
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
