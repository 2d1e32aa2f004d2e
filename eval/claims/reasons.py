"""What explains a verdict: the control, or the difference of protocols, that parts two answers."""

from __future__ import annotations

import re
from dataclasses import replace

from eval.claims.entries import FAIR, REPORTED, Arm, Claim, Criterion
from eval.claims.evidence import Record
from eval.claims.outcomes import Outcome, outcomes

IDENTITY = "so does a network that does nothing: the protocol, not the model"
OF_HIDDEN = (
    "nonself", "nonself_top5", "others", "set_recall", "hidden_anywhere", "permuted", "exact"
)  # fmt: skip
"""Figures of hidden tokens, of which a network that does nothing tells nothing at all."""
SIZE = re.compile(r"\bd\d+ n\d+\b")


def why_holds(claim: Claim, records: list[Record], fair: list[Outcome], reported: bool) -> str:
    """What is to be said of a claim that holds fairly, and whether it does as reported."""
    words = [] if reported else ["not with the reported protocol"]
    alone = _by(claim, records, "gradient")
    if alone and not all(outcome.holds for outcome in alone):
        words.append("by exact search; gradients alone do not show it")
    if any(outcome.close for outcome in fair):
        words.append("in part within the interval")
    return "; ".join(words)


def why_fails(claim: Claim, records: list[Record], fair: list[Outcome]) -> str:
    """What is to be said of a claim that does not hold."""
    alone = _by(claim, records, "gradient")
    if alone and all(outcome.holds for outcome in alone):
        return "gradients alone would bear it out; exact search does not"
    missed = [outcome for outcome in fair if not outcome.holds]
    if missed and all(outcome.close for outcome in missed):
        return "by no more than the interval"
    return ""


def why_only_reported(claim: Claim, records: list[Record]) -> str:
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
