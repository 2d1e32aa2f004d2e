"""What was measured of a claim: a cell of the table, short, and a list below it, whole."""

from __future__ import annotations

import re
from collections import defaultdict

from eval.claims.entries import FAIR, PROTOCOLS, REPORTED, Claim, Term
from eval.claims.evidence import Record
from eval.claims.judge import WEIGHTS, Judgement, Outcome, Value, look_up
from eval.claims.sources import needs

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
SIGNS = {"above": "≥", "below": "<", "more": ">", "less": "<"}
LETTERS = 120  # of all criteria in a cell; of more, one is shown
WIDTHS = (20, 80)  # of a text that was found: in a cell, in the list


def cell(one: Judgement, protocol: str) -> str:
    """What was measured under a protocol, whether it is as claimed, and of which models."""
    outcomes = one.outcomes[protocol]
    if not outcomes:
        return _lacking(one.claim, protocol)
    shown, parts = outcomes, [said(outcome, brief=True) for outcome in outcomes]
    if sum(map(len, parts)) > LETTERS and outcomes[1:]:
        shown = [next((o for o in outcomes if not o.holds), outcomes[0])]
        held = sum(outcome.holds for outcome in outcomes)
        parts = [f"{held} of {len(outcomes)} as claimed", said(shown[0], brief=True)]
    record = shown[0].left.record
    if not shown[1:]:
        found = [quoted(record["found"], WIDTHS[0])] if "found" in record else []
        parts += found or ([] if outcomes[1:] else _gradients(one, shown[0]))
    if protocol == REPORTED and any(_astray(outcome.left.record) for outcome in shown):
        parts.append("descent did not arrive")
    return (
        f"{'; '.join(parts)} ({_sizes(one, shown)}; {counted(record['prompts'], record['models'])})"
    )


def _astray(record: Record) -> bool:
    """Whether a descent met its own test of having arrived in no case."""
    return record.get("method") == "descent" and record.get("criterion") == 0


def _sizes(one: Judgement, shown: list[Outcome]) -> str:
    """Which models were asked, and for which, where a claim is about wider or deeper ones."""
    sizes = sorted({size for outcome in shown for size in outcome.left.record["sizes"]})
    names = {outcome.criterion.left.arm for outcome in shown}
    asked = [arm.models.config for arm in one.claim.arms if arm.name in names and arm.models.own]
    wanted = {f"d{c['d_model']} n{c['n_layers']}" for c in asked if {"d_model", "n_layers"} <= {*c}}
    other = sorted(size for size in wanted if not any(f" {size} " in own for own in sizes))
    words = f"{len(sizes)} kinds of model" if sizes[1:] else ", ".join(sizes)
    return f"{words}, for {', '.join(other)}" if other else words


def said(outcome: Outcome, brief: bool = False) -> str:
    """An outcome in words: `✓ hidden tokens 12.0 % (8.1 to 17.2), < 50 %`.

    Briefly, where a lens's figure was taken is said without the names of its axes.
    """

    def place(name: str, value: object) -> str:
        return str(value) if brief else f"{name} {value}"

    left, right = outcome.criterion.left, outcome.criterion.right
    name = SHOWN.get(left.figure, left.figure)
    arm = f"{left.arm}: " if left.arm else ""
    where = "".join(f", {place(k, v)}" for k, v in left.where.items())
    pool = f" ({left.pool})" if left.pool != "mean" and "lens" in outcome.left.record else ""
    if isinstance(outcome.right, Value):
        assert isinstance(right, Term)
        words = [right.arm] if right.arm != left.arm else []
        words += [place(k, v) for k, v in right.where.items() if left.where.get(k) != v]
        words += [right.figure] if right.figure != left.figure else []
        words += [f"by {right.by}"] if right.by != left.by else []
        words += [right.pool] if right.pool != left.pool else []
        other = f"{number(outcome.right)} ({', '.join(words)})"
    else:
        other = bound(left.figure, outcome.right)
    mark, negated = ("✓", "") if outcome.holds else ("✗", "not ")
    sign = SIGNS[outcome.criterion.operation]
    return f"{mark} {arm}{name}{where}{pool} {number(outcome.left)}, {negated}{sign} {other}"


def details(one: Judgement) -> list[str]:
    """A line for every arm, protocol and figure that is judged: all methods and controls."""
    lines = [
        f"{protocol}: {said(outcome)} ({_about(outcome.left.record)})"
        for protocol in PROTOCOLS
        for outcome in one.outcomes[protocol]
        if "lens" in outcome.left.record
    ]
    asked = dict.fromkeys((t.arm, t.figure) for c in one.claim.judge for t in c.terms)
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for protocol in PROTOCOLS:
        for arm, figure in asked:
            for r in one.records:
                at = (r["arm"], r["protocol"]) == (arm, protocol)
                if at and "method" in r and r.get(figure) is not None:
                    groups[protocol, arm, figure].append(r)
    for (protocol, arm, figure), own in groups.items():
        words = f"{protocol}{', ' if arm else ''}{arm}: {SHOWN.get(figure, figure)}"
        most = max(own, key=lambda r: r["models"])
        reached = "; ".join(_reached(r, figure) for r in own)
        several = [r for r in own if figure == "nonself" and r.get("others") is not None]
        if several and protocol == FAIR:
            reached += f"; always naming the commonest {share(most['constant'], None, None)}"
        lines.append(f"{words} by {reached} ({_about(most)})")
        if several and protocol == FAIR:
            others = "; ".join(_reached(r, "others") for r in several)
            lines.append(f"{words} other than the commonest by {others}")
    return lines


def _about(record: Record) -> str:
    return f"{', '.join(record['sizes'])}; {counted(record['prompts'], record['models'])}"


def _reached(record: Record, figure: str) -> str:
    """A method's figure; a control's, of the first model alone, is named so."""
    fair = record["protocol"] == FAIR
    kinds = ["padded"] if record["padded"] and fair else []
    kinds += [record["control"]] if record["control"] else []
    name = record["method"] + (f" ({', '.join(kinds)})" if kinds else "")
    found = f" {quoted(record['found'], WIDTHS[1])}" if "found" in record else ""
    limits = (record.get(f"{figure}_{end}") for end in ("low", "high"))
    return f"{name} {share(record[figure], *limits)}{found}"


def _gradients(one: Judgement, outcome: Outcome) -> list[str]:
    """What gradients reached, where the figure is that of a search."""
    term = outcome.criterion.left
    if term.by != "best" or outcome.left.record.get("family") != "search":
        return []
    own = look_up(one, Term(term.figure, term.arm, "gradient"))
    return [f"by gradients {number(own)}"] if own else []


def _lacking(claim: Claim, protocol: str) -> str:
    asked = [arm for arm in claim.arms if arm.protocol(protocol)]
    foreign = [arm.models for arm in asked if not arm.models.own]
    if not foreign:
        return "not run" if asked else "–"
    if protocol == FAIR and any(not arm.models.own for arm in claim.arms if arm.reported):
        return WEIGHTS
    first, *others = sorted({m.hub: m for m in foreign}.values(), key=lambda m: -m.parameters)
    more = f"; and {len(others)} smaller" if others else ""
    return f"{WEIGHTS}: {needs(first)}{more}"


def share(value: float, low: float | None, high: float | None) -> str:
    """A share in per cent, with its interval: `12.0 % (8.1 to 17.2)`."""
    interval = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * value:.1f} %{interval}"


def number(value: Value) -> str:
    """A figure with its interval where it has one: a share in per cent, a lens's as it is."""
    if "lens" not in value.record:
        return share(*value[:3])
    if value.low is None or value.high is None:
        return f"{value.value:.3g}"
    return f"{value.value:.3g} ({value.low:.3g} to {value.high:.3g})"


def bound(figure: str, value: float) -> str:
    """A criterion's number."""
    return f"{100 * value:g} %" if figure in SHOWN else f"{value:g}"


def quoted(text: str, width: int) -> str:
    """A text that was found, cut, in quotes."""
    return f"“{cut(text, width)}”"


def cut(text: str, width: int) -> str:
    """A text of at most so many letters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def escaped(text: str) -> str:
    """For a page: nothing in it ends a cell or is a tag; what stands in quotes is no Markdown."""
    plain = text.replace("\n", "↵").replace("<", "&lt;")
    return QUOTED.sub(lambda match: match[0].translate(MARKS), plain).replace("|", "\\|")


def counted(prompts: int, models: int) -> str:
    """`50 prompts, 3 models`."""
    return ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}"
        for count, name in ((prompts, "prompt"), (models, "model"))
    )
