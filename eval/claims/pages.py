"""Verdicts as a table: in a terminal, and as the page of results around the text and the curves."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich import box
from rich.console import Console
from rich.table import Table

from eval.claims import BENCH
from eval.claims.cells import cell, cut, details, escaped
from eval.claims.entries import FAIR, REPORTED, Claim
from eval.claims.findings import tally
from eval.claims.judge import ONLY_REPORTED, VERDICTS, WEIGHTS, Judgement
from eval.claims.registry import GROUPS, bibliography

HEAD = """\
# The claims, and what was found

*Made by `python -m eval claims table --markdown` from the records beside it; not written by hand.*
"""
READING = """\
## The claims

Each claim is asked twice. **Reported**: its source's own protocol, one prompt, flaws included.
**Fair**: many prompts, several models, causal, start and step at the model's own scale, exact
search, and controls beside. A figure is the best that any method asked for reached, in brackets
its 95 % interval; one prompt of one model has the widest. ✓ and ✗ say whether it is as claimed.
Figures with no interval are of one model. Of several measures that do not fit into a row one is
shown, one that is not as claimed if there is such; all are [below](#found). *Descent did not
arrive*: by its own test it had not met the outputs, so that its answer says little of the model.
*For d1024 n8*: so wide and deep are the source's models; those before it were asked instead.

- **holds**: asked fairly, what is claimed is what is found. *By exact search* stands where
  gradients alone would not have shown it; *within the interval* where more prompts could turn the
  verdict.
- **holds only as reported**: the source's protocol shows it again, a fair one does not. What stands
  after the colon is the first control that parts the two.
- **does not hold**: neither shows it; or it was only asked fairly, and is not so.
- **needs weights**: of pretrained models that were not here. The row says what to download and how
  much memory it takes; its command does both.
- **not run**: asked of models of our own, which nobody has yet.

`python -m eval claims show N` says all that claim N asks. `RUNS` stands for a directory with models
trained by this project, `STORIES` for one with TinyStories' texts; without it prompts are of simple
made-up stories. With `--download`, what is said to need weights is asked as well.
"""
CURVES = """\
<a id="curves"></a>

## The curves

What is found against one thing at a time, the others as in the first figure; each with its command.
"""
BELOW = """\
<a id="found"></a>

## What each method found

Of the claims that were run, every method and every control, so that a row above can be checked.
*Padded*: pads after each prompt. *Identity*: a network that does nothing. *Shuffled*: the target of
another prompt. The last two are asked of one model.
"""
CHANGED = "criterion changed after the data were seen"
LETTERS = 155  # of a claim and what its source reports, in a row
SOURCES = """\
<a id="sources"></a>

## Sources

What the claims are from, and the paper whose code has the published protocol.
"""
WARNING = """\
In these a criterion was changed after the data were seen, so that their verdicts are no tests:\
"""
TITLES = {"lenses": "lenses", "large": "large models", "random-init": "random initialisations",
          "gpt2": "GPT-2", "mixers": "mixers"}  # fmt: skip


def markdown(
    judgements: list[Judgement], notes: list[str], findings: str = "", curves: str = ""
) -> str:
    """The page: the text and the curves, where there are any, and all claims."""
    ordered = sorted(judgements, key=lambda one: one.claim.number)
    parts = [
        HEAD,
        "\n".join(f"> {note}" for note in notes),
        findings,
        f"{CURVES}\n{curves}" if curves else "",
        READING,
        _groups(ordered),
        _explained(ordered),
        _changed(ordered),
        _rows(ordered),
        _below(ordered),
        _sources(ordered),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def terminal(judgements: list[Judgement], width: int = 120) -> str:
    """The table as plain text."""
    table = Table("#", "claim", "reported", "fair", "verdict", box=box.SIMPLE)
    for one in judgements:
        cells = (cell(one, REPORTED), cell(one, FAIR), _verdict(one))
        table.add_row(str(one.claim.number), one.claim.claim, *cells)
    console = Console(width=width, no_color=True, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return f"{capture.get().rstrip()}\n\n{tally(judgements)}."


def _groups(judgements: list[Judgement]) -> str:
    """A line for each group of claims: how many have which verdict."""
    counts = Counter((one.claim.group, one.verdict) for one in judgements)
    lines = [f"Bench version {BENCH}. {tally(judgements)}.", ""]
    lines += [f"| claims about | {' | '.join(VERDICTS)} |", "|---|" + "---:|" * len(VERDICTS)]
    for group in GROUPS:
        own = [str(counts[group, verdict] or "–") for verdict in VERDICTS]
        lines.append(f"| {TITLES[group]} | {' | '.join(own)} |")
    return "\n".join(lines)


def _explained(judgements: list[Judgement]) -> str:
    """What explains those that hold only as reported, and which they are."""
    reasons = defaultdict(list)
    for one in judgements:
        if one.verdict == ONLY_REPORTED:
            reasons[one.why].append(f"[{one.claim.number}](#claim-{one.claim.number})")
    if not reasons:
        return ""
    lines = [f"- {why}: {', '.join(links)}" for why, links in reasons.items()]
    return "\n".join(["Why some hold only as reported:", "", *lines])


def _rows(judgements: list[Judgement]) -> str:
    lines = ["| # | claim | reported | fair | verdict | command |", "|---:|---|---|---|---|---|"]
    for one in judgements:
        claim = one.claim
        cells = (
            f"{claim.claim}. *{cut(claim.expected, LETTERS - len(claim.claim))}*",
            cell(one, REPORTED),
            cell(one, FAIR),
            _verdict(one, "**"),
            f"`{command(claim, one.verdict)}`",
        )
        number = f'<a id="claim-{claim.number}"></a>{claim.number}'
        lines.append(f"| {number} | {' | '.join(map(escaped, cells))} |")
    return "\n".join(lines)


def command(claim: Claim, verdict: str = "") -> str:
    """What runs a claim, with the flags for what it cannot make itself."""
    fair = [arm for arm in claim.arms if arm.fair]
    stories = any(arm.lens or (arm.fair and arm.fair.kind != "random") for arm in fair)
    trained = any(arm.models.own and arm.models.trained for arm in claim.arms)
    return (
        claim.command
        + (" --models RUNS" if trained else "")
        + (" --corpus STORIES" if stories else "")
        + (" --download" if verdict == WEIGHTS else "")
    )


def _below(judgements: list[Judgement]) -> str:
    parts = [BELOW]
    for one in judgements:
        if lines := details(one):
            claim = one.claim
            link = f"[{claim.number}](#claim-{claim.number})"
            parts.append(f"{link} {escaped(f'{claim.claim}. Expected: {claim.expected}')}.\n")
            parts += [f"- {escaped(line)}" for line in lines]
            parts.append("")
    return "\n".join(parts) if parts[1:] else ""


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


def _changed(judgements: list[Judgement]) -> str:
    """The claims whose criteria are not those that were set before the data were seen."""
    lines = [
        f"- [{one.claim.number}](#claim-{one.claim.number}): {one.claim.changed}"
        for one in judgements
        if one.claim.changed
    ]
    return "\n".join([WARNING, "", *lines]) if lines else ""


def ranges(numbers: list[int]) -> str:
    """Sorted numbers in words, neighbours joined: `1-24, 67`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if p[1:] else f"{p[0]}" for p in parts)


def _verdict(one: Judgement, mark: str = "") -> str:
    why = f": {one.why}" if one.why else ""
    changed = f" ({CHANGED})" if one.claim.changed else ""
    return f"{mark}{one.verdict}{mark}{why}{changed}"
