"""What was measured of a claim: a cell of the table, short, and the list of all, whole."""

from __future__ import annotations

import re
from collections import defaultdict

from eval.claims.columns import (
    COLUMNS,
    ENOUGH,
    INVALID,
    NOT_ASKED,
    OPEN,
    YES,
    Cell,
    Judgement,
    Outcome,
    Value,
)
from eval.claims.entries import FAIR, PROTOCOLS, Term
from eval.claims.evidence import Record
from eval.claims.registry import stand_ins

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
TICKS = {YES: "✓", OPEN: "?"}
SIZE = re.compile(r"^.*\b(d\d+ n\d+)\b.*$")
WIDTH = 80  # of a text that was found


def cell(one: Judgement, column: str, mark: str = "") -> str:
    """A column's answer, of how many prompts and of which models: `yes (50; d128 n4)`."""
    entry = one.cells[column]
    if entry.answer == NOT_ASKED:
        return entry.answer
    few = ", too few" if entry.prompts < ENOUGH else ""
    return f"{mark}{entry.answer}{mark} (n {entry.prompts}{few}; {_sizes(one, entry)})"


def _sizes(one: Judgement, entry: Cell) -> str:
    """Which models were asked, and for which, where a claim is about wider or deeper ones."""
    if one.stand_in:
        return f"stand-in: {stand_ins()[one.stand_in].title}"
    shapes = {SIZE.sub(r"\1", size) for o in entry.outcomes for size in o.left.record["sizes"]}
    names = {outcome.criterion.left.arm for outcome in entry.outcomes}
    asked = [arm.models.config for arm in one.claim.arms if arm.name in names and arm.models.own]
    wanted = {f"d{c['d_model']} n{c['n_layers']}" for c in asked if {"d_model", "n_layers"} <= {*c}}
    other = sorted(wanted - shapes)
    return ", ".join(sorted(shapes)) + (f" for {', '.join(other)}" if other else "")


def said(outcome: Outcome) -> str:
    """An outcome in words: `✓ hidden tokens 12.0 % (8.1 to 17.2), < 50 %`."""
    left, right = outcome.criterion.left, outcome.criterion.right
    name = SHOWN.get(left.figure, left.figure)
    arm = f"{left.arm}: " if left.arm else ""
    where = "".join(f", {k} {v}" for k, v in left.where.items())
    pool = f" ({left.pool})" if left.pool != "mean" and "lens" in outcome.left.record else ""
    if isinstance(outcome.right, Value):
        assert isinstance(right, Term)
        words = [right.arm] if right.arm != left.arm else []
        words += [f"{k} {v}" for k, v in right.where.items() if left.where.get(k) != v]
        words += [right.figure] if right.figure != left.figure else []
        words += [f"by {right.by}"] if right.by != left.by else []
        words += [right.pool] if right.pool != left.pool else []
        other = f"{number(outcome.right)} ({', '.join(words)})"
    else:
        other = bound(left.figure, outcome.right)
    mark = TICKS.get(outcome.answer, "✗")
    negated = "" if outcome.answer in TICKS else "not "
    sign = SIGNS[outcome.criterion.operation]
    return f"{mark} {arm}{name}{where}{pool} {number(outcome.left)}, {negated}{sign} {other}"


def details(one: Judgement) -> list[str]:
    """A line for every column, criterion and control, then for all methods of every figure."""
    lines = [f"asked of a stand-in: {stand_ins()[one.stand_in].title}"] if one.stand_in else []
    for column in COLUMNS:
        here = one.cells[column]
        lines += [f"{column}: {cell(one, column)}"] if here.outcomes else []
        lines += [f"{column}: {INVALID} by its control: {said(here.failed)}"] if here.failed else []
        lines += [f"{column}: {said(o)} ({_about(o.left.record)})" for o in here.outcomes]
    asked = dict.fromkeys((t.arm, t.figure) for c in one.claim.judge for t in c.terms)
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for protocol in PROTOCOLS:
        for arm, figure in asked:
            for r in one.records:
                at = (r["arm"], r["protocol"]) == (arm, protocol)
                if at and "method" in r and r.get(figure) is not None:
                    groups[protocol, arm, figure].append(r)
    for (protocol, arm, figure), records in groups.items():
        words = f"{protocol}{', ' if arm else ''}{arm}: {SHOWN.get(figure, figure)}"
        most = max(records, key=lambda r: r["models"])
        reached = "; ".join(_reached(r, figure) for r in records)
        several = [r for r in records if figure == "nonself" and r.get("others") is not None]
        if several and protocol == FAIR:
            reached += f"; always naming the commonest {share(most['constant'], None, None)}"
        lines.append(f"{words} by {reached} ({_about(most)})")
        if several and protocol == FAIR:
            others = "; ".join(_reached(r, "others") for r in several)
            lines.append(f"{words} other than the commonest by {others}")
    return lines + [line for other in one.stand_ins for line in details(other)]


def _about(record: Record) -> str:
    return f"{', '.join(record['sizes'])}; {counted(record['prompts'], record['models'])}"


def _reached(record: Record, figure: str) -> str:
    """A method's figure; a control's, of the first model alone, is named so."""
    fair = record["protocol"] == FAIR
    kinds = ["padded"] if record["padded"] and fair else []
    kinds += [record["control"]] if record["control"] else []
    name = record["method"] + (f" ({', '.join(kinds)})" if kinds else "")
    quote = f" {quoted(record['found'])}" if "found" in record else ""
    limits = (record.get(f"{figure}_{end}") for end in ("low", "high"))
    return f"{name} {share(record[figure], *limits)}{quote}"


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


def quoted(text: str) -> str:
    """A text that was found, cut, in quotes."""
    return f"“{text if len(text) <= WIDTH else f'{text[: WIDTH - 1]}…'}”"


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
