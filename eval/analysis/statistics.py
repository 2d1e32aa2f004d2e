"""95 % intervals: of shares counted over trials, and of shares whose trials come in clusters."""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
EXACT_PAIRS = 20
"""Pairs whose signs are all tried; of more, pairs are drawn."""


class Interval(NamedTuple):
    """An estimate between its limits."""

    estimate: float
    low: float
    high: float


def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Student's t of a two-sided interval."""
    from scipy.special import stdtrit  # scipy.stats takes longer to import than a table to make

    return float(stdtrit(freedom, (1 + confidence) / 2))


@lru_cache(maxsize=4096)
def wilson(successes: int, n: int) -> Interval:
    """Wilson's two-sided score interval of a share (Wilson 1927), for n >= 1 independent trials."""
    from scipy.special import ndtri

    fraction, z = successes / n, float(ndtri((1 + CONFIDENCE) / 2))
    centre = fraction + z * z / (2 * n)
    half = z * (fraction * (1 - fraction) / n + (z / (2 * n)) ** 2) ** 0.5
    low, high = ((centre + side * half) / (1 + z * z / n) for side in (-1, 1))
    # Rounding must not put the share outside its own limits, nor a limit outside 0 to 1.
    return Interval(fraction, max(0.0, min(low, fraction)), min(1.0, max(high, fraction)))


def at_most(failures: int, n: int) -> float:
    """The share of failures that `failures` in n >= 1 independent trials leave possible.

    One-sided and exact (Clopper and Pearson 1934); about 3/n where nothing failed.
    """
    from scipy.special import betaincinv

    return float(betaincinv(failures + 1, n - failures, CONFIDENCE)) if failures < n else 1.0


def clustered(
    values: Sequence[float],
    weights: Sequence[float],
    prompts: Sequence[Hashable],
    models: Sequence[Hashable],
    confidence: float = CONFIDENCE,
) -> Interval:
    """sum(values) / sum(weights), Student's interval for prompts and models drawn at random.

    By the ratio's linearised variances between prompts and between models, of which there must be
    two for a variance. If models share their prompts, the variances are added, and the degrees of
    freedom are Satterthwaite's (1946). If each prompt belongs to one model, the spread between
    models has that between prompts in it; the larger counts, as few models can agree by chance. (A
    bootstrap draws too few different ones: of three models that differ much it covers the truth 75
    to 80 times in 100, of four prompts 78.) Limits are the estimate where nothing varies.

    Args:
        values: of each item, such as its tokens recovered.
        weights: of each item, such as its tokens; some are above 0.
        prompts: the prompt of each item.
        models: the model (its training seed) of each item.
    """
    row, P = _numbered(prompts)
    column, M = _numbered(models)
    above, below = np.zeros((2, P, M))
    np.add.at(above, (row, column), values)
    np.add.at(below, (row, column), weights)
    estimate = float(above.sum() / below.sum())
    deviations = (above - estimate * below) / below.sum()
    spreads = [
        (n / (n - 1) * float(np.square(sums).sum()), n - 1)
        for sums, n in ((deviations.sum(axis=1), P), (deviations.sum(axis=0), M))
        if n > 1
    ]
    variance, freedom = max(spreads, default=(0.0, 1))
    if not variance:
        return Interval(estimate, estimate, estimate)
    if len(set(zip(prompts, models, strict=True))) > max(P, M):
        variance = sum(own for own, _ in spreads)
        freedom = variance**2 / sum(own**2 / own_freedom for own, own_freedom in spreads)
    half = student_t(freedom, confidence) * variance**0.5
    return Interval(estimate, estimate - half, estimate + half)


def token_fraction(
    hits: Sequence[float],
    counts: Sequence[float],
    prompts: Sequence[Hashable],
    models: Sequence[Hashable],
) -> Interval:
    """The share of tokens hit, with the interval that fits the case.

    Clustered as above, between 0 and 1. Where every token is hit, or none, nothing varies: Wilson's
    interval then, with the pairs of prompt and model for its trials, since the tokens of one pair
    are hit or missed together. A single pair says nothing of others: from 0 to 1.
    """
    pairs = len(set(zip(prompts, models, strict=True)))
    total, possible = sum(hits), sum(counts)
    if pairs == 1:
        return Interval(total / possible, 0.0, 1.0)
    if total in (0, possible):
        return wilson(pairs if total else 0, pairs)
    estimate, low, high = clustered(hits, counts, prompts, models)
    return Interval(estimate, max(low, 0.0), min(high, 1.0))


def prompt_fraction(
    exact: Sequence[bool], prompts: Sequence[Hashable], models: Sequence[Hashable]
) -> Interval:
    """The share of prompts found whole, with Wilson's interval; of several models as of tokens.

    Trials are pairs of prompt and model: several solver seeds of one pair are not several trials.
    """
    if len(set(models)) > 1:
        return token_fraction(exact, [1] * len(exact), prompts, models)
    pairs, estimate = len(set(prompts)), sum(exact) / len(exact)
    if pairs == 1:
        return Interval(estimate, 0.0, 1.0)
    interval = wilson(round(estimate * pairs), pairs)
    return Interval(estimate, min(interval.low, estimate), max(interval.high, estimate))


class Difference(NamedTuple):
    """A difference of two ratios between its limits, its p, and how many pairs it is of."""

    estimate: float
    low: float
    high: float
    p: float
    n: int


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    counts: Sequence[float],
    fractions: bool = False,
    confidence: float = CONFIDENCE,
) -> Difference | None:
    """sum(first - second) / sum(counts) of pairs: two models asked the same prompts or windows.

    Up to `EXACT_PAIRS` pairs: Student's interval of the linearised ratio, and an exact permutation
    test, which swaps the two of each pair in every way. Of more pairs: a bootstrap that draws whole
    pairs; its p is the share of draws that lie as far from the estimate as the estimate from 0.
    Shares that differ alike in all pairs, as those that agree, may differ otherwise in as many
    pairs as `at_most` leaves possible. None for one pair, or where other ratios differ alike in all
    pairs, which would make any difference a certain one.

    Args:
        first: hits, or bits, of one model in each pair, `(pairs,)`.
        second: the same of the other.
        counts: tokens, or bytes, of each pair.
        fractions: whether the ratios are fractions of trials.
    """
    differences, sizes = np.subtract(first, second), np.asarray(counts, dtype=float)
    n = len(differences)
    if n < 2:
        return None
    estimate = float(differences.sum() / sizes.sum())
    if np.allclose(differences, estimate * sizes, rtol=0, atol=1e-9):
        if not fractions:
            return None
        room, p = at_most(0, n), 0.5 ** (n - 1) if differences.any() else 1.0
        low, high = estimate - room * (1 + estimate), estimate + room * (1 - estimate)
        return Difference(estimate, low, high, p, n)
    if n <= EXACT_PAIRS:
        _, low, high = clustered(differences.tolist(), counts, range(n), [0] * n, confidence)
        sums = np.zeros(1)
        for value in differences:
            sums = np.concatenate([sums + value, sums - value])
        far = np.abs(sums) >= abs(differences.sum()) * (1 - 1e-9)
        return Difference(estimate, low, high, float(far.mean()), n)
    draws = _draws(n)
    ratios = (draws @ differences) / (draws @ sizes)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    far = int((np.abs(ratios - estimate) >= abs(estimate)).sum())
    return Difference(estimate, float(low), float(high), (far + 1) / (RESAMPLES + 1), n)


def seeds_difference(
    first: Mapping[str, float], second: Mapping[str, float], confidence: float = CONFIDENCE
) -> Difference | None:
    """The difference of a figure of two models that have several training seeds each.

    By Student's t over pairs where both have the same seeds (two steps of the same runs), by
    Welch's t otherwise; n is the number of seeds. None where a model has one seed, or where nothing
    varies between seeds, which would make any difference a certain one.

    Args:
        first: the figure of each seed of one model, by the name of its run.
        second: the same of the other.
    """
    from scipy.stats import ttest_ind, ttest_rel

    if min(len(first), len(second)) < 2:
        return None
    values = list(first.values()), list(second.values())
    estimate, paired = float(np.mean(values[0]) - np.mean(values[1])), first.keys() == second.keys()
    if paired:
        values = values[0], [second[name] for name in first]
    varying = [np.subtract(*values)] if paired else values
    if max(map(np.ptp, varying)) <= 1e-12:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of one model whose seeds are alike
        test = ttest_rel(*values) if paired else ttest_ind(*values, equal_var=False)
    limits: Any = test.confidence_interval(confidence)  # pyright: ignore
    n = min(map(len, values))
    return Difference(estimate, float(limits.low), float(limits.high), float(test.pvalue), n)  # pyright: ignore


def equivalent(low: float, high: float, margin: float) -> bool:
    """Whether limits at 90 % lie within +-margin: two one-sided tests at 5 %."""
    return -margin < low and high < margin


def _numbered(names: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """Names as numbers from 0 in order of appearance, and how many there are."""
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(name, len(known)) for name in names]
    return np.array(numbers, dtype=np.intp), len(known)


@lru_cache(maxsize=64)
def _draws(n: int) -> np.ndarray:
    """How often each of n clusters is drawn in each resample, `(RESAMPLES, n)`."""
    generator = np.random.default_rng([0, n])
    return generator.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
