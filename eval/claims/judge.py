"""Verdicts: what is left of a claim under its own protocol and under fair ones."""

from __future__ import annotations

from dataclasses import dataclass

from eval.claims.entries import FAIR, PROTOCOLS, REPORTED, Claim
from eval.claims.evidence import Record
from eval.claims.outcomes import Outcome, asked, outcomes
from eval.claims.reasons import why_fails, why_holds, why_only_reported

HOLDS = "holds"
ONLY_REPORTED = "holds only as reported"
FAILS = "does not hold"
WEIGHTS = "needs weights"
NOT_RUN = "not run"
VERDICTS = (HOLDS, ONLY_REPORTED, FAILS, WEIGHTS, NOT_RUN)


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
    found = {name: outcomes(claim, own, name) for name in PROTOCOLS}
    wanted = {name: asked(claim, name) for name in PROTOCOLS}
    whole = {name: len(found[name]) == len(wanted[name]) > 0 for name in PROTOCOLS}
    held = {
        name: all(outcome.holds for outcome in found[name]) if whole[name] else None
        for name in PROTOCOLS
    }
    if not whole[FAIR] or (wanted[REPORTED] and not whole[REPORTED] and not _foreign(claim)):
        foreign = all(not arm.models.own for arm in claim.arms if arm.fair)
        verdict = WEIGHTS if foreign and not own else NOT_RUN
        return Judgement(claim, verdict, found, "", own)
    if held[FAIR]:
        why = why_holds(claim, own, found[FAIR], held[REPORTED] is not False)
        return Judgement(claim, HOLDS, found, why, own)
    if held[REPORTED]:
        return Judgement(claim, ONLY_REPORTED, found, why_only_reported(claim, own), own)
    return Judgement(claim, FAILS, found, why_fails(claim, own, found[FAIR]), own)


def _foreign(claim: Claim) -> bool:
    """Whether the reported protocol is asked of pretrained models, and the fair one of ours."""
    reported = [arm for arm in claim.arms if arm.reported]
    fair = [arm for arm in claim.arms if arm.fair]
    return all(not arm.models.own for arm in reported) and all(arm.models.own for arm in fair)
