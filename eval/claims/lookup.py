"""A figure of a claim by its name, and figures in print: of tables, lists and text."""

from __future__ import annotations

import re
from dataclasses import replace

from eval.claims.entries import FAIR, Criterion, Term
from eval.claims.judge import Judgement
from eval.claims.outcomes import Value, outcomes

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


def look_up(
    one: Judgement, term: Term, protocol: str = FAIR, padded: bool = False, control: str = ""
) -> Value | None:
    """A figure as a criterion would see it, or as it is padded or of a control.

    None where no record bears it.
    """
    own = one.records
    if padded or control:
        # As if that were what was asked: a criterion leaves out padding and controls.
        own = [
            r | {"padded": False, "control": None}
            for r in own
            if "method" in r and (r["padded"], r["control"]) == (padded, control or None)
        ]
    alone = replace(one.claim, judge=(Criterion(term, "above", 0.0),))
    found = outcomes(alone, own, protocol)
    return found[0].left if found else None


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
