"""From a solver's answer and the truth to the figures of a row."""

import statistics
from typing import Any

import torch
from torch import Tensor

from eval.inversion.answer import Answer


def ranks(answer: Answer, truth: Tensor) -> list[int]:
    """How many tokens the solver holds likelier than the true one, at each position of `(T,)`.

    A true token that was found has rank 0 whatever its score: the answer is what counts.
    """
    own = answer.scores.gather(1, truth[:, None])
    rank = (answer.scores > own).sum(dim=1)
    return torch.where(answer.tokens == truth, 0, rank.clamp(min=1)).tolist()


def tally(rank: list[int], positions: list[int]) -> dict[str, Any] | None:
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
    """What became of each token: recovered, ambiguous or not found.

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
