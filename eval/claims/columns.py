"""The verdicts on a claim, in three columns that stay apart.

    replicated    the source's protocol, one prompt or few; valid only where its positive control
                  passes: where the result is not in doubt, it gives what its source reports
    gradients     descent and tuned gradients on many prompts of several models; valid only where
                  they recover the tokens of a network that does nothing
    information   exact search, and lenses, which measure directly; valid only where the search
                  finds the tokens that are shown

A criterion compares a figure with a number, or with another figure. A figure is the best of all
methods of the column. Intervals of two compared figures must be disjoint.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from eval.claims.entries import FAIR, OPERATIONS, POOLS, REPORTED, Claim, Criterion, Term
from eval.claims.evidence import Record

YES, NO, OPEN, INVALID, NOT_ASKED = ANSWERS = ("yes", "no", "open", "invalid", "not asked")
REPLICATED, GRADIENTS, INFORMATION = COLUMNS = ("replicated", "gradients", "information")
FAMILY = {GRADIENTS: "gradient", INFORMATION: "search"}
SEARCHES = {"search", "propose", "alternating", "sweep", "enumerate"}
READ, FOUND = 0.5, 0.9
"""Shares of shown tokens that gradients must name of a network that does nothing, search of any."""
ENOUGH = 30
"""Independent prompts; a cell of fewer says so."""
ARRIVAL = ("minimised", "criterion")
"""Figures of whether a descent arrived, whichever tokens it names."""


class Value(float):
    """A figure of a record, with its interval where it has one; printed as pages say it."""

    record: Record
    low: float | None
    high: float | None

    def __new__(
        cls, value: float, record: Record, low: float | None = None, high: float | None = None
    ) -> Value:
        """A figure."""
        new = super().__new__(cls, value)
        new.record, new.low, new.high = record, low, high
        return new

    @classmethod
    def of(cls, record: Record, name: str) -> Value:
        """A figure of a record, by its name."""
        return cls(record[name], record, record.get(f"{name}_low"), record.get(f"{name}_high"))

    def __str__(self) -> str:
        """A share in per cent, `12.0 % (8.1 to 17.2)`; a lens's figure as it is."""
        factor, form, unit = (1, ".3g", "") if "lens" in self.record else (100, ".1f", " %")
        number = f"{factor * float(self):{form}}{unit}"
        if self.low is None or self.high is None:
            return number
        return f"{number} ({factor * self.low:{form}} to {factor * self.high:{form}})"


class Outcome(NamedTuple):
    """One criterion's answer in one column."""

    criterion: Criterion
    left: Value
    right: Value | float
    answer: str


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


@dataclass(frozen=True)
class Cell:
    """A column of one claim."""

    answer: str = NOT_ASKED  # one of `ANSWERS`
    outcomes: tuple[Outcome, ...] = ()  # of its criteria
    failed: Outcome | None = None  # the positive control that failed, where one did

    @property
    def prompts(self) -> int:
        """Independent prompts, of the criterion that has fewest."""
        return min(outcome.left.record["prompts"] for outcome in self.outcomes)


@dataclass(frozen=True)
class Judgement:
    """A claim, its columns, and the records that they are made of."""

    claim: Claim
    cells: dict[str, Cell]
    records: list[Record]
    stand_in: str = ""  # name of the model that was asked in place of the claim's
    stand_ins: tuple[Judgement, ...] = ()  # such models' answers, which are none to the claim

    @property
    def asked(self) -> bool:
        """Whether any column has an answer."""
        return any(cell.answer != NOT_ASKED for cell in self.cells.values())

    @property
    def changed(self) -> str:
        """The change of criteria after the data were seen; empty without one, or if asked again."""
        frozen = self.claim.frozen
        other = any(record.get("criteria", frozen) != frozen for record in self.records)
        before = "" if self.claim.again else self.claim.changed
        return before or ("they are not those of its rows" if other else "")


def judge(claim: Claim, records: list[Record]) -> Judgement:
    """The three columns of one claim; those of its stand-ins apart."""
    about = [record for record in records if record["claim"] == claim.number]

    def judged(asked: Claim, stand_in: str = "") -> Judgement:
        chosen = [record for record in about if record.get("stand_in", "") == stand_in]
        cells = {column: _cell(asked, chosen, column) for column in COLUMNS}
        return Judgement(asked, cells, chosen, stand_in)

    several = (judged(claim.asked_of(name), name) for name in claim.stand_ins)
    return replace(judged(claim), stand_ins=tuple(one for one in several if one.asked))


def value_of(term: Term, records: list[Record]) -> Value | None:
    """A term's figure in some records, the best of several methods; None where none bears it."""
    chosen = [record for record in records if record["arm"] == term.arm]
    if lens := [r for r in chosen if "lens" in r and r["figure"] == term.figure]:
        return _pooled(term, lens)

    def admitted(record: Record) -> bool:
        if term.by == "best":
            return record["family"] in ("gradient", "search")
        return term.by in (record["family"], record["method"])

    tried = [r for r in chosen if r.get(term.figure) is not None and admitted(r)]
    return max((Value.of(r, term.figure) for r in tried), default=None)


def _cell(claim: Claim, records: list[Record], column: str) -> Cell:
    protocol = REPORTED if column == REPLICATED else FAIR
    arms = {arm.name for arm in claim.arms if arm.protocol(protocol)}
    wanted = [c for c in claim.judge if {t.arm for t in c.terms} <= arms and _is_of(c, column)]
    chosen = [r for r in records if r["protocol"] == protocol and _answers(r, column)]
    outcomes = [o for criterion in wanted if (o := _outcome(criterion, chosen, column))]
    controls = _controls(claim, records, chosen, column, outcomes)
    if not wanted or len(outcomes) < len(wanted) or None in controls:
        return Cell()
    failed = next((control for control in controls if control and control.answer == NO), None)
    answers = {outcome.answer for outcome in outcomes}
    answer = NO if NO in answers else OPEN if OPEN in answers else YES
    return Cell(INVALID if failed else answer, tuple(outcomes), failed)


def _is_of(criterion: Criterion, column: str) -> bool:
    """Whether a criterion names no method, or one of the column."""
    names = {term.by for term in criterion.terms} - {"best"}
    return column == REPLICATED or not names or (names <= SEARCHES) == (column == INFORMATION)


def _answers(record: Record, column: str) -> bool:
    """Whether a record of a column's protocol answers it: no controls, and fairly no pads."""
    if column == REPLICATED:
        return not record.get("control")
    if "lens" in record:
        return column == INFORMATION
    plain = not record["control"] and not record["padded"]
    return record["family"] == FAMILY[column] and plain


def _outcome(criterion: Criterion, records: list[Record], column: str) -> Outcome | None:
    left, right = value_of(criterion.left, records), criterion.right
    if isinstance(right, Term):
        right = value_of(right, records)
    if left is None or right is None:
        return None
    held = OPERATIONS[criterion.operation].holds(left, right)
    answer = YES if held else NO
    if column != REPLICATED and _unsettled(left, right):
        answer = OPEN
    searched = column == INFORMATION and "lens" not in left.record
    if held and searched and criterion.operation in ("below", "less"):
        answer = OPEN  # what a search does not find may be there
    return Outcome(criterion, left, right, answer)


def _unsettled(left: Value, right: Value | float) -> bool:
    """Whether intervals leave the answer open: more prompts could turn it.

    Not against a number where the share is of all or none: nothing varied there.
    """
    if left.low is None or left.high is None:
        return False
    if isinstance(right, Value):
        if right.low is None or right.high is None:
            return False
        return left.low <= right.high and right.low <= left.high
    varied = "lens" in left.record or 0 < left < 1
    return varied and left.low < right < left.high


def _controls(
    claim: Claim, records: list[Record], chosen: list[Record], column: str, outcomes: list[Outcome]
) -> list[Outcome | None]:
    """The positive controls of a column; None for one that was not measured."""
    if column == REPLICATED:
        return [_outcome(control, chosen, column) for control in claim.control]
    if all(o.criterion.left.figure in ARRIVAL for o in outcomes):
        return []
    if column == GRADIENTS:
        chosen = [r for r in records if r.get("control") == "identity"]
    least = READ if column == GRADIENTS else FOUND
    tried = [r for r in chosen if r.get("self") is not None and r["family"] != "control"]
    return [
        _outcome(Criterion(Term("self", arm), "above", least), tried, REPLICATED)
        for arm in dict.fromkeys(r["arm"] for r in tried)
    ]


def _pooled(term: Term, records: list[Record]) -> Value | None:
    """A lens's figure over its layers, in their order, or over all places that a term admits."""
    chosen = [
        r
        for r in records
        if r["value"] is not None
        and all(r["where"].get(name) == value for name, value in term.where.items())
    ]
    if not chosen:
        return None
    layers = [r for r in chosen if isinstance(r["where"].get("layer"), int)]  # no "tokens"
    chosen = sorted(layers, key=lambda record: record["where"]["layer"]) or chosen
    value = POOLS[term.pool]([record["value"] for record in chosen])
    if term.pool == "mean":  # as if the layers erred together, which is the wide side
        ends = [[record[end] for record in chosen] for end in ("low", "high")]
        return Value(value, chosen[0], *(None if None in e else fmean(e) for e in ends))
    same = next(record for record in chosen if record["value"] == value)
    return Value(value, same, same["low"], same["high"])


def answers_of(judgements: list[Judgement], column: str) -> Counter[str]:
    """How many claims have which answer in a column."""
    return Counter(one.cells[column].answer for one in judgements)


def tally_of(judgements: list[Judgement], column: str) -> str:
    """How many claims have which answer in a column: `3 yes, 1 no`."""
    counts = answers_of(judgements, column)
    return ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer])
