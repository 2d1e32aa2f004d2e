"""From a solver's answer and the truth to the figures of a row."""

import math
import statistics
from collections import Counter
from collections.abc import Collection
from typing import Any

from torch import Tensor

from eval.inversion.answer import Answer


def tally(rank: list[float], positions: list[int]) -> dict[str, Any] | None:
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


def nearest_rival(runner_up: Tensor | None, floor: Tensor) -> dict[str, float | None]:
    """How near the second-best token comes to the best, at the position where it comes nearest.

    Args:
        runner_up: distance of the second-best token at each position shown, `(S,)`; None for
            methods that do not try all tokens.
        floor: distance that rounding alone makes at those positions, `(S,)`.

    Returns:
        `margin_bits`: the least over positions of log2(distance / floor), 0 where rounding alone
        could hide the difference; `margin` and `margin_floor`: distance and floor at that position.
        All None where they are not known, or not finite.
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


def extras(found: list[int], truth: list[int], shown: Collection[int]) -> dict[str, Any]:
    """Further figures of a row, ready to be merged into it.

    Args:
        found: the tokens found.
        truth: the true ones.
        shown: the positions shown.
    """
    hidden = [t for t in range(len(truth)) if t not in shown]
    return {
        "set_recall": set_recall(found, truth, hidden),
        "permuted": is_permuted(found, truth, hidden),
    }
