"""Every number of rows as tables, one of each kind: what `summary` prints, and the page folds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eval.measurements import KINDS, Frame, Quantity, quantities
from eval.report.recoveries import departures, site
from eval.summary import COUNTS, MODEL, wide
from eval.tables import Record, Table, lay_out

BRIEF = ("self", "nonself", "exact", "set_recall", "margin_bits", "at_floor", "false_accepts",
         "evaluations", "seconds")  # fmt: skip
"""Figures of recoveries that a line of a terminal has room for."""


class Numbers(NamedTuple):
    """The figures of one kind of rows, or of one lens.

    Attributes:
        kind: of the rows.
        records: of `eval.summary.wide`.
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
    for (_, kind, name), some in groups:
        title = f"{kind} {name if kind == 'lens' else ''}".strip().capitalize()
        yield of_kind(some, title * (groups.ngroups > 1))


def of_kind(lines: Frame, title: str, known: Sequence[Quantity] = ()) -> Numbers:
    """The tables of lines of one kind.

    Args:
        lines: of `eval.measurements.frame`.
        title: stands above.
        known: the quantities; those of the kind when not given.
    """
    kind, records = lines["kind"].iloc[0], wide(lines, known)
    known = known or quantities(lines)
    main = [q for q in known if (q.name in BRIEF if kind == "recovery" else q.main)] or known
    if kind == "recovery":
        fields = ["model", "step", "layer", "slice", "with", "method", "settings"]
        shown = [r | {"layer": site(r), "with": ", ".join(departures(r).values())}
                 for r in records]  # fmt: skip
    else:
        found = (name for record in records for name in record if name in lines)
        named = KINDS[kind].coordinates or [n for n in dict.fromkeys(found) if n not in MODEL]
        fields, shown = ["model", "step", *named], records
    brief, full = (
        lay_out(shown, fields, [*((q.name, q.words, q.share) for q in some), *counts], title)
        for some, counts in (
            (main, [(name, name, False) for name in COUNTS[1:]]),
            (known, [(name, name, False) for name in COUNTS]),
        )
    )
    return Numbers(kind, records, brief, full)
