"""The figures of a recovery's row that follow from an answer and the truth, which is read here."""

import math
import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eval.inversion.gradient.descend import normal
from eval.inversion.gradient.objectives import OBJECTIVES
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import COLLISIONS, Answer, Solver, drop_scores
from eval.measures.ranks import token_ranks

SHIFT = 0.05  # the published arrival test compares with an input shifted by this much noise


def score_answer(answer: Answer, truth: Tensor) -> Answer:
    """The answer with ranks of the true tokens, `(T,)`, in place of its scores."""
    ranks = token_ranks(answer.scores, truth.to(answer.scores.device), answer.tokens)
    collisions = {t: alike[:COLLISIONS] for t, alike in answer.collisions.items()}
    return replace(drop_scores(answer), ranks=ranks, collisions=collisions)


@torch.no_grad()
def score_arrivals(
    solver: Solver, problem: Problem, answers: list[Answer], truth: Tensor, generators: Generators
) -> list[tuple[bool, float] | None]:
    """The published protocol's own test of each answer: did the descent arrive?

    It has where its final vectors are nearer to the target, by the objective that was lowered, than
    the true embeddings shifted by 0.05 N(0, 1) (Badger, 2409.01482).

    Args:
        solver: that gave the answers; where they have no vectors there is nothing to test.
        truth: the tokens, `(P, T)`.
        generators: from which the solver drew, and which go on.

    Returns:
        Of each row whether it arrived and the loss reached, or None, also where the objective is
        not known, of a user's own solver.
    """
    vectors = [answer.vectors for answer in answers if answer.vectors is not None]
    loss = OBJECTIVES.get(solver.settings.get("objective", ""))
    if loss is None or len(vectors) < len(answers):
        return [None] * len(answers)
    true = problem.circuit.embed(truth)
    shifted = true + SHIFT * normal(generators, true.shape[1:], true)
    bar = loss(problem.shown(shifted), problem.target)
    reached = loss(problem.shown(torch.stack(vectors)), problem.target)
    return list(zip((reached < bar).tolist(), reached.tolist(), strict=True))


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


def verdicts(
    named: list[int], truth: list[int], collisions: Collection[int], within: bool
) -> list[str]:
    """The verdict on each token: recovered, ambiguous or not found.

    Ambiguous: another token explains the evidence as exactly. Either several tokens lie within the
    limit at that position, or the whole answer does although it is not the truth.
    """
    judged = []
    for t, (token, true) in enumerate(zip(named, truth, strict=True)):
        unsure = t in collisions or (within and token != true)
        judged.append("ambiguous" if unsure else "recovered" if token == true else "not found")
    return judged


def set_recall(tokens: list[int], truth: list[int], positions: list[int]) -> float | None:
    """The fraction of the true tokens at some positions that were named there, in any order.

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
