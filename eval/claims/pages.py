"""Judgements as text: a table in a terminal, a page of a line a claim, and a page for each."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import box
from rich.console import Console
from rich.table import Table

from eval import tables
from eval.claims import BENCH
from eval.claims.columns import (
    ANSWERS,
    COLUMNS,
    ENOUGH,
    FOUND,
    INVALID,
    NOT_ASKED,
    OPEN,
    READ,
    SHOWN,
    YES,
    Judgement,
    Outcome,
    Value,
    answers_of,
    tally_of,
)
from eval.claims.entries import FAIR, OPERATIONS, PROTOCOLS, Term
from eval.claims.evidence import Record
from eval.claims.registry import bibliography, stand_ins

QUOTED = re.compile(r"“[^”]*”")
MARKS = str.maketrans({c: f"\\{c}" for c in "\\`*_[]$"})
TICKS = {YES: "✓", OPEN: "?"}
SIZE = re.compile(r"^.*\b(d\d+ n\d+)\b.*$")
WIDTH = 80  # of a text that was recovered


def claims_page(judgements: list[Judgement], notes: list[str], beside: str = "claims") -> str:
    """The page: a line for each claim that was asked, and what the others need.

    Args:
        judgements: of all claims.
        notes: what was left out.
        beside: the folder of the claims' own pages, as the page links to it.
    """
    ordered = sorted(judgements, key=lambda one: one.claim.number)
    several = [other for one in ordered for other in one.stand_ins]
    unasked, cited = defaultdict(list), defaultdict(list)
    for one in ordered:
        cited[one.claim.source.key].append(one.claim.number)
        if not one.asked:
            models = [arm.models for arm in one.claim.arms if not arm.models.own]
            largest = max(models, key=lambda m: m.parameters, default=None)
            unasked[largest.needs if largest else "models of our own"].append(one.claim.number)
    counts = [[c, *(str(answers_of(ordered, c)[a] or "–") for a in ANSWERS)] for c in COLUMNS]
    return _filled(
        "claims.md",
        notes=notes,
        read=f"{READ:.0%}",
        found=f"{FOUND:.0%}",
        bench=BENCH,
        counts=tables.markdown(tables.Table(["", *ANSWERS], counts)),
        asked=_lines([one for one in ordered if one.asked], beside),
        unasked=unasked,
        stand_ins=[stand_ins()[name] for name in dict.fromkeys(one.stand_in for one in several)],
        stood_in=_lines(several, beside),
        changed=[one for one in ordered if one.changed],
        again=[one.claim for one in ordered if one.asked and one.claim.again],
        sources=bibliography(),
        cited=cited,
    )


def claim_page(one: Judgement) -> str:
    """A claim's own page: what it says, by what it is judged, and all that was measured."""
    arms = one.claim.arms
    trained = any(arm.models.own and arm.models.trained for arm in arms)
    stories = any(arm.fair and (arm.lens or arm.fair.kind != "random") for arm in arms)
    flags = " --models RUNS" * trained + " --corpus STORIES" * stories
    about = {"claim": one.claim, "changed": one.changed, "details": _details(one)}
    return _filled("claim.md", **about, flags=flags)


def description(one: Judgement) -> str:
    """What a claim says and asks, how it is judged, and all that was measured, for a terminal."""
    text = _filled("claim.txt", claim=one.claim, protocols=PROTOCOLS, details=_details(one))
    return text.rstrip("\n")


def claims_table(judgements: list[Judgement], width: int = 120) -> str:
    """The table as plain text."""
    table = Table("#", "claim", *COLUMNS, box=box.SIMPLE)
    for one in judgements:
        table.add_row(str(one.claim.number), one.claim.claim, *_cells(one))
        for other in one.stand_ins:
            table.add_row("", "", *_cells(other))
    console = Console(width=width, no_color=True, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    counts = (f"{column}: {tally_of(judgements, column)}" for column in COLUMNS)
    return "\n".join([capture.get().rstrip(), "", *counts])


def _details(one: Judgement) -> list[str]:
    """A line for every column, criterion and control, then for all methods of every figure."""
    lines = [f"asked of a stand-in: {stand_ins()[one.stand_in].title}"] if one.stand_in else []
    for (column, cell), text in zip(one.cells.items(), _cells(one), strict=True):
        if cell.outcomes:
            lines.append(f"{column}: {text}")
        if cell.failed:
            lines.append(f"{column}: {INVALID} by its control: {_said(cell.failed)}")
        lines += [f"{column}: {_said(o)} ({_about(o.left.record)})" for o in cell.outcomes]
    asked = dict.fromkeys((t.arm, t.figure) for c in one.claim.judge for t in c.terms)
    for protocol in PROTOCOLS:
        for arm, figure in asked:
            here = [r for r in one.records if (r["arm"], r["protocol"]) == (arm, protocol)]
            if records := [r for r in here if r.get(figure) is not None]:
                lines += _methods(records, figure, f"{protocol}{', ' if arm else ''}{arm}")
    return lines + [line for other in one.stand_ins for line in _details(other)]


def _methods(records: list[Record], figure: str, where: str) -> list[str]:
    """A figure by every method; of hidden tokens also what a constant guess would name."""
    words = f"{where}: {SHOWN.get(figure, figure)}"
    most = max(records, key=lambda r: r["models"])
    reached = "; ".join(_reached(r, figure) for r in records)
    several = [r for r in records if figure == "nonself" and r.get("others") is not None]
    if not several or most["protocol"] != FAIR:
        return [f"{words} by {reached} ({_about(most)})"]
    constant = f"always naming the commonest {Value(most['constant'], most)}"
    others = "; ".join(_reached(r, "others") for r in several)
    return [
        f"{words} by {reached}; {constant} ({_about(most)})",
        f"{words} other than the commonest by {others}",
    ]


def _reached(record: Record, figure: str) -> str:
    """A method's figure; a control's, of the first model alone, is named so."""
    kinds = ["padded"] if record["padded"] and record["protocol"] == FAIR else []
    kinds += [record["control"]] if record["control"] else []
    name = record["method"] + (f" ({', '.join(kinds)})" if kinds else "")
    text = record.get("found")
    short = text if text is None or len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
    return f"{name} {Value.of(record, figure)}" + ("" if short is None else f" “{short}”")


def _cells(one: Judgement, mark: str = "") -> list[str]:
    """The answers of the columns, of how many prompts and which models: `yes (n 50; d128 n4)`."""
    cells = []
    for cell in one.cells.values():
        if cell.answer == NOT_ASKED:
            cells.append(cell.answer)
            continue
        few = ", too few" if cell.prompts < ENOUGH else ""
        sizes = _sizes(one, list(cell.outcomes))
        cells.append(f"{mark}{cell.answer}{mark} (n {cell.prompts}{few}; {sizes})")
    return cells


def _sizes(one: Judgement, outcomes: list[Outcome]) -> str:
    """Which models were asked, and for which, where a claim is about wider or deeper ones."""
    if one.stand_in:
        return f"stand-in: {stand_ins()[one.stand_in].title}"
    shapes = {SIZE.sub(r"\1", size) for o in outcomes for size in o.left.record["sizes"]}
    names = {outcome.criterion.left.arm for outcome in outcomes}
    asked = [arm.models.config for arm in one.claim.arms if arm.name in names and arm.models.own]
    wanted = {f"d{c['d_model']} n{c['n_layers']}" for c in asked if {"d_model", "n_layers"} <= {*c}}
    other = sorted(wanted - shapes)
    return ", ".join(sorted(shapes)) + (f" for {', '.join(other)}" if other else "")


def _said(outcome: Outcome) -> str:
    """An outcome in words: `✓ hidden tokens 12.0 % (8.1 to 17.2), < 50 %`."""
    left, right = outcome.criterion.left, outcome.criterion.right
    lens = "lens" in outcome.left.record
    arm = f"{left.arm}: " if left.arm else ""
    where = "".join(f", {k} {v}" for k, v in left.where.items())
    pool = f" ({left.pool})" if left.pool != "mean" and lens else ""
    if isinstance(right, Term):
        words = [right.arm] if right.arm != left.arm else []
        words += [f"{k} {v}" for k, v in right.where.items() if left.where.get(k) != v]
        words += [right.figure] if right.figure != left.figure else []
        words += [f"by {right.by}"] if right.by != left.by else []
        words += [right.pool] if right.pool != left.pool else []
        other = f"{outcome.right} ({', '.join(words)})"
    else:
        other = f"{100 * right:g} %" if left.figure in SHOWN else f"{right:g}"
    mark = TICKS.get(outcome.answer, "✗")
    sign = ("" if outcome.answer in TICKS else "not ") + OPERATIONS[
        outcome.criterion.operation
    ].sign
    name = SHOWN.get(left.figure, left.figure)
    return f"{mark} {arm}{name}{where}{pool} {outcome.left}, {sign} {other}"


def _about(record: Record) -> str:
    """The models and prompts of a record: `flat d64 n4 untrained; 50 prompts, 3 models`."""
    counts = (
        f"{record[name]} {name.removesuffix('s') if record[name] == 1 else name}"
        for name in ("prompts", "models")
    )
    return f"{', '.join(record['sizes'])}; {', '.join(counts)}"


def _escaped(text: str) -> str:
    """For a page: nothing in it ends a line or is a tag; what stands in quotes is no Markdown."""
    plain = text.replace("\n", "↵").replace("<", "&lt;")
    return QUOTED.sub(lambda match: match[0].translate(MARKS), plain)


def _lines(judgements: list[Judgement], beside: str) -> str:
    """A line for each claim, as Markdown."""
    lines = []
    for one in judgements:
        number, changed = one.claim.number, " †" if one.changed else ""
        anchor = "" if one.stand_in else f'<a id="claim-{number}"></a>'
        place = f"{anchor}[{number}]({beside}/{number}.md)"
        cells = (_escaped(text) for text in _cells(one, "**"))
        lines.append([place, f"{_escaped(one.claim.claim)}{changed}", *cells])
    return tables.markdown(tables.Table(["#", "claim", *COLUMNS], lines))


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers in words, neighbours joined: `1-24, 67`."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in run] for _, run in runs)
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in ends)


def _filled(name: str, **words: object) -> str:
    """A template of `templates/`, without empty lines beside each other."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"plain": _escaped, "ranges": _ranges}
    text = environment.get_template(name).render(words)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
