"""Verdicts: what is left of a claim under its own protocol and under fair ones, and why.

A claim's criteria compare figures; a figure is looked up in the records of one arm and protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from eval.claims.entries import FAIR, POOLS, PROTOCOLS, REPORTED, Arm, Claim, Criterion, Term
from eval.claims.evidence import Record

HOLDS = "holds"
ONLY_REPORTED = "holds only as reported"
FAILS = "does not hold"
WEIGHTS = "needs weights"
NOT_RUN = "not run"
VERDICTS = (HOLDS, ONLY_REPORTED, FAILS, WEIGHTS, NOT_RUN)
IDENTITY = "so does a network that does nothing: the protocol, not the model"
OF_HIDDEN = (
    "nonself", "nonself_top5", "others", "set_recall", "hidden_anywhere", "permuted", "exact"
)  # fmt: skip
"""Figures of hidden tokens, of which a network that does nothing tells nothing at all."""
SIZE = re.compile(r"\bd\d+ n\d+\b")
Which = Callable[[Record], bool]
"""Says which records of methods are looked at, in place of those that answer the question."""


class Value(NamedTuple):
    """A figure with its interval, where it has one, and whose it is."""

    value: float
    low: float | None
    high: float | None
    record: Record


@dataclass(frozen=True)
class Outcome:
    """What became of one criterion under one protocol."""

    criterion: Criterion
    left: Value
    right: Value | float
    holds: bool

    @property
    def close(self) -> bool:
        """Whether the figure's interval holds its bound too, so that more prompts could turn it.

        Not of a share of all or of none: nothing varied there.
        """
        bound = self.right.value if isinstance(self.right, Value) else self.right
        low, high = self.left.low, self.left.high
        varied = "lens" in self.left.record or 0 < self.left.value < 1
        return varied and low is not None and high is not None and low < bound < high


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, with its outcomes by protocol and what explains a parting of the two."""

    claim: Claim
    verdict: str
    outcomes: dict[str, list[Outcome]]
    why: str
    records: list[Record]


def judge(claim: Claim, records: list[Record]) -> Judgement:
    """The verdict on one claim.

    A claim holds under a protocol when all of its criteria do; those of arms that the protocol does
    not ask are left out. A figure is the best that any method asked for reached.
    """
    records = [record for record in records if record["claim"] == claim.number]
    found = {name: outcomes(claim, records, name) for name in PROTOCOLS}
    wanted = {name: asked(claim, name) for name in PROTOCOLS}
    whole = {name: len(found[name]) == len(wanted[name]) > 0 for name in PROTOCOLS}
    held = {name: all(outcome.holds for outcome in found[name]) for name in PROTOCOLS}
    why = ""
    if not whole[FAIR] or (wanted[REPORTED] and not whole[REPORTED] and not _foreign(claim)):
        foreign = all(not arm.models.own for arm in claim.arms if arm.fair)
        verdict = WEIGHTS if foreign and not records else NOT_RUN
    elif held[FAIR]:
        verdict = HOLDS
        why = _why_holds(claim, records, found[FAIR], held[REPORTED] or not whole[REPORTED])
    elif whole[REPORTED] and held[REPORTED]:
        verdict, why = ONLY_REPORTED, _why_only_reported(claim, records)
    else:
        verdict, why = FAILS, _why_fails(claim, records, found[FAIR])
    return Judgement(claim, verdict, found, why, records)


def look_up(
    one: Judgement, term: Term, protocol: str = FAIR, padded: bool = False, control: str = ""
) -> Value | None:
    """A figure as a criterion would see it, or as it is padded or of a control.

    None where no record bears it.
    """
    records = [record for record in one.records if record["protocol"] == protocol]

    def which(record: Record) -> bool:
        about = record["padded"], record["control"]
        return about == (padded, control or None) and admits(term, record)

    return value_of(term, records, which if padded or control else None)


def asked(claim: Claim, protocol: str) -> list[Criterion]:
    """The criteria whose arms a protocol asks."""
    names = {arm.name for arm in claim.arms if arm.protocol(protocol)}
    return [c for c in claim.judge if {term.arm for term in c.terms} <= names]


def outcomes(
    claim: Claim, records: list[Record], protocol: str, which: Which | None = None
) -> list[Outcome]:
    """Of the criteria that can be judged by a claim's records, under one protocol.

    A figure is the best that any method asked for reached, or any of `which`.
    """
    own = [r for r in records if r["protocol"] == protocol]
    found = []
    for criterion in asked(claim, protocol):
        left = value_of(criterion.left, own, which)
        right = (
            value_of(criterion.right, own, which)
            if isinstance(criterion.right, Term)
            else criterion.right
        )
        if left is not None and right is not None:
            bound = right.value if isinstance(right, Value) else right
            found.append(Outcome(criterion, left, right, criterion.holds(left.value, bound)))
    return found


def value_of(term: Term, records: list[Record], which: Which | None) -> Value | None:
    """A term's figure in the records of one protocol; None where no record bears it."""
    own = [record for record in records if record["arm"] == term.arm]
    lens = [r for r in own if "lens" in r and r["figure"] == term.figure]
    if lens:
        return None if which else _pooled(term, lens)
    tried = [
        r
        for r in own
        if "method" in r
        and r.get(term.figure) is not None
        and (which(r) if which else _counts(term, r))
    ]
    if not tried:
        return None
    best = max(tried, key=lambda record: record[term.figure])
    low, high = (best.get(f"{term.figure}_{end}") for end in ("low", "high"))
    return Value(best[term.figure], low, high, best)


def _counts(term: Term, record: Record) -> bool:
    """Whether a record is an answer to the question, by a method that the term admits."""
    if record["control"] or (record["protocol"] == FAIR and record["padded"]):
        return False
    return admits(term, record)


def admits(term: Term, record: Record) -> bool:
    """Whether a term is of a record's method; `best` is of any gradient and any search."""
    if term.by == "best":
        return record["family"] in ("gradient", "search")
    return term.by in (record["family"], record["method"])


def _pooled(term: Term, records: list[Record]) -> Value | None:
    own = [
        r
        for r in records
        if r["value"] is not None
        and all(r["where"].get(name) == value for name, value in term.where.items())
    ]
    if not own:
        return None
    layers = [record for record in own if isinstance(record["where"].get("layer"), int)]
    own = layers or own  # a row labelled "tokens" is no layer
    own.sort(key=lambda record: _layer(record["where"].get("layer")))
    value = POOLS[term.pool]([record["value"] for record in own])
    if term.pool == "mean":  # as if the layers erred together, which is the wide side
        ends = [[record[end] for record in own] for end in ("low", "high")]
        low, high = (None if None in several else fmean(several) for several in ends)
        return Value(value, low, high, own[0])
    (same, *_) = [record for record in own if record["value"] == value]
    return Value(value, same["low"], same["high"], same)


def _layer(label: Any) -> float:
    return float(label) if isinstance(label, (int, float)) else -1.0


def _why_holds(claim: Claim, records: list[Record], fair: list[Outcome], reported: bool) -> str:
    """What is to be said of a claim that holds fairly, and whether it does as reported."""
    words = [] if reported else ["not with the reported protocol"]
    alone = _by(claim, records, "gradient")
    if alone and not all(outcome.holds for outcome in alone):
        words.append("by exact search; gradients alone do not show it")
    if any(outcome.close for outcome in fair):
        words.append("in part within the interval")
    return "; ".join(words)


def _why_fails(claim: Claim, records: list[Record], fair: list[Outcome]) -> str:
    """What is to be said of a claim that does not hold."""
    alone = _by(claim, records, "gradient")
    if alone and all(outcome.holds for outcome in alone):
        return "gradients alone would bear it out; exact search does not"
    missed = [outcome for outcome in fair if not outcome.holds]
    if missed and all(outcome.close for outcome in missed):
        return "by no more than the interval"
    return ""


def _why_only_reported(claim: Claim, records: list[Record]) -> str:
    """The control that explains it, from the one nearest to what was reported."""
    figures = {term.figure for criterion in claim.judge for term in criterion.terms}
    if figures.isdisjoint(OF_HIDDEN):
        identity = outcomes(claim, records, FAIR, lambda r: r["control"] == "identity")
        if identity and all(outcome.holds for outcome in identity):
            return IDENTITY
    plain = _plain(claim)
    apart = _differences(claim, records)
    unpadded = [*(["without padding"] if _pads(claim) else []), *apart]
    steps = (
        (
            " ".join(["the same descent", *apart]),
            lambda r: r["method"] == "descent" and r["padded"],
        ),
        (
            " ".join(["the same descent", *unpadded]),
            lambda r: r["method"] == "descent" and not r["padded"],
        ),
        (
            "descent at the model's own scale",
            lambda r: r["family"] == "gradient" and not r["padded"],
        ),
    )
    for words, which in steps:
        tried = outcomes(plain, records, FAIR, lambda r, which=which: not r["control"] and which(r))
        if tried and not all(outcome.holds for outcome in tried):
            return f"{words}, on many prompts, does not show it"
    if (tried := _by(claim, records, "search")) and not all(o.holds for o in tried):
        return "exact search finds what descent does not"
    fair = [r for r in records if r["protocol"] == FAIR]
    prompts = max((r["prompts"] for r in fair), default=0)
    models = max((r["models"] for r in fair), default=0)
    return ", ".join([f"not on {prompts} prompts and {models} models", *apart])


def _by(claim: Claim, records: list[Record], family: str) -> list[Outcome]:
    """What one family of methods alone shows fairly, of criteria that name none."""
    return outcomes(
        _plain(claim),
        records,
        FAIR,
        lambda r: r["family"] == family and not r["control"] and not r["padded"],
    )


def _plain(claim: Claim) -> Claim:
    return replace(claim, judge=tuple(c for c in claim.judge if _any_method(c)))


def _any_method(criterion: Criterion) -> bool:
    return all(term.by == "best" for term in criterion.terms)


def _pads(claim: Claim) -> bool:
    return any(arm.reported and arm.reported.pad_to for arm in claim.arms)


def _differences(claim: Claim, records: list[Record]) -> list[str]:
    """What the fair protocol does otherwise than the reported one, padding and prompts apart."""
    reported = [arm for arm in claim.arms if arm.reported]
    fair = [arm for arm in claim.arms if arm.fair]
    words = ["with a causal mask"] if any("mask" in arm.without for arm in reported) else []
    rates = _rates(fair, FAIR)
    if rates and rates.isdisjoint(_rates(reported, REPORTED)):
        words.append(f"at rate {', '.join(f'{rate:g}' for rate in sorted(rates))}")
    sizes = _sizes(records, FAIR)
    if sizes != _sizes(records, REPORTED):
        words.append(f"at {', '.join(sorted(sizes))}")
    return words


def _rates(arms: list[Arm], protocol: str) -> set[float]:
    asked = [one for arm in arms if (one := arm.protocol(protocol))]
    return {float(s["rate"]) for one in asked if "rate" in (s := one.methods.get("descent", {}))}


def _sizes(records: list[Record], protocol: str) -> set[str]:
    own = [size for r in records if r["protocol"] == protocol for size in r["sizes"]]
    return {match[0] for size in own if (match := SIZE.search(size))}


def _foreign(claim: Claim) -> bool:
    """Whether the reported protocol is asked of pretrained models, and the fair one of ours."""
    reported = [arm for arm in claim.arms if arm.reported]
    fair = [arm for arm in claim.arms if arm.fair]
    return all(not arm.models.own for arm in reported) and all(arm.models.own for arm in fair)
