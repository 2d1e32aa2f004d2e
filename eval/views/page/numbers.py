"""Every number of rows as tables, one of each kind: what `summary` prints, and the page folds."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from eval.analysis.frame import KINDS, Frame, Quantity, quantities
from eval.analysis.summary import COUNTS, MODEL, summary_records, tell_prompts_apart
from eval.drawing.tables import Record, Table, across, lay_out, text
from eval.models.identity import labels
from eval.rows.schema import Row
from eval.views.page.recoveries import departures, site, solver_names

BRIEF = ("self", "nonself", "exact", "margin_bits", "false_accepts", "evaluations", "seconds")
"""Figures of recoveries that a line of a terminal has room for."""


class Numbers(NamedTuple):
    """The figures of one kind of rows, or of one lens.

    Attributes:
        kind: of the rows.
        records: of `eval.analysis.summary.summary_records`.
        brief: a table of the main figures.
        full: a table of all.
    """

    kind: str
    records: list[Record]
    brief: Table
    full: Table


def number_tables(lines: Frame) -> Iterator[Numbers]:
    """The tables of all kinds, recoveries first, each lens on its own."""
    lenses = lines["lens"] if "lens" in lines else lines["kind"]
    groups = lines.groupby([lines["kind"] != "recovery", "kind", lenses], dropna=False)
    for (_, kind, name), group in groups:
        title = f"{kind} {name if kind == 'lens' else ''}".strip().capitalize()
        yield of_kind(group, title * (groups.ngroups > 1))


def of_kind(lines: Frame, title: str, known: Sequence[Quantity] = ()) -> Numbers:
    """The tables of lines of one kind.

    Args:
        lines: of `eval.analysis.frame.frame`.
        known: the quantities; those of the kind when not given.
    """
    kind = lines["kind"].iloc[0]
    records = summary_records(tell_prompts_apart(lines) if kind == "recovery" else lines, known)
    known = known or quantities(lines)
    main = [q for q in known if (q.name in BRIEF if kind == "recovery" else q.main)] or known
    if kind == "recovery":
        fields, shown = _name_recoveries(records)
    else:
        present = dict.fromkeys(name for record in records for name in record if name in lines)
        named = KINDS[kind].coordinates or [name for name in present if name not in MODEL]
        fields, shown = ["model", "step", *named], records
        if len({tuple(record.get(name) for name in fields) for record in records}) < len(records):
            others = [n for n in present if n not in (*fields, *MODEL)]
            fields += [n for n in others if len({record.get(n) for record in records}) > 1]
    unit = {"recovery": "prompts", "captured": "prompts", "probe": "models"}.get(kind, "n")
    count = ("models" if kind == "probe" else "prompts", unit, False)  # a probe names no prompts
    if kind == "lens":
        count, shown = ("n", "n", False), [r | {"n": _count_text(r, known)} for r in records]
    brief, full = (
        lay_out(shown, fields, [*((q.name, q.words, q.percent) for q in chosen), *counts], title)
        for chosen, counts in (
            (main, [count]),
            (known, [*((name, name, False) for name in COUNTS), *[count] * (kind == "lens")]),
        )
    )
    return Numbers(kind, records, brief, full)


def _count_text(record: Record, figures: Sequence[Quantity]) -> str:
    """Of how many prompts, tokens or pairs the figures of a line are: the least and the most."""
    counts = [n for figure in figures if (n := record[f"{figure.name}_n"])]
    return "–".join(map(text, dict.fromkeys([min(counts), max(counts)])))


def _name_recoveries(records: list[Record]) -> tuple[list[str], list[Record]]:
    """The fields that name a line of recoveries, and the records with these fields in words."""
    of_solvers = "solver" in records[0]  # verdicts are of all together
    fields = ["model", "step", "layer", "slice", "with", *["solver"] * of_solvers]
    names = solver_names(records) if of_solvers else [""] * len(records)
    words = []
    for record, name in zip(records, names, strict=True):
        kind = record.get("prompt_kind", "story")
        departs = [*departures(record).values(), *[kind] * (kind != "story")]
        words.append({"layer": site(record), "with": ", ".join(departs), "solver": name})
    named = [record | said for record, said in zip(records, words, strict=True)]
    alike = Counter(tuple(record.get(name) for name in fields) for record in named)
    for record in named:  # of texts of several lengths
        if alike[tuple(record.get(name) for name in fields)] > 1 and record.get("observed"):
            said = filter(None, [record["with"], f"{record['observed']} shown"])
            record["with"] = ", ".join(said)
    return fields, named


def lens_overview(rows: Iterable[Row]) -> Table:
    """The main figures of each lens in each checkpoint."""
    from eval.lenses.headlines import headlines  # with torch, which other tables need not wait for

    rows = list(rows)
    label = labels(row for row in rows if "checkpoint" in row)
    records = [{"lens": line.lens, "figure": line.figure, "value": line.value,
                "checkpoint": f"{label[line.model_id]} at {line.step}"}
               for line in headlines(rows)]  # fmt: skip
    title = "Main figures of the lenses; report draws all of them, summary --csv writes them"
    return across(records, ["lens", "figure"], "checkpoint", [("value", "value", False)], title)
