"""The additive model against brute force; snap, prior, chance."""

import itertools

import numpy as np
import pytest
import torch

from eval.inversion.solvers.alternating.additive import (
    RIDGE,
    Changes,
    different,
    explain,
    extrapolate,
)
from tests.eval.inversion.search_cases import posed, prompts, solve, tokens_of

V = 40


@pytest.fixture
def babbling(small_model):
    """A model of few tokens that expects the token after the present one, not too surely."""
    model = small_model(vocab_size=V)
    for parameter in model.blocks.parameters():
        parameter.mul_(0.01)
    model.head.weight.copy_(0.2 * model.embedding.weight.roll(1, dims=0))
    return model


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_additive_model_explains_as_brute_force_does(k):
    """With every choice followed, the best sums of changes first; with few, the best one too."""
    generator = torch.Generator().manual_seed(k)
    double = {"generator": generator, "dtype": torch.float64}
    changes = torch.randn(5, k, 12, 9, **double)
    picked = torch.randint(12, (5, k), generator=generator)
    choices = torch.tensor(list(itertools.product(range(12), repeat=k)))

    def sums(p, choices):
        return torch.stack([changes[p, j, choices[:, j]] for j in range(k)]).sum(dim=0)

    missing = torch.cat([sums(p, picked[p : p + 1]) for p in range(5)])
    missing += 0.05 * torch.randn(5, 9, **double)
    for beams, chances in ((2000, 0), (8, 8), (64, 64)):
        drawn = torch.randint(12, (5, chances, k), generator=generator)
        given, counts = different(explain(Changes(changes), missing, beams, drawn))
        for p, (count, of_prompt) in enumerate(zip(counts.tolist(), given, strict=True)):
            best = choices[(sums(p, choices) - missing[p]).square().sum(dim=1).argmin()]
            assert of_prompt[0].equal(best)
            assert best.equal(picked[p])
            assert len(of_prompt.unique(dim=0)) == len(of_prompt[:count].unique(dim=0)) == count
            apart = (sums(p, of_prompt[:count]) - missing[p]).square().sum(dim=1)
            assert apart.equal(apart.sort().values)


def test_extrapolation_is_ridge_regression():
    """As numpy solves it: least squares with sqrt(ridge) rows below the features."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    sample = torch.stack([torch.randperm(50, generator=generator)[:20] for _ in range(2)])
    changes = torch.randn(2, 3, 20, 4, generator=generator, dtype=torch.float64)
    guesses, metric = extrapolate(features, sample, changes)
    everything = torch.arange(50).expand(2, -1)
    for p, j in itertools.product(range(2), range(3)):
        X = np.vstack([features[sample[p]].numpy(), np.sqrt(RIDGE) * np.eye(6)])
        mean = changes[p, j].mean(dim=0).numpy()
        Y = np.vstack([changes[p, j].numpy() - mean, np.zeros((6, 4))])
        predicted = features.numpy() @ np.linalg.lstsq(X, Y, rcond=None)[0] + mean
        given = guesses.take(j, everything)[p].numpy()
        np.testing.assert_allclose(given, predicted, rtol=1e-9)
        lengths = guesses.lengths()[p, j].numpy()
        np.testing.assert_allclose(lengths, (predicted**2).sum(axis=1), rtol=1e-9)
    assert metric.shape == (2, 4, 4)


@pytest.mark.parametrize("shown", ["[:, 1:, :]", "[:, :3+4:, :]"])
def test_snap_finds_hidden_tokens_by_descent_and_says_when_it_did(small_model, shown):
    truth = prompts(4, 8)
    answers = solve("snap", posed(small_model(d_model=64), truth, shown), steps=150, resolve=150)
    right = (tokens_of(answers) == truth).all(dim=1).tolist()
    assert sum(right) >= 3
    assert [answer.certificate == "residual" for answer in answers] == right
    many = posed(small_model(), truth[:1], "[:, 5:, :]")  # which go one by one
    (answer,) = solve("snap", many, steps=5, resolve=5)
    assert answer.certificate is None


def test_a_prior_is_bayes_rule_token_by_token(babbling):
    """Each candidate by a whole pass: what the noise and the tokens before it say of it."""
    problem = posed(babbling, prompts(2, 5, V), noise=2.0)
    for p, answer in enumerate(solve("sweep", problem, prior=2.0)):
        for t in range(5):
            tried = answer.tokens.repeat(V, 1)
            tried[:, t] = torch.arange(V)
            apart = problem.circuit.of_tokens(tried)[:, t] - problem.target[p, t]
            expected = -apart.square().sum(dim=-1) / (2 * problem.noise[p, t].square())
            if t:
                expected += 2 * babbling(answer.tokens[None])[0, t - 1].log_softmax(dim=-1)
            torch.testing.assert_close(answer.scores[t], expected, atol=1e-2, rtol=1e-3)


def test_a_prior_beats_the_sweep_under_noise_where_it_is_right(babbling):
    truth = (torch.arange(8)[:, None] * 5 + torch.arange(10)) % V  # each token its successor
    problem = posed(babbling, truth, noise=2.0)
    by_evidence = (tokens_of(solve("sweep", problem)) == truth)[:, 1:].float().mean()
    answers = solve("sweep", problem, prior=1.0)
    assert by_evidence < 0.9
    assert (tokens_of(answers) == truth)[:, 1:].float().mean() > by_evidence + 0.1
    assert not any(answer.certificate == "enumerated" for answer in answers)
    light = tokens_of(solve("sweep", problem, prior=1e-9))  # a weightless prior is none
    assert light.equal(tokens_of(solve("sweep", problem)))


def test_chance_is_one_in_the_vocabulary(small_model):
    truth = prompts(200, 20, V)
    answers = solve("chance", posed(small_model(vocab_size=V), truth, "[:, :, :]", 1))
    hits = float((tokens_of(answers) == truth).float().mean())
    assert hits == pytest.approx(1 / V, abs=4 * (1 / V / 4000) ** 0.5)
    for answer in answers:
        assert answer.scores.argmax(dim=1).equal(answer.tokens)
    assert not any(answer.certificate for answer in answers)
