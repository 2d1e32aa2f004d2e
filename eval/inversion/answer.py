"""A solver's answer to one prompt, and the figures of a row that follow from it and the truth."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from eval.inversion.spaces import restrict
from eval.ranks import token_ranks

COLLISIONS = 16
"""Tokens that an answer names, at most, where several lie within the limit."""


@dataclass
class Answer:
    """A solver's tokens for one prompt, and how sure it is of each.

    Attributes:
        tokens: `(T,)`.
        scores: how well each token of the vocabulary fits each position, `(T, V)`; higher is
            better. `(T, 0)` in an answer with ranks.
        ranks: how many tokens score higher than the true one at each position, `(T,)`, 0 where it
            is the answer; `Solver.answer` sets them.
        runner_up: distance of the second-best token at each position shown, `(S,)`; None for
            methods that do not try all tokens.
        collisions: positions at which several tokens lie within the limit, with those tokens.
        diverged: whether scores are not finite: then the answer and the ranks say nothing.
        criterion: for the published protocol, whether its own test of convergence passed.
        certificate: why the answer counts as one: "residual" (consistent: its outputs are those
            shown, to rounding), or "enumerated" (proved: every other choice was tried, and none
            fits); None for nothing. With collisions it is "residual".
        steps: steps until solved, for a method that takes steps; None if it was not.
        evaluations: tokens sent through the circuit; a gradient step sends each of them thrice.
        seconds: time taken. Where a solver sets none, a batch's time is shared evenly.
        notes: further figures of the method, by name.
    """

    tokens: Tensor
    scores: Tensor
    ranks: Tensor | None = None
    runner_up: Tensor | None = None
    collisions: dict[int, list[int]] = field(default_factory=dict)
    diverged: bool = False
    criterion: bool | None = None
    certificate: str | None = None
    steps: int | None = None
    evaluations: int = 0
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def ranked(self, truth: Tensor, allowed: Collection[int] | None = None) -> "Answer":
        """The answer with the true tokens' ranks in place of scores, which take V times as much.

        Of allowed tokens alone. Where the solver's own answer is another one, its certificate and
        its steps are not of this.

        Args:
            truth: `(T,)`.
            allowed: the only tokens that the answer may hold; None for all.
        """
        tokens, scores = self.tokens, self.scores
        diverged = self.diverged or not bool(scores.isfinite().all())
        if allowed:
            scores = restrict(scores, allowed)
            tokens = scores.argmax(dim=-1)
        same = tokens.equal(self.tokens)
        return replace(
            self,
            certificate=self.certificate if same else None,
            steps=self.steps if same else None,
            tokens=tokens.clone(),
            scores=scores.new_empty(len(tokens), 0),
            ranks=token_ranks(scores, truth.to(tokens.device), tokens),
            collisions={t: alike[:COLLISIONS] for t, alike in self.collisions.items()},
            diverged=diverged,
        )


def join_answers(parts: Sequence[Answer]) -> Answer:
    """The answer to a prompt whose parts were recovered in turn; the parts in their order."""
    collisions, length = {}, 0
    for part in parts:
        collisions |= {length + t: several for t, several in part.collisions.items()}
        length += len(part.tokens)
    proofs = {part.certificate for part in parts}
    # after an ambiguous token, the others were enumerated for one choice of it only
    certain = not any(part.collisions for part in parts[:-1])
    proof = "enumerated" if proofs == {"enumerated"} and certain else "residual"
    return Answer(
        tokens=torch.cat([part.tokens for part in parts]),
        scores=torch.cat([part.scores for part in parts]),
        collisions=collisions,
        certificate=None if None in proofs else proof,
        evaluations=sum(part.evaluations for part in parts),
        seconds=sum(part.seconds for part in parts),
        notes={
            "starts": sum(part.notes["starts"] for part in parts),
            "distance": max(part.notes["distance"] for part in parts),
        },
    )


def rank_tally(rank: list[float], positions: list[int]) -> dict[str, Any] | None:
    """Top-1, top-5 and median rank over some positions; None if there are none."""
    chosen = [rank[t] for t in positions]
    if not chosen:
        return None
    return {
        "count": len(chosen),
        "top1": sum(r == 0 for r in chosen) / len(chosen),
        "top5": sum(r < 5 for r in chosen) / len(chosen),
        "median_rank": float(statistics.median(chosen)),
    }


def verdicts(answer: Answer, truth: Tensor, at_floor: bool) -> list[str]:
    """The verdict on each token: recovered, ambiguous or not found.

    Ambiguous: another token explains the evidence as exactly. Either several tokens lie within the
    floor at that position, or the whole answer does although it is not the truth.
    """
    right = (answer.tokens == truth).tolist()
    return [
        "ambiguous"
        if t in answer.collisions or (at_floor and not right[t])
        else "recovered"
        if right[t]
        else "not found"
        for t in range(len(right))
    ]


def set_recall(tokens: list[int], truth: list[int], positions: list[int]) -> float | None:
    """The share of the true tokens at some positions that were named there, in any order.

    Tokens count as often as they stand there (a multiset). None without positions.
    """
    if not positions:
        return None
    both = Counter(truth[t] for t in positions) & Counter(tokens[t] for t in positions)
    return both.total() / len(positions)


def is_permuted(tokens: list[int], truth: list[int], positions: list[int]) -> bool | None:
    """Whether the tokens named at some positions are the true ones in another order.

    None below two positions, which have no other order.
    """
    if len(positions) < 2:
        return None
    a, b = [tokens[t] for t in positions], [truth[t] for t in positions]
    return a != b and sorted(a) == sorted(b)


def nearest_rival(runner_up: Tensor | None, floor: Tensor) -> dict[str, float | None]:
    """How near the second-best token comes to the best, at the position where it comes nearest.

    `margin_bits` is the least of log2(distance / floor) over the S positions shown, 0 where
    rounding alone could hide the difference; `margin` and `margin_floor` are distance and floor
    there. All are None where they are not known, or not finite.
    """
    unknown: dict[str, float | None] = dict.fromkeys(("margin", "margin_floor", "margin_bits"))
    if runner_up is None or not len(runner_up):
        return unknown
    ratio = runner_up.double() / floor.double()
    if not ratio.isfinite().all():
        return unknown
    t = int(ratio.argmin())
    return {
        "margin": float(runner_up[t]),
        "margin_floor": float(floor[t]),
        "margin_bits": math.log2(max(float(ratio[t]), 1.0)),
    }
