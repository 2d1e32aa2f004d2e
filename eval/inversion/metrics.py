"""From a solver's answer and the truth to the figures of a row."""

import math
import statistics
from collections import Counter
from collections.abc import Collection
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


def hamming(found: list[int], truth: list[int]) -> float:
    """The share of positions at which two sequences of equal length differ, 0 to 1."""
    return sum(a != b for a, b in zip(found, truth, strict=True)) / len(truth)


def set_recall(found: list[int], truth: list[int], positions: list[int]) -> float | None:
    """The share of the true tokens at some positions that were found there, in any order.

    Tokens are counted as often as they stand there (a multiset). None without positions.
    """
    if not positions:
        return None
    there = Counter(truth[t] for t in positions) & Counter(found[t] for t in positions)
    return there.total() / len(positions)


def is_permuted(found: list[int], truth: list[int], positions: list[int]) -> bool | None:
    """Whether the tokens found at some positions are the true ones in another order.

    None below two positions, where there is no other order.
    """
    if len(positions) < 2:
        return None
    a, b = [found[t] for t in positions], [truth[t] for t in positions]
    return a != b and sorted(a) == sorted(b)


def order(found: list[int], truth: list[int], positions: list[int]) -> float | None:
    """Kendall's tau between where tokens stand and where they were found, over some positions.

    1: those that were found stand in their true order, -1: in its reverse. Equal tokens are matched
    where they stand already, the others from the left. None where fewer than two were found.
    """
    from scipy.stats import kendalltau  # slow to import

    wrong = [t for t in positions if found[t] != truth[t]]
    pairs = [(t, t) for t in positions if t not in wrong]
    free = list(wrong)
    for t in wrong:
        match = next((u for u in free if found[u] == truth[t]), None)
        if match is not None:
            free.remove(match)
            pairs.append((t, match))
    if len(pairs) < 2:
        return None
    tau, _ = kendalltau(*zip(*pairs, strict=True))
    return float(tau)  # pyright: ignore[reportArgumentType]


def reciprocal_rank(rank: list[int], positions: list[int]) -> float | None:
    """Mean of 1 / (1 + rank) of the true token over some positions; None without any."""
    if not positions:
        return None
    return statistics.fmean(1 / (1 + rank[t]) for t in positions)


def margin_bits(margin: float | None, floor: float | None) -> float | None:
    """log2 of margin over floor; 0 where rounding alone could hide the difference.

    None where either is not known, or not a finite number above 0.
    """
    if margin is None or not floor or floor <= 0 or not math.isfinite(margin):
        return None
    return math.log2(max(margin, floor) / floor)


def extras(
    found: list[int],
    truth: list[int],
    rank: list[int],
    shown: Collection[int],
    margin: float | None = None,
    floor: float | None = None,
) -> dict[str, Any]:
    """Further figures of a row, ready to be merged into it.

    Args:
        found: the tokens found.
        truth: the true ones.
        rank: of the true token at each position, from `ranks`.
        shown: the positions shown.
        margin: distance of the nearest wrong answer, where known.
        floor: distance that rounding alone makes.
    """
    own = [t for t in range(len(truth)) if t in shown]
    hidden = [t for t in range(len(truth)) if t not in shown]
    return {
        "hamming": hamming(found, truth),
        "mrr_self": reciprocal_rank(rank, own),
        "mrr_nonself": reciprocal_rank(rank, hidden),
        "set_recall": set_recall(found, truth, hidden),
        "order": order(found, truth, hidden),
        "permuted": is_permuted(found, truth, hidden),
        "margin_bits": margin_bits(margin, floor),
    }
