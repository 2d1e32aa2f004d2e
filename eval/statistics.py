"""95 % intervals: of shares counted over trials, and of shares whose trials come in clusters."""

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate between its limits."""

    estimate: float
    low: float
    high: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval of a share (Wilson 1927), for n >= 1 independent trials."""
    share, z2 = successes / n, NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * share * (1 - share) / n + (z2 / (2 * n)) ** 2) / (1 + z2 / n)
    # Rounding must not put the share outside its own limits.
    return Interval(share, min(max(0.0, middle - half), share), max(min(1.0, middle + half), share))


def no_failures(n: int) -> Interval:
    """The rule of three: a share of 1 in n >= 1 trials, failures at most 3/n (Hanley 1983)."""
    return Interval(1.0, max(0.0, 1 - 3 / n), 1.0)


def clustered(
    values: Sequence[float],
    weights: Sequence[float],
    prompts: Sequence[Hashable],
    models: Sequence[Hashable],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """sum(values) / sum(weights), its interval by a bootstrap over prompts and models at once.

    Prompts and models are crossed: each is drawn anew on its own, with replacement, and an item
    counts as often as its prompt was drawn times as often as its model was (the pigeonhole
    bootstrap, Owen 2007, which errs on the wide side). With one model this is the usual cluster
    bootstrap over prompts, and the other way round. Limits are percentiles.

    Args:
        values: of each item, such as its tokens recovered.
        weights: of each item, such as its tokens; some are above 0.
        prompts: the prompt of each item.
        models: the model (its training seed) of each item.
        resamples: how often they are drawn.
        seed: of those draws; equal arguments give equal limits.

    Returns:
        The estimate, and limits that lie on it where nothing varies.
    """
    row, P = _numbered(prompts)
    column, M = _numbered(models)
    above, below = np.zeros((2, P, M))
    np.add.at(above, (row, column), values)
    np.add.at(below, (row, column), weights)
    draws = _draws(P, resamples, seed), _draws(M, resamples, seed + 1)
    numerator = ((draws[0] @ above) * draws[1]).sum(axis=1)
    denominator = ((draws[0] @ below) * draws[1]).sum(axis=1)
    drawn = denominator > 0  # items that a design leaves out can make a draw empty
    ratios = numerator[drawn] / denominator[drawn]
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    estimate = float(above.sum() / below.sum())
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate))


def share(
    hits: Sequence[float],
    counts: Sequence[float],
    prompts: Sequence[Hashable],
    models: Sequence[Hashable],
) -> Interval:
    """The share of tokens hit, with the interval that fits the case.

    Clustered as above. Where every token is hit, or none, no resample can vary: the rule of three
    then, with the pairs of prompt and model for its trials, since the tokens of one pair stand or
    fall together. A single pair says nothing of others: from none to all.
    """
    pairs = len(set(zip(prompts, models, strict=True)))
    total, possible = sum(hits), sum(counts)
    if pairs == 1:
        return Interval(total / possible, 0.0, 1.0)
    if total == possible:
        return no_failures(pairs)
    if total == 0:
        return Interval(0.0, 0.0, 1 - no_failures(pairs).low)
    return clustered(hits, counts, prompts, models)


def exact_share(
    exact: Sequence[bool], prompts: Sequence[Hashable], models: Sequence[Hashable]
) -> Interval:
    """The share of prompts found whole: Wilson's interval, or the rule of three for all of them.

    Trials are pairs of prompt and model: several solver seeds of one pair are not several trials.
    """
    pairs = len(set(zip(prompts, models, strict=True)))
    estimate = sum(exact) / len(exact)
    if pairs == 1:
        return Interval(estimate, 0.0, 1.0)
    if estimate == 1:
        return no_failures(pairs)
    found = wilson(round(estimate * pairs), pairs)
    return Interval(estimate, min(found.low, estimate), max(found.high, estimate))


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of one figure of each of several models, with Student's t interval.

    None of a single model: one seed says nothing about seeds.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread
    return Interval(mean, mean - half, mean + half)


def _numbered(names: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """Names as numbers from 0 in order of appearance, and how many there are."""
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(name, len(known)) for name in names]
    return np.array(numbers, dtype=np.intp), len(known)


@lru_cache(maxsize=64)
def _draws(n: int, resamples: int, seed: int) -> np.ndarray:
    """How often each of n clusters is drawn in each resample, `(resamples, n)`."""
    generator = np.random.default_rng([seed, n])
    return generator.multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
