"""Judgements as text: a table in a terminal, a page of a line a claim, and a page for each."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

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
    YES,
    Judgement,
    Outcome,
    Value,
)
from eval.claims.entries import FAIR, OPERATIONS, PROTOCOLS, Claim, Term
from eval.claims.evidence import Record
from eval.claims.registry import bibliography, stand_ins

SHOWN = {
    "self": "shown tokens",
    "nonself": "hidden tokens",
    "others": "hidden tokens that are not the commonest",
    "constant": "the commonest hidden token",
    "exact": "whole prompts",
    "self_top5": "shown tokens in the top 5",
    "nonself_top5": "hidden tokens in the top 5",
    "criterion": "outputs met",
    "anywhere": "tokens at any place",
    "set_recall": "hidden tokens anywhere",
    "hidden_anywhere": "hidden tokens at any place",
    "minimised": "angles below 0.15",
}
"""The shares among the figures, in words."""
QUOTED = re.compile(r"“[^”]*”")
MARKS = str.maketrans({c: f"\\{c}" for c in "\\`*_[]$"})
TICKS = {YES: "✓", OPEN: "?"}
SIZE = re.compile(r"^.*\b(d\d+ n\d+)\b.*$")
WIDTH = 80  # of a text that was recovered

HEAD = """\
# The claims, in three columns

*Made by `python -m eval claims table --markdown` from the records beside it; not written by hand.*
"""
READING = f"""\
- **replicated**: asked as its source asks, on the source's prompts, mostly one. *Invalid* where the
  positive control fails: where the result is not in doubt, the protocol does not give what its
  source reports, so that its answer means nothing.
- **gradients**: descent and tuned gradients on many prompts of several models. Invalid where they
  read less than {READ:.0%} of the shown tokens of a network that does nothing.
- **information**: exact search, or a lens, which measures directly. Invalid where the search finds
  less than {FOUND:.0%} of the tokens that are shown. What a search does not find may be there:
  absence is *open*.

*Open* too: where intervals overlap, or hold the bound. *n* is the number of prompts of the figure
that has fewest; under 30 is too few. After it stand the models that were asked, and for which.
A claim's number leads to its criteria, figures, intervals and controls; `python -m eval claims show
N` prints them, `python -m eval claims run N` asks again.
"""
CHANGED = "criterion changed after the data were seen"
WARNING = """\
## Changed after the data were seen

The positive controls were set after these data were seen. So were criteria of the claims below,
whose answers are no tests. Rows hold the hash of the criteria that they were asked for from now on.
"""
AGAIN = """\
## Asked again

Criteria of these claims, or the models that answer them, had been changed after the data were seen.
They were frozen, and asked again on prompts and of seeds that no earlier row used. The answers are
of those rows alone.
"""
UNASKED = """\
## Not asked

These need weights of pretrained models (`python -m eval claims run N --download`).
"""
STAND_INS = """\
## Asked of a stand-in

Claims about pretrained models, asked of another one that is at hand. What it answers is no answer
to the claim: it is counted nowhere, and the claims stay where they are above.
"""
SOURCES = """\
<a id="sources"></a>

## Sources
"""


def claims_page(judgements: list[Judgement], notes: list[str], beside: str = "claims") -> str:
    """The page: a line for each claim that was asked, and what the others need.

    Args:
        judgements: of all claims.
        notes: what was left out.
        beside: the folder of the claims' own pages, as the page links to it.
    """
    ordered = sorted(judgements, key=lambda one: one.claim.number)
    counts = [
        [column, *(str(_counts(ordered, column)[answer] or "–") for answer in ANSWERS)]
        for column in COLUMNS
    ]
    changed = [(one.claim.number, one.changed) for one in ordered if one.changed]
    again = [one.claim for one in ordered if one.asked and one.claim.again]
    parts = [
        HEAD,
        "\n".join(f"> {note}" for note in notes),
        READING,
        f"Bench version {BENCH}.\n\n{tables.markdown(tables.Table(['', *ANSWERS], counts))}",
        _rows([one for one in ordered if one.asked], beside),
        _unasked(ordered),
        _stood_in(ordered, beside),
        _listed(WARNING, [f"- † [{n}](#claim-{n}): {how}" for n, how in changed]),
        _listed(
            AGAIN,
            [f"- [{c.number}](#claim-{c.number}): {c.changed}. Asked again: {c.again}"
             for c in again],
        ),
        _sources(ordered),
    ]  # fmt: skip
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def claim_page(one: Judgement) -> str:
    """A claim's own page: what it says, by what it is judged, and all that was measured."""
    claim = one.claim
    about = [f"# Claim {claim.number}", f"{claim.claim}. Expected: {claim.expected}."]
    about += [f"Source: {claim.source}."]
    about += [f"Note: {claim.note}."] if claim.note else []
    about += [f"**{CHANGED.capitalize()}**: {one.changed}."] if one.changed else []
    about += [f"**Asked again** since {claim.changed}: {claim.again}."] if claim.again else []
    lines = [f"- {_escaped(line)}" for line in details(one)]
    fair = [arm for arm in claim.arms if arm.fair]
    stories = any(arm.lens or (arm.fair and arm.fair.kind != "random") for arm in fair)
    trained = any(arm.models.own and arm.models.trained for arm in claim.arms)
    command = claim.command + " --models RUNS" * trained + " --corpus STORIES" * stories
    return "\n\n".join([*map(_escaped, about), "\n".join(lines), f"`{command}`"]) + "\n"


def description(claim: Claim) -> list[str]:
    """What a claim says and asks, and how it is judged, in lines for a terminal."""
    lines = [
        f"claim {claim.number} ({claim.group}): {claim.claim}",
        f"  source: {claim.source}",
        f"  expected: {claim.expected}",
    ]
    for arm in claim.arms:
        models = arm.models
        settings = " ".join(f"{name}={value}" for name, value in models.config.items())
        state = ", trained" if models.trained else ", untrained"
        less = {n: value for n, value in models.cpu.items() if value != models.config.get(n)}
        small = "; on a CPU" + "".join(f" {n}={v}" for n, v in less.items()) if less else ""
        about = f"{settings}{state}{small}" if models.own else f"{models.needs}, {models.weights}"
        site = f"lens {arm.lens}" if arm.lens else f"layer {arm.layer} {arm.part} {arm.slice}"
        without = f" without {' '.join(arm.without)}" if arm.without else ""
        lines.append(f"  {arm.name or 'asked'}: {about}; {site}{without}")
        asked = {name: arm.protocol(name) for name in PROTOCOLS}
        lines += [f"    {name}: {protocol}" for name, protocol in asked.items() if protocol]
    lines += [f"  judged by: {criterion}" for criterion in claim.judge]
    lines += [f"  replicated only if: {criterion}" for criterion in claim.control]
    lines += [f"  note: {claim.note}"] if claim.note else []
    lines += [f"  {CHANGED}: {claim.changed}"] if claim.changed else []
    return [*lines, f"  {claim.command}"]


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


def tally_of(judgements: list[Judgement], column: str) -> str:
    """How many claims have which answer in a column: `3 yes, 1 no`."""
    counts = _counts(judgements, column)
    return ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer])


def details(one: Judgement) -> list[str]:
    """A line for every column, criterion and control, then for all methods of every figure."""
    lines = [f"asked of a stand-in: {stand_ins()[one.stand_in].title}"] if one.stand_in else []
    for (column, cell), text in zip(one.cells.items(), _cells(one), strict=True):
        lines += [f"{column}: {text}"] if cell.outcomes else []
        lines += (
            [f"{column}: {INVALID} by its control: {_said(cell.failed)}"] if cell.failed else []
        )
        lines += [f"{column}: {_said(o)} ({_about(o.left.record)})" for o in cell.outcomes]
    asked = dict.fromkeys((t.arm, t.figure) for c in one.claim.judge for t in c.terms)
    for protocol in PROTOCOLS:
        for arm, figure in asked:
            records = [
                r
                for r in one.records
                if (r["arm"], r["protocol"]) == (arm, protocol) and r.get(figure) is not None
            ]
            if records:
                lines += _methods(records, figure, f"{protocol}{', ' if arm else ''}{arm}")
    return lines + [line for other in one.stand_ins for line in details(other)]


def _methods(records: list[Record], figure: str, where: str) -> list[str]:
    """A figure by every method; of hidden tokens also what a constant guess would name."""
    words = f"{where}: {SHOWN.get(figure, figure)}"
    most = max(records, key=lambda r: r["models"])
    reached = "; ".join(_reached(r, figure) for r in records)
    several = [r for r in records if figure == "nonself" and r.get("others") is not None]
    if not several or most["protocol"] != FAIR:
        return [f"{words} by {reached} ({_about(most)})"]
    constant = f"always naming the commonest {Value(most['constant'], None, None, most)}"
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
    low, high = (record.get(f"{figure}_{end}") for end in ("low", "high"))
    value = Value(record[figure], low, high, record)
    return f"{name} {value}" + ("" if short is None else f" “{short}”")


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


def _counts(judgements: list[Judgement], column: str) -> Counter[str]:
    return Counter(one.cells[column].answer for one in judgements)


def _rows(judgements: list[Judgement], beside: str) -> str:
    lines = []
    for one in judgements:
        number, changed = one.claim.number, " †" if one.changed else ""
        anchor = "" if one.stand_in else f'<a id="claim-{number}"></a>'
        cells = (_escaped(text) for text in _cells(one, "**"))
        place = f"{anchor}[{number}]({beside}/{number}.md)"
        lines.append([place, f"{_escaped(one.claim.claim)}{changed}", *cells])
    return tables.markdown(tables.Table(["#", "claim", *COLUMNS], lines))


def _listed(head: str, lines: list[str]) -> str:
    """A part of the page; nothing without lines."""
    return "\n".join([head, *lines]) if lines else ""


def _stood_in(judgements: list[Judgement], beside: str) -> str:
    """What stand-ins answered: a line for each claim that one was asked."""
    several = [other for one in judgements for other in one.stand_ins]
    asked = [stand_ins()[name] for name in dict.fromkeys(one.stand_in for one in several)]
    about = [f"- **{one.title}**: {one.about}. Not asked of it: {one.left}." for one in asked]
    return _listed(STAND_INS, [*about, "", _rows(several, beside)] if several else [])


def _unasked(judgements: list[Judgement]) -> str:
    """The claims without an answer, by the models that they need."""
    numbers = defaultdict(list)
    for one in judgements:
        if not one.asked:
            models = [arm.models for arm in one.claim.arms if not arm.models.own]
            largest = max(models, key=lambda m: m.parameters, default=None)
            numbers[largest.needs if largest else "models of our own"].append(one.claim.number)
    return _listed(
        UNASKED,
        [f"- {model}: " + ", ".join(f'<a id="claim-{n}"></a>{n}' for n in several)
         for model, several in numbers.items()],
    )  # fmt: skip


def _sources(judgements: list[Judgement]) -> str:
    """The documents that the claims are from, each with its claims."""
    numbers = defaultdict(list)
    for one in judgements:
        numbers[one.claim.source.key].append(one.claim.number)
    lines = [SOURCES]
    for key, source in bibliography().items():
        word = "Claims" if numbers[key][1:] else "Claim"
        asked = f" {word} {_ranges(numbers[key])}." if numbers[key] else ""
        lines.append(
            f"- {source.author}, “[{source.title}]({source.url})”, {source.year}"
            f" ({source.note}).{asked}"
        )
    return "\n".join(lines)


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers in words, neighbours joined: `1-24, 67`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if p[1:] else f"{p[0]}" for p in parts)
