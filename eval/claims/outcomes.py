"""What became of a claim's criteria: the figures that they compare, looked up in the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from eval.claims.entries import FAIR, POOLS, Claim, Criterion, Term
from eval.claims.evidence import Record

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


def _value(term: Term, records: list[Record], which: Which | None) -> Value | None:
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
