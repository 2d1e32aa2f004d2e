"""Second-order and published solvers: each finds shown tokens, and none claims what is not so."""

from collections.abc import Callable
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor

from arch import LanguageModel
from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.arca import arca
from eval.inversion.gradient.gcg import gcg
from eval.inversion.gradient.guess import gradient_at, losses_of
from eval.inversion.gradient.gumbel import gumbel
from eval.inversion.gradient.lbfgs import lbfgs
from eval.inversion.gradient.levenberg import levenberg
from eval.inversion.gradient.pez import pez
from eval.inversion.gradient.pia import pia
from eval.inversion.gradient.soda import soda
from eval.inversion.problem import Problem, pose
from eval.inversion.spaces import objective
from eval.slices import Slice
from tests.eval.inversion.search_cases import chance, prompts

Solve = Callable[..., list[Answer]]
METHODS: dict[Solve, dict[str, Any]] = {
    levenberg: {"steps": 6},
    lbfgs: {"steps": 60},
    pez: {"steps": 200},
    gumbel: {"steps": 200, "samples": 8, "warm": 1.0},
    soda: {"steps": 300},
    gcg: {"steps": 100, "width": 64},
    arca: {"sweeps": 4, "samples": 4, "top": 32},
    pia: {"steps": 200},
}
every_method = pytest.mark.parametrize("solve", METHODS, ids=lambda solve: solve.__name__)


TRUTH = prompts(3, 6)


def posed(model: LanguageModel, truth: Tensor, layer: int, shown: Slice) -> Problem:
    return pose(Circuit(model, layer), truth, shown)


@every_method
@pytest.mark.parametrize("mixer", ["flat", "attention"])
def test_shown_tokens_are_recovered(small_model, solve, mixer):
    truth = TRUTH
    batch = Batch((posed(small_model(mixers=(mixer,)), truth, 2, Slice(0)),))
    answers = solve(batch, chance(3), **METHODS[solve])
    right = torch.stack([answer.tokens for answer in answers]) == truth
    assert right.float().mean() >= 0.8
    for answer, hits in zip(answers, right, strict=True):
        assert answer.scores.argmax(dim=-1).equal(answer.tokens)
        assert (answer.certificate == "residual") == bool(hits.all())
        assert (answer.steps is not None) == bool(hits.all())
        assert answer.evaluations > 0


@every_method
def test_a_wrong_certificate_is_never_claimed(small_model, solve):
    """Hidden positions and too few steps: what is claimed is so."""
    truth = TRUTH
    few = METHODS[solve] | ({"sweeps": 1} if solve is arca else {"steps": 3})
    problem = posed(small_model(), truth, 2, Slice(2))
    answers = solve(Batch((problem,)), chance(3), **few)
    explained = problem.residual(torch.stack([answer.tokens for answer in answers]))[1]
    for answer, proved, tokens in zip(answers, explained.tolist(), truth, strict=True):
        assert (answer.certificate == "residual") == proved
        assert not proved or answer.tokens.equal(tokens)


@every_method
def test_rows_do_not_touch_each_other(small_model, solve):
    model, truth = small_model(), TRUTH[:2]
    problems = (posed(model, truth, 2, Slice(1)), posed(model, truth, 1, Slice(0, None, 0, 24)))
    few = {"sweeps": 1} if solve is arca else {"steps": 8, "check": 4}
    answers = solve(Batch(problems), chance(4), **(METHODS[solve] | few))
    for row, answer in enumerate(answers):
        alone = Batch((problems[row // 2].of([row % 2]),))
        (one,) = solve(alone, [chance(4)[row]], **(METHODS[solve] | few))
        assert answer.tokens.equal(one.tokens)
        assert answer.steps == one.steps


def test_levenberg_is_exact_where_the_circuit_is_linear(small_model):
    """At layer 0 the outputs are the embeddings: a few steps leave nothing but rounding."""
    model, truth = small_model(), TRUTH[:2]
    batch = Batch((posed(model, truth, 0, Slice(0)),))
    answers = levenberg(batch, chance(2), steps=4, check=4, decode="dot")
    for answer, tokens in zip(answers, truth, strict=True):
        expected = model.embed(tokens) @ model.embedding.weight.T
        assert torch.allclose(answer.scores, expected, atol=1e-2)


def test_lbfgs_reaches_what_scipy_reaches(small_model):
    model, truth = small_model(mixers=("flat",)), prompts(1, 3)
    batch = Batch((posed(model, truth, 1, Slice(1, None, 0, 20)),))
    loss = objective("relative")
    start = scaled_start(batch, chance(1))

    def value(x):
        at = torch.tensor(x, dtype=torch.float32).view(1, 3, 32).requires_grad_()
        found = batch.losses(at, loss)[0]
        found.backward()
        assert at.grad is not None
        return found.item(), at.grad.flatten().double().numpy()

    best = scipy.optimize.minimize(
        value, start.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 100}
    )
    answers = [solve(batch, chance(1), steps=60, decode="dot") for solve in (lbfgs, levenberg)]
    inverse = torch.linalg.pinv(model.embedding.weight)
    for (answer,) in answers:
        reached = float(batch.losses((answer.scores @ inverse.T)[None], loss)[0])
        assert reached < max(1e-6, 2 * best.fun)
        assert reached < 1e-4 * float(batch.losses(start, loss)[0])


def test_guesses_are_evaluated_as_one_by_one(small_model):
    model, truth = small_model(), TRUTH[:2]
    problems = (posed(model, truth, 2, Slice(1)), posed(model, truth, 1, Slice(0)))
    guesses = torch.randint(400, (4, 5, 6), generator=torch.Generator().manual_seed(1))
    losses = losses_of(Batch(problems), guesses, objective("l1"))
    for row in range(4):
        problem = problems[row // 2]
        outputs = problem.slice.select(problem.circuit.of_tokens(guesses[row]))
        expected = (outputs - problem.target[row % 2]).abs().sum(dim=(1, 2))
        assert torch.allclose(losses[row], expected, rtol=1e-4)


def test_the_gradient_at_tokens_is_autograds(small_model):
    model, truth = small_model(mixers=("attention",)), prompts(2, 6)
    batch = Batch((posed(model, truth, 1, Slice(0)),))
    guess = prompts(4, 6)[2:]
    x = model.embed(guess).requires_grad_()
    target = model.hidden(model.embed(truth), 1)
    (model.hidden(x, 1) - target).square().sum().backward()
    assert x.grad is not None
    assert torch.allclose(gradient_at(batch, guess, objective("square")), x.grad, rtol=1e-4)
