"""Search against brute force: enumeration, additive model, snap, prior, chance."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from arch import LanguageModel, ModelConfig
from eval.inversion.problem import Problem
from eval.inversion.search.additive import RIDGE, Changes, different, explain, extrapolate
from eval.inversion.search.by_gradient import snap
from eval.inversion.search.enumerate import enumerate_hidden
from eval.inversion.search.sweep import expected, guess, sweep
from tests.eval.inversion.search_cases import (
    posed,
    prompts,
    sharpened,
    solve,
    tokens_of,
    with_twins,
)

V = 40


def tiny(mixer: str = "flat") -> LanguageModel:
    """A vocabulary so small that all pairs can be run."""
    torch.manual_seed(2)
    sizes = {"vocab_size": V, "context": 32, "d_model": 32, "n_layers": 2, "embedding_std": 1.0}
    config = ModelConfig(mixers=(mixer,), **sizes)  # pyright: ignore[reportArgumentType]
    return LanguageModel(config).eval().requires_grad_(False)


def all_pairs(problem: Problem, truth: Tensor, at: int = 0) -> tuple[list[tuple[int, int]], float]:
    """The pairs that explain all that is shown, and the distance of the nearest other one at the
    first visible position after them."""
    pairs = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    whole = truth.repeat(len(pairs), 1)
    whole[:, at : at + 2] = pairs
    distances = problem.distances(problem.circuit.of_tokens(whole))
    near = (distances <= problem.limit).all(dim=1)
    fit = [(int(a), int(b)) for a, b in pairs[near]]
    return fit, float(distances[~(pairs == truth[at : at + 2]).all(dim=1), at].min())


def collisions(fit: list[tuple[int, int]]) -> dict[int, list[int]]:
    """As an answer gives them, of pairs at the first two positions that fit."""
    return {j: sorted({pair[j] for pair in fit}) for j in range(2)} if len(fit) > 1 else {}


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("shown", "at"), [("[:, 2:, :]", 0), ("[:, :3+5:, :]", 3)])
def test_enumeration_of_two_is_brute_force(mixer, exact, shown, at):
    truth = prompts(3, 6, V)
    problem = posed(tiny(mixer), truth, shown)
    answers = solve(enumerate_hidden, problem, exact=exact)
    assert tokens_of(answers).equal(truth)
    for p, answer in enumerate(answers):
        fit, nearest = all_pairs(problem.of([p]), truth[p], at)
        assert fit == [tuple(truth[p, at : at + 2].tolist())]
        assert not answer.collisions
        if exact:
            assert answer.certificate == "screened"
            assert 1 <= answer.notes["pairs"] <= V * V
            assert answer.evaluations > 2 * V * V
            if answer.notes["pairs"] > 1:
                assert answer.notes["nearest"] == pytest.approx(nearest, rel=1e-3)
        else:
            assert answer.certificate in ("screened", "residual")


def test_two_hidden_tokens_with_a_twin_collide():
    truth = prompts(1, 6, V)
    one = int(truth[0, 1])
    twin = next(t for t in range(V) if t not in truth[0].tolist())
    problem = posed(with_twins(tiny(), one, twin), truth, "[:, 2:, :]")
    (answer,) = solve(enumerate_hidden, problem, exact=True)
    assert answer.collisions[1] == sorted({one, twin})
    assert answer.certificate == "screened"  # bfloat16 ruled the others out, by a measured bound
    fit, _ = all_pairs(problem, truth[0])
    assert fit == sorted([(int(truth[0, 0]), one), (int(truth[0, 0]), twin)])


@pytest.mark.parametrize(
    ("exact", "shown", "length", "site", "noise"),
    [
        # in a few noisy channels pairs look alike at one position, but not at all of them
        *((True, "[:, 2:, :3]", 9, (2,), noise) for noise in (0.01, 0.3)),
        *((False, "[:, 2:, :]", 6, (1, part), noise)
          for part in ("block", "mixer") for noise in (0.02, 0.5)),
    ],
)  # fmt: skip
def test_pairs_that_explain_a_noisy_target_collide_and_no_others(exact, shown, length, site, noise):
    problem = posed(tiny(), prompts(1, length, V), shown, *site, noise=noise)
    (answer,) = solve(enumerate_hidden, problem, exact=exact)
    assert answer.certificate == "screened"
    fit, _ = all_pairs(problem, answer.tokens)
    assert answer.notes["pairs"] >= len(fit) + exact
    assert len(fit) >= (2 if not exact and noise > 0.1 else 1)
    assert answer.collisions == collisions(fit)


@pytest.mark.parametrize("exact", [True, False])
def test_a_screen_that_loses_the_answer_certifies_nothing(monkeypatch, exact):
    truth = prompts(1, 6, V)
    monkeypatch.setattr("eval.inversion.search.enumerate.SPARE", -1.0)
    (answer,) = solve(enumerate_hidden, posed(tiny(), truth, "[:, 2:, :]"), exact=exact)
    assert answer.tokens.equal(truth[0])
    assert answer.notes["pairs"] == 0
    assert answer.certificate == "residual"
    assert not answer.collisions


def test_one_hidden_token_is_enumerated(small_model):
    truth = prompts(2, 7)
    answers = solve(enumerate_hidden, posed(small_model(d_model=64), truth, "[:, 1:, :]"))
    assert tokens_of(answers).equal(truth)
    assert all(answer.certificate == "enumerated" for answer in answers)


def test_too_many_possible_pairs_leave_the_answer_as_it_was():
    problem = posed(sharpened(tiny(), 2.0), prompts(1, 6, V), "[:, 2:, :]")
    (answer,) = solve(enumerate_hidden, problem, most=1)
    assert answer.certificate == "residual"
    assert "pairs" not in answer.notes


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
    answers = solve(snap, posed(small_model(d_model=64), truth, shown), steps=150, resolve=150)
    right = (tokens_of(answers) == truth).all(dim=1).tolist()
    assert sum(right) >= 3
    assert [answer.certificate == "residual" for answer in answers] == right
    assert all(answer.scores.shape == (8, 400) for answer in answers)


def test_snap_of_many_hidden_tokens_goes_one_by_one(small_model):
    problem = posed(small_model(), prompts(1, 8), "[:, 5:, :]")
    (answer,) = solve(snap, problem, steps=5, resolve=5)
    assert answer.tokens.shape == (8,)
    assert answer.certificate is None


def babbling(follows: float) -> LanguageModel:
    """A model that expects the token after the present one, and is seldom wrong."""
    model = tiny()
    for block in model.blocks:
        for parameter in block.parameters():
            parameter.mul_(0.01)
    model.head.weight.copy_(follows * model.embedding.weight.roll(1, dims=0))
    return model


def test_a_prior_beats_the_sweep_under_noise_where_it_is_right():
    truth = (torch.arange(8)[:, None] * 5 + torch.arange(10)) % V  # each token its successor
    problem = posed(babbling(1.0), truth, noise=2.0)
    by_evidence = (tokens_of(solve(sweep, problem)) == truth)[:, 1:].float().mean()
    answers = solve(expected, problem)
    assert by_evidence < 0.9
    assert (tokens_of(answers) == truth)[:, 1:].float().mean() > by_evidence + 0.1
    assert all(answer.certificate is None for answer in answers)
    light = tokens_of(solve(expected, problem, weight=1e-9))  # a weightless prior is the sweep
    assert light.equal(tokens_of(solve(sweep, problem)))


def test_without_noise_the_prior_changes_nothing():
    truth = prompts(4, 8, V)
    assert tokens_of(solve(expected, posed(babbling(1.0), truth))).equal(truth)


def test_chance_is_one_in_the_vocabulary():
    truth = prompts(200, 20, V)
    answers = solve(guess, posed(tiny(), truth, "[:, :, :]", 1))
    hits = float((tokens_of(answers) == truth).float().mean())
    assert hits == pytest.approx(1 / V, abs=4 * (1 / V / 4000) ** 0.5)
    assert all(answer.scores.argmax(dim=1).equal(answer.tokens) for answer in answers)
    assert not any(answer.certificate for answer in answers)
