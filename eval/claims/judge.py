"""Verdicts: what is left of a claim under its own protocol and under fair ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from eval.claims.entries import FAIR, PROTOCOLS, REPORTED, Claim, Criterion, Term
from eval.claims.evidence import Record

HOLDS = "holds"
ONLY_REPORTED = "holds only as reported"
FAILS = "does not hold"
WEIGHTS = "needs weights"
NOT_RUN = "not run"
VERDICTS = (HOLDS, ONLY_REPORTED, FAILS, WEIGHTS, NOT_RUN)

POOLS: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "least": min,
    "most": max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
"""Of a lens's figures, in the order of their layers."""

EXPLANATIONS: tuple[tuple[str, Callable[[Record], bool]], ...] = (
    (
        "the same descent, on many prompts, does not show it",
        lambda r: r["method"] == "descent" and r["padded"],
    ),
    (
        "the same descent without padding, on many prompts, does not show it",
        lambda r: r["method"] == "descent" and not r["padded"],
    ),
    (
        "descent at the model's own scale does not show it",
        lambda r: r["family"] == "gradient" and not r["padded"],
    ),
    ("exact search finds what descent does not", lambda r: r["family"] == "search"),
)
"""Controls from the one nearest to what was reported; the first that parts ways explains it."""
IDENTITY = "so does a network that does nothing: the protocol, not the model"
OF_HIDDEN = ("nonself", "nonself_top5", "set_recall", "hidden_anywhere", "permuted", "exact")
"""Figures of hidden tokens, of which a network that does nothing tells nothing at all."""


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
    own = [record for record in records if record["claim"] == claim.number]
    outcomes = {name: _outcomes(claim, own, name) for name in PROTOCOLS}
    asked = {name: _asked(claim, name) for name in PROTOCOLS}
    whole = {name: len(outcomes[name]) == len(asked[name]) > 0 for name in PROTOCOLS}
    held = {
        name: all(outcome.holds for outcome in outcomes[name]) if whole[name] else None
        for name in PROTOCOLS
    }
    if not whole[FAIR] or (asked[REPORTED] and not whole[REPORTED] and not _foreign(claim)):
        foreign = all(not arm.models.own for arm in claim.arms if arm.fair)
        verdict = WEIGHTS if foreign and not own else NOT_RUN
        return Judgement(claim, verdict, outcomes, "", own)
    if held[FAIR]:
        why = "" if held[REPORTED] is not False else "not with the reported protocol"
        return Judgement(claim, HOLDS, outcomes, why, own)
    if held[REPORTED]:
        return Judgement(claim, ONLY_REPORTED, outcomes, _why(claim, own), own)
    return Judgement(claim, FAILS, outcomes, "", own)


def _asked(claim: Claim, protocol: str) -> list[Criterion]:
    """The criteria whose arms a protocol asks."""
    asked = {arm.name for arm in claim.arms if arm.protocol(protocol)}
    return [c for c in claim.judge if {term.arm for term in _terms(c)} <= asked]


def _foreign(claim: Claim) -> bool:
    """Whether the reported protocol is asked of pretrained models, and the fair one of ours."""
    reported = [arm for arm in claim.arms if arm.reported]
    fair = [arm for arm in claim.arms if arm.fair]
    return all(not arm.models.own for arm in reported) and all(arm.models.own for arm in fair)


def _outcomes(
    claim: Claim,
    records: list[Record],
    protocol: str,
    which: Callable[[Record], bool] | None = None,
) -> list[Outcome]:
    """The criteria that can be judged by these records, under one protocol."""
    own = [r for r in records if r["protocol"] == protocol]
    found = []
    for criterion in _asked(claim, protocol):
        left = _value(criterion.left, own, which)
        right = (
            _value(criterion.right, own, which)
            if isinstance(criterion.right, Term)
            else criterion.right
        )
        if left is not None and right is not None:
            bound = right.value if isinstance(right, Value) else right
            found.append(Outcome(criterion, left, right, criterion.holds(left.value, bound)))
    return found


def _value(
    term: Term, records: list[Record], which: Callable[[Record], bool] | None = None
) -> Value | None:
    own = [record for record in records if record["arm"] == term.arm]
    lens = [r for r in own if "lens" in r and r["figure"] == term.figure]
    if lens:
        return _pooled(term, lens)
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


def _why(claim: Claim, records: list[Record]) -> str:
    """The control that explains why a claim holds as reported and not fairly."""
    figures = {term.figure for criterion in claim.judge for term in _terms(criterion)}
    if figures.isdisjoint(OF_HIDDEN):
        identity = _outcomes(claim, records, FAIR, lambda r: r["control"] == "identity")
        if identity and all(outcome.holds for outcome in identity):
            return IDENTITY
    plain = replace(claim, judge=tuple(c for c in claim.judge if _any_method(c)))
    for words, which in EXPLANATIONS:
        tried = _outcomes(
            plain, records, FAIR, lambda r, which=which: not r["control"] and which(r)
        )
        if tried and not all(outcome.holds for outcome in tried):
            return words
    fair = [r for r in records if r["protocol"] == FAIR]
    prompts = max((r["prompts"] for r in fair), default=0)
    return f"not on {prompts} prompts and {max((r['models'] for r in fair), default=0)} models"


def _any_method(criterion: Criterion) -> bool:
    return all(term.by == "best" for term in _terms(criterion))


def _terms(criterion: Criterion) -> list[Term]:
    right = criterion.right
    return [criterion.left, right] if isinstance(right, Term) else [criterion.left]
