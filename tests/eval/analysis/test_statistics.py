"""Intervals, against scipy's and by how often they cover the truth."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import bootstrap, t

from eval.analysis.statistics import (
    at_most,
    clustered,
    equivalent,
    paired_difference,
    prompt_fraction,
    seeds_difference,
    token_fraction,
    wilson,
)
from eval.inversion.scoring import rank_tally
from eval.measures.linear import token_figures
from eval.measures.ranks import token_ranks


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_published_intervals(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((successes / n, low, high), abs=6e-5)
    assert all(0 <= w.low <= w.estimate <= w.high <= 1 for w in (wilson(0, n), wilson(n, n)))


@pytest.mark.parametrize(("n", "high"), [(1, 0.95), (30, 0.0950), (300, 0.00994), (1690, 0.00177)])
def test_no_failure_in_n_trials_leaves_three_in_n_at_most(n, high):
    assert at_most(0, n) == pytest.approx(1 - 0.05 ** (1 / n))
    assert at_most(0, n) == pytest.approx(high, rel=0.005)
    if n >= 30:  # the rule of three (Hanley 1983) approximates it
        assert at_most(0, n) == pytest.approx(3 / n, rel=0.06)


def test_one_factor_agrees_with_scipy():
    rng = np.random.default_rng(0)
    counts = rng.integers(3, 20, 40)
    hits = rng.binomial(counts, rng.beta(4, 2, 40))

    def ratio(x, y, axis):
        return x.sum(axis=axis) / y.sum(axis=axis)

    theirs = bootstrap(
        (hits, counts), ratio, paired=True, n_resamples=20_000, method="percentile", rng=rng
    ).confidence_interval
    ours = clustered(hits.tolist(), counts.tolist(), range(40), [0] * 40)
    assert ours.estimate == pytest.approx(hits.sum() / counts.sum())
    assert ours[1:] == pytest.approx((theirs.low, theirs.high), abs=0.01)
    turned = clustered(hits.tolist(), counts.tolist(), [0] * 40, range(40))
    assert turned == pytest.approx(ours)


def coverage(P, M, of_prompts, of_models, dealt=False, tokens=3):
    """How often the interval of shares holds the truth of prompts and models drawn at random.

    Every model is asked every prompt, or each prompt is dealt out to one model.
    """
    rng, rounds, held = np.random.default_rng(4), 300, 0
    prompts = np.arange(P) if dealt else np.repeat(np.arange(P), M)
    models = prompts % M if dealt else np.tile(np.arange(M), P)
    for _ in range(rounds):
        chance = 0.5 + rng.normal(0, of_models, M)[models] + rng.normal(0, of_prompts, P)[prompts]
        hits = rng.binomial(tokens, chance.clip(0, 1)).tolist()
        interval = token_fraction(hits, [tokens] * len(hits), prompts.tolist(), models.tolist())
        held += interval.low <= 0.5 <= interval.high
    return held / rounds


@pytest.mark.parametrize(("P", "M", "spread"), [(50, 3, 0.2), (51, 5, 0.0), (60, 12, 0.05)])
@pytest.mark.parametrize("dealt", [True, False])
def test_coverage_of_prompts_and_models(P, M, spread, dealt):
    assert 0.9 < coverage(P, M, 0.15, spread, dealt) < 0.999


@pytest.mark.parametrize("n", [3, 4, 8])
def test_coverage_of_few_prompts_or_seeds(n):
    """By a bootstrap it was 69 to 87 in 100."""
    assert 0.9 < coverage(n, 1, 0.15, 0.0, tokens=64) < 0.999
    assert 0.9 < coverage(1, n, 0.0, 0.15, tokens=64) < 0.999


def test_an_interval_over_models_alike_is_that_over_prompts():
    hits, prompts, models = [3, 1, 2, 0, 3] * 3, [*range(5)] * 3, sorted("abc" * 5)
    found = clustered(hits, [3] * 15, prompts, models)
    expected = stats.t.interval(0.95, 4, 0.6, stats.sem([1, 1 / 3, 2 / 3, 0, 1]))
    assert found[1:] == pytest.approx(expected)
    turned = clustered(hits, [3] * 15, models, prompts)
    assert turned == pytest.approx(found)


def test_a_dealt_out_design_is_told_from_a_crossed_one():
    hits, models = [3, 1, 2, 0, 3, 3, 0, 1, 2, 0, 0, 1], list(range(3)) * 4
    nested = clustered(hits, [3] * 12, range(12), models)
    means = np.array([np.mean(hits[m::3]) for m in range(3)]) / 3
    spread = max(np.std(means, ddof=1) / 3**0.5 * t.ppf(0.975, 2),
                 np.std(np.array(hits) / 3, ddof=1) / 12**0.5 * t.ppf(0.975, 11))  # fmt: skip
    assert nested == pytest.approx(
        (np.mean(means), np.mean(means) - spread, np.mean(means) + spread)
    )
    crossed = clustered(hits, [3] * 12, [i // 3 for i in range(12)], models)
    assert crossed.estimate == nested.estimate
    assert crossed[1:] != pytest.approx(nested[1:], abs=0.01)
    twice = clustered(hits * 2, [3] * 24, [*range(12)] * 2, models * 2)  # two solver seeds each
    assert twice == pytest.approx(nested)
    some = token_fraction([3, 3, 3, 3, 3, 2], [3] * 6, range(6), [0, 1, 2] * 2)
    assert some.high == 1  # a share, whatever the spread


def test_share_takes_the_interval_that_fits():
    prompts, models = "aabb", [0, 1, 0, 1]
    assert token_fraction([5] * 4, [5] * 4, prompts, models) == wilson(4, 4)
    assert token_fraction([5] * 4, [5] * 4, "abab", "xxxx") == wilson(2, 2)  # two solver seeds each
    assert token_fraction([0] * 200, [5] * 200, range(200), [0] * 200) == wilson(0, 200)
    assert token_fraction([4], [5], "a", "x") == (0.8, 0, 1)
    some = token_fraction([5, 3, 4, 5], [5] * 4, prompts, models)
    assert some.low == clustered([5, 3, 4, 5], [5] * 4, prompts, models).low
    assert some.low < 0.85 < some.high


def test_exact_share_counts_pairs_of_prompt_and_model():
    assert prompt_fraction([True] * 6, "abcabc", [0, 0, 0, 1, 1, 1]) == wilson(6, 6)
    assert prompt_fraction([True] * 6, "abcabc", [0] * 6) == wilson(3, 3)
    assert prompt_fraction([True, True, False, False], "abcd", [0] * 4) == wilson(2, 4)
    assert prompt_fraction([True, True, False, False], "aabb", [0] * 4) == wilson(1, 2)
    assert prompt_fraction([False, False], "ab", [0] * 2) == wilson(0, 2)
    exact, prompts, models = [*[True] * 20, *[False] * 20, *[True] * 20], [*range(20)] * 3, "abc"
    seeds = prompt_fraction(exact, prompts, [m for m in models for _ in range(20)])
    assert seeds == pytest.approx((2 / 3, 0, 1))  # of three that are at 0 or 100 %, not of 60
    assert prompt_fraction([False], "a", [0]) == (0, 0, 1)


NAN, INF = math.nan, math.inf


def mean_rank(scores: list[float], token: int, answer: int | None = None) -> float:
    """The mean over every order in which the equal ones could stand, by sorting each."""
    ranks = []
    for order in itertools.permutations(range(len(scores))):
        place = {token: i for i, token in enumerate(order)}
        line = sorted(
            order,
            key=lambda i: (
                i != answer,
                math.isnan(scores[i]),
                0.0 if math.isnan(scores[i]) else -scores[i],
                place[i],
            ),
        )
        ranks.append(line.index(token))
    return sum(ranks) / len(ranks)


@pytest.mark.parametrize(
    "scores",
    [
        [0.1, 0.9, 0.5, 0.3],
        [0.5, 0.5, 0.1, 0.5],
        [0.0] * 5,
        [NAN] * 4,
        [NAN, 0.2, NAN, 0.1, 0.2],
        [-INF, -INF, 0.3, -INF],
        [INF, NAN, 0.0, INF],
    ],
)
def test_a_rank_is_the_mean_over_the_orders_of_ties(scores):
    V = len(scores)
    table, tokens = torch.tensor(scores).expand(V, V), torch.arange(V)
    assert token_ranks(table, tokens).tolist() == [mean_rank(scores, token) for token in range(V)]
    for answer in range(V):
        found = token_ranks(table, tokens, torch.full((V,), answer)).tolist()
        assert found == [mean_rank(scores, token, answer) for token in range(V)]
        assert [token for token in range(V) if found[token] == 0] == [answer]


@pytest.mark.parametrize("value", [0.0, NAN])
def test_scores_that_say_nothing_rank_as_chance_and_are_never_right(value):
    """Over all truths the mean is that of a random order, and few are in the first five."""
    V = 101
    answers, scores = torch.full((V,), 7), torch.full((V, V), value)
    found = token_ranks(scores, torch.arange(V), answers).tolist()
    assert sum(found) / V == (V - 1) / 2
    figures = rank_tally(found, list(range(V)))
    assert figures is not None
    assert figures["top1"] == figures["top5"] == 1 / V
    found = token_figures([(torch.full((20, 50), value), torch.arange(20))], 50)
    assert found["top1"] == found["top5"] == 0
    if math.isnan(value):
        assert found["nats"] is found["information"] is None
    else:
        assert found["nats"] == pytest.approx(math.log(50))


# Paired differences.


def prompts_of(rng, pairs, gap, spread, tokens=13):
    """Tokens that two models get right of each prompt; prompts differ in how hard they are."""
    hard = np.clip(0.7 + spread * rng.standard_normal(pairs), 0.05, 0.95)
    first = rng.binomial(tokens, hard)
    second = rng.binomial(tokens, np.clip(hard - gap, 0, 1))
    return first, second, np.full(pairs, tokens), True


def windows_of(rng, pairs, gap, spread):
    """Bits of two models on windows of unequal size that are hard for both alike."""
    sizes = rng.integers(50, 400, pairs)
    hard = 1.3 + 0.4 * rng.standard_normal(pairs)
    noise = spread * rng.standard_normal((2, pairs))
    return sizes * (hard + noise[0]), sizes * (hard - gap + noise[1]), sizes, False


@pytest.mark.first(2)
@pytest.mark.parametrize("design", [prompts_of, windows_of])
@pytest.mark.parametrize("pairs", [8, 40])
def test_intervals_of_differences_cover_as_stated(design, pairs):
    """95 % intervals hold the true difference in 92 to 98 of 100 draws, and p is no smaller than
    it may be where there is no difference."""
    rng = np.random.default_rng(pairs)
    first, second, counts, _share = design(rng, 400_000, 0.1, 0.1)
    truth = (first - second).sum() / counts.sum()
    covered, false = 0, 0
    for _ in range(300):
        found: Any = paired_difference(*design(rng, pairs, 0.1, 0.1))
        covered += found.low <= truth <= found.high
        same: Any = paired_difference(*design(rng, pairs, 0.0, 0.1))
        false += same.p <= 0.05
        assert same.low <= same.estimate <= same.high
        assert 0 < same.p <= 1
    assert 0.91 <= covered / 300 <= 0.985
    assert false / 300 <= 0.08


def test_a_permutation_test_tries_every_sign():
    first, second = [3.0, 5.0, 2.0, 4.0], [1.0, 1.0, 1.0, 5.0]
    apart = np.subtract(first, second)
    signs = [[1 - 2 * (number >> i & 1) for i in range(4)] for number in range(16)]
    sums = np.abs(np.array(signs) @ apart)
    found = paired_difference(first, second, [10.0] * 4)
    assert found is not None
    assert found.p == (sums >= abs(apart.sum())).mean()
    assert found.estimate == apart.sum() / 40
    assert found[1:3] == pytest.approx(
        stats.t.interval(0.95, 3, (apart / 10).mean(), stats.sem(apart / 10))
    )
    assert paired_difference([1.0], [2.0], [3.0]) is None
    for n in (2, 30):  # nothing varies, and no share says how much it might
        assert paired_difference([12.0] * n, [12.0] * n, [1.0] * n) is None
    alike = paired_difference([9.0] * 30, [9.0] * 30, [9.0] * 30, fractions=True)
    assert alike == (0, -at_most(0, 30), at_most(0, 30), 1, 30)
    five = paired_difference([2.0] * 5, [0.0] * 5, [2.0] * 5, fractions=True)
    assert five == (1, pytest.approx(1 - 2 * at_most(0, 5)), 1, 2 / 32, 5)


def test_differences_of_seeds_are_students():
    first, second = {"a0": 1.0, "a1": 1.2, "a2": 1.1}, {"b0": 0.7, "b1": 0.9}
    welch: Any = stats.ttest_ind([*first.values()], [*second.values()], equal_var=False)
    found = seeds_difference(first, second)
    assert found is not None
    assert (found.p, found.n) == (pytest.approx(welch.pvalue), 2)
    assert found[1:3] == pytest.approx(tuple(welch.confidence_interval(0.95)))
    later = {"a2": 0.9, "a0": 0.7, "a1": 1.0}
    pairs: Any = stats.ttest_rel([1.0, 1.2, 1.1], [0.7, 1.0, 0.9])
    found = seeds_difference(first, later)
    assert found is not None
    assert (found.p, found.n) == (pytest.approx(pairs.pvalue), 3)
    assert seeds_difference(first, {"b0": 1.0}) is None
    for other in ({"b0": 0.9, "b1": 0.9}, {"a0": 0.9, "a1": 0.9}):  # nothing varies
        assert seeds_difference({"a0": 1.0, "a1": 1.0}, other) is None
    assert seeds_difference({"a0": 1.0, "a1": 0.8}, {"a0": 0.9, "a1": 0.7}) is None
    assert equivalent(-0.01, 0.04, 0.05)
    assert not equivalent(-0.01, 0.06, 0.05)
