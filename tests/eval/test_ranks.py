"""Ranks of tokens: ties count as half, NaN is last, what is not known scores as chance does."""

import itertools
import math

import pytest
import torch

from eval.inversion.answer import tally
from eval.probes.linear import Score
from eval.ranks import token_ranks

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
def test_scores_that_say_nothing_rank_as_chance_does(value):
    """Over all truths the mean is that of a random order, and few are in the first five."""
    V = 101
    answers, scores = torch.full((V,), 7), torch.full((V, V), value)
    found = token_ranks(scores, torch.arange(V), answers).tolist()
    assert sum(found) / V == (V - 1) / 2
    figures = tally(found, list(range(V)))
    assert figures is not None
    assert figures["top1"] == figures["top5"] == 1 / V


@pytest.mark.parametrize("value", [0.0, NAN])
def test_a_reader_that_says_nothing_is_never_right(value):
    score = Score(50)
    score.add(torch.full((20, 50), value), torch.arange(20))
    found = score.record()
    assert found["top1"] == found["top5"] == 0
    if math.isnan(value):
        assert found["nats"] is found["information"] is None
        assert found["reason"] == "logits are not finite"
    else:
        assert found["nats"] == pytest.approx(math.log(50))
