"""Columns as a table: in a terminal, as a page of one line a claim, and a page for each claim."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich import box
from rich.console import Console
from rich.table import Table

from eval.claims import BENCH
from eval.claims.cells import cell, details, escaped
from eval.claims.columns import ANSWERS, COLUMNS, FOUND, READ, Judgement
from eval.claims.entries import Claim
from eval.claims.registry import bibliography, stand_ins
from eval.claims.sources import needs

HEAD = """\
# The claims, in three columns

*Made by `python -m eval claims table --markdown` from the records beside it; not written by hand.*
"""
READING = f"""\
- **replicated**: asked as its source asks, on the source's prompts, mostly one. *Invalid* where the
  positive control fails: the protocol does not do what its source says it does where nothing is in
  question, so that its answer says nothing.
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
CURVES = """\
# The curves

What is found against one thing at a time, the others as in the first figure; each with its command.
"""


def markdown(judgements: list[Judgement], notes: list[str], beside: str = "claims") -> str:
    """The page: a line for each claim that was asked, and what the others need.

    Args:
        judgements: of all claims.
        notes: what was left out.
        beside: the folder of the claims' own pages, as the page links to it.
    """
    ordered = sorted(judgements, key=lambda one: one.claim.number)
    parts = [
        HEAD,
        "\n".join(f"> {note}" for note in notes),
        READING,
        _tally(ordered),
        _rows(ordered, beside),
        _unasked(ordered),
        _stood_in(ordered, beside),
        _changed(ordered),
        _again(ordered),
        _sources(ordered),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def page(one: Judgement) -> str:
    """A claim's own page: what it says, by what it is judged, and all that was measured."""
    claim = one.claim
    about = [f"# Claim {claim.number}", f"{claim.claim}. Expected: {claim.expected}."]
    about += [f"Source: {claim.source}."]
    about += [f"Note: {claim.note}."] if claim.note else []
    about += [f"**{CHANGED.capitalize()}**: {one.changed}."] if one.changed else []
    about += [f"**Asked again** since {claim.changed}: {claim.again}."] if claim.again else []
    lines = [f"- {escaped(line)}" for line in details(one)]
    return "\n\n".join([*map(escaped, about), "\n".join(lines), f"`{command(claim)}`"]) + "\n"


def terminal(judgements: list[Judgement], width: int = 120) -> str:
    """The table as plain text."""
    table = Table("#", "claim", *COLUMNS, box=box.SIMPLE)
    for one in judgements:
        cells = (cell(one, column) for column in COLUMNS)
        table.add_row(str(one.claim.number), one.claim.claim, *cells)
        for other in one.stand_ins:
            table.add_row("", "", *(cell(other, column) for column in COLUMNS))
    console = Console(width=width, no_color=True, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    counts = (f"{column}: {tally(judgements, column)}" for column in COLUMNS)
    return "\n".join([capture.get().rstrip(), "", *counts])


def tally(judgements: list[Judgement], column: str) -> str:
    """How many claims have which answer in a column: `3 yes, 1 no`."""
    counts = Counter(one.cells[column].answer for one in judgements)
    return ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer])


def command(claim: Claim) -> str:
    """What runs a claim, with the flags for what it cannot make itself."""
    fair = [arm for arm in claim.arms if arm.fair]
    stories = any(arm.lens or (arm.fair and arm.fair.kind != "random") for arm in fair)
    trained = any(arm.models.own and arm.models.trained for arm in claim.arms)
    return claim.command + (" --models RUNS" if trained else "") + (" --corpus STORIES" * stories)


def _tally(judgements: list[Judgement]) -> str:
    lines = [f"Bench version {BENCH}.", "", f"| | {' | '.join(ANSWERS)} |"]
    lines.append("|---|" + "---:|" * len(ANSWERS))
    for column in COLUMNS:
        counts = Counter(one.cells[column].answer for one in judgements)
        lines.append(f"| {column} | {' | '.join(str(counts[a] or '–') for a in ANSWERS)} |")
    return "\n".join(lines)


def _rows(judgements: list[Judgement], beside: str) -> str:
    lines = [f"| # | claim | {' | '.join(COLUMNS)} |", "|---:|---|---|---|---|"]
    for one in judgements:
        if one.asked:
            claim, changed = one.claim, " †" if one.changed else ""
            cells = (escaped(cell(one, column, "**")) for column in COLUMNS)
            anchor = "" if one.stand_in else f'<a id="claim-{claim.number}"></a>'
            number = f"{anchor}[{claim.number}]({beside}/{claim.number}.md)"
            lines.append(f"| {number} | {escaped(claim.claim)}{changed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _stood_in(judgements: list[Judgement], beside: str) -> str:
    """What stand-ins answered: a line for each claim that one was asked."""
    several = [other for one in judgements for other in one.stand_ins]
    if not several:
        return ""
    asked = [stand_ins()[name] for name in dict.fromkeys(one.stand_in for one in several)]
    about = [f"- **{one.title}**: {one.about}. Not asked of it: {one.left}." for one in asked]
    return "\n".join([STAND_INS, *about, "", _rows(several, beside)])


def _unasked(judgements: list[Judgement]) -> str:
    """The claims without an answer, by the models that they need."""
    numbers = defaultdict(list)
    for one in judgements:
        if not one.asked:
            models = [arm.models for arm in one.claim.arms if not arm.models.own]
            largest = max(models, key=lambda m: m.parameters, default=None)
            numbers[needs(largest) if largest else "models of our own"].append(one.claim.number)
    if not numbers:
        return ""
    lines = [
        f"- {model}: " + ", ".join(f'<a id="claim-{n}"></a>{n}' for n in several)
        for model, several in numbers.items()
    ]
    return "\n".join([UNASKED, *lines])


def _changed(judgements: list[Judgement]) -> str:
    """The claims whose criteria are not those that were set before the data were seen."""
    lines = [
        f"- † [{one.claim.number}](#claim-{one.claim.number}): {one.changed}"
        for one in judgements
        if one.changed
    ]
    return "\n".join([WARNING, *lines]) if lines else ""


def _again(judgements: list[Judgement]) -> str:
    """The claims that were asked anew since their criteria were changed."""
    lines = [
        f"- [{claim.number}](#claim-{claim.number}): {claim.changed}. Asked again: {claim.again}"
        for claim in (one.claim for one in judgements if one.asked)
        if claim.again
    ]
    return "\n".join([AGAIN, *lines]) if lines else ""


def _sources(judgements: list[Judgement]) -> str:
    """The documents that the claims are from, each with its claims."""
    numbers = defaultdict(list)
    for one in judgements:
        numbers[one.claim.source.key].append(one.claim.number)
    lines = [SOURCES]
    for key, source in bibliography().items():
        word = "Claims" if numbers[key][1:] else "Claim"
        asked = f" {word} {ranges(numbers[key])}." if numbers[key] else ""
        lines.append(
            f"- {source.author}, “[{source.title}]({source.url})”, {source.year}"
            f" ({source.note}).{asked}"
        )
    return "\n".join(lines)


def ranges(numbers: list[int]) -> str:
    """Sorted numbers in words, neighbours joined: `1-24, 67`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if p[1:] else f"{p[0]}" for p in parts)
