"""Gradient solvers: descent is its plain restatement, each finds shown tokens, rows stand alone."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from eval import RequestError, open_model
from eval.inversion.gradient.descend import random_tokens
from eval.inversion.request import Inversion
from eval.inversion.scoring import score_answer, score_arrivals
from eval.inversion.solver import ask_solver, solvers
from eval.inversion.solvers.descent import descent
from eval.inversion.solvers.gcg import gradient_at, losses_of
from tests.eval.inversion.search_cases import QUICK, generators, posed, prompts, solve, tokens_of
from tests.said import one_line


def plain_descent(target: Tensor, x: Tensor, shown: Any, steps: int, rate: float) -> Tensor:
    """The published loop, one prompt at a time: `shown` gives the outputs of x."""
    for i in range(steps):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad((shown(x) - target).abs().sum(), x)
        x = x - (rate * (steps - i) / steps + rate / 10 * i / steps) * slope
    return x.detach()


@pytest.mark.parametrize(
    ("variable", "steps", "rate"),
    [("embedding", 40, 0.02), ("vocabulary", 10, 1e-3), ("softmax", 10, 1e-3)],
)
def test_descent_is_the_published_protocol(small_model, variable, steps, rate):
    """On embeddings with its test of arrival; on vectors over the vocabulary the same loop."""
    model, truth = small_model(mixers=("attention",)), prompts()
    W, settings = model.embedding.weight, {"steps": steps, "rate": rate, "variable": variable}
    asked = solvers()["descent"].configured(settings)
    problem, drawn = posed(model, truth, "[:, 1:, :]", 2), generators(3)
    answers = descent(problem, drawn, **settings)
    arrivals = score_arrivals(asked, problem, answers, truth, drawn)

    def outputs(embeddings):
        return model.hidden(embeddings, 2)[:, 1:, :]

    def shown(x):
        x = x.softmax(dim=-1) if variable == "softmax" else x
        return outputs(x if variable == "embedding" else x @ W)

    for p, generator in enumerate(generators(3)):
        embeddings = model.embed(truth[p : p + 1])
        target = outputs(embeddings)
        start = torch.randn(8, 32 if variable == "embedding" else 400, generator=generator)[None]
        noise = torch.randn(embeddings.shape[1:], generator=generator)[None]
        x = plain_descent(target, start, shown, steps, rate)
        decoded = (x @ torch.linalg.pinv(W) if variable == "embedding" else x)[0]
        assert torch.allclose(answers[p].scores, decoded, atol=1e-4)
        assert answers[p].tokens.equal(decoded.argmax(dim=-1))
        assert answers[p].steps is None
        bar, reached = (
            (o - target).abs().sum() for o in (outputs(embeddings + noise / 20), shown(x))
        )
        assert arrivals[p] == (bool(reached < bar), pytest.approx(float(reached), rel=1e-3))


def test_sequential_descent_sees_one_output_at_a_time(small_model):
    model, truth, steps, rate = small_model(mixers=("attention",)), prompts(1, 4), 15, 0.02
    settings: dict[str, Any] = {"steps": steps, "rate": rate, "sequential": True}
    (found,) = solve("descent", posed(model, truth, "[:, 1:, :]"), **settings)
    x = torch.randn(4, 32, generator=generators(1)[0])[None]
    target = model.hidden(model.embed(truth), 2)
    for t in range(1, 4):

        def shown(here, t=t, before=x[:, :t]):
            return model.hidden(torch.cat([before, here], dim=1), 2)[:, t]

        moved = plain_descent(target[:, t], x[:, t : t + 1], shown, steps, rate)
        x = torch.cat([x[:, :t], moved, x[:, t + 1 :]], dim=1)
    decoded = (x @ torch.linalg.pinv(model.embedding.weight))[0]
    assert torch.allclose(found.scores, decoded, atol=1e-4)


class Direction:
    """Adam's next step for a rate of one (Kingma & Ba), written out."""

    def __init__(self, first: float = 0.9, second: float = 0.999, corrected: bool = True) -> None:
        self.rates, self.corrected = (first, second), corrected
        self.moments, self.count = [torch.zeros(()), torch.zeros(())], 0

    def __call__(self, slope: Tensor) -> Tensor:
        self.count += 1
        for n, value in enumerate((slope, slope.square())):
            self.moments[n] = self.rates[n] * self.moments[n] + (1 - self.rates[n]) * value
        first, second = (
            moment / (1 - rate**self.count) if self.corrected else moment
            for moment, rate in zip(self.moments, self.rates, strict=True)
        )
        least = 1e-8 if self.corrected else 1e-8 * (1 - self.rates[1] ** self.count) ** 0.5
        return first / (second.sqrt() + least)


def slope_at(x: Tensor, loss: Any) -> tuple[float, Tensor]:
    """A loss at x and its slope."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value := loss(x), x)
    return float(value.detach()), slope


def plain_adam(outputs: Any, target: Tensor, W: Tensor, shape: int, draw: Any) -> Tensor:
    x, direction = torch.randn(shape, W.shape[1], generator=draw) * W.std() + W.mean(0), Direction()
    for i in range(STEPS):
        rate = 0.2 * W.std() * (1 + math.cos(math.pi * i / STEPS)) / 2
        _, slope = slope_at(x, lambda x: relative(outputs(x), target))
        x = x - rate * direction(slope)
    return -torch.cdist(x, W)


def plain_pez(outputs: Any, target: Tensor, W: Tensor, shape: int, draw: Any) -> Tensor:
    x, direction = W[torch.randint(len(W), (shape,), generator=draw)], Direction()
    best, least = x, math.inf
    for _ in range(STEPS):
        nearest = W[torch.cdist(x, W).argmin(1)]
        loss, slope = slope_at(nearest, lambda x: relative(outputs(x), target))
        best, least = (x, loss) if loss < least else (best, least)
        x = x - 0.1 * W.std() * direction(slope)
    return -torch.cdist(best, W)


def plain_soda(outputs: Any, target: Tensor, W: Tensor, shape: int, draw: Any) -> Tensor:
    z, direction = 0.1 * torch.randn(shape, len(W), generator=draw), Direction(0.9, 0.995, False)
    for _ in range(STEPS):
        _, slope = slope_at(z, lambda z: F.huber_loss(outputs((z / 0.05).softmax(-1) @ W), target))
        z = 0.9 * (z - 0.065 * direction(slope))
    return z


def relative(outputs: Tensor, target: Tensor) -> Tensor:
    return ((outputs - target).norm(dim=-1) / target.norm(dim=-1)).square().sum()


STEPS = 20


@pytest.mark.parametrize(
    ("name", "plain"), [("adam", plain_adam), ("pez", plain_pez), ("soda", plain_soda)]
)
def test_steps_are_those_of_the_papers(small_model, name, plain):
    model = small_model(mixers=("attention",))
    problem = posed(model, prompts(1, 6), "[:, 3:, :]")
    (found,) = solve(name, problem, steps=STEPS)

    def outputs(x: Tensor) -> Tensor:
        return model.hidden(x[None], 2)[0, 3:]

    expected = plain(outputs, problem.target[0], model.embedding.weight, 6, generators(1)[0])
    torch.testing.assert_close(found.scores, expected, atol=2e-3, rtol=2e-3)


def test_adam_recovers_visible_tokens_where_the_protocol_is_lost(small_model):
    """Embeddings of 0.02, as Llama starts with: the protocol's start and rate are not its scale."""
    model = small_model(mixers=("attention",), norm="rmsnorm", embedding_std=0.02)
    truth = prompts()
    problem = posed(model, truth)
    assert tokens_of(solve("adam", problem, **QUICK["adam"])).equal(truth)
    protocol = solve("descent", problem, steps=300)
    assert not tokens_of(protocol).equal(truth)


TRUTH = prompts(3, 6)


@pytest.mark.parametrize(
    ("name", "mixer", "settings"),
    [
        ("adam", "flat", {}),
        ("adam", "attention", {}),
        ("pez", "attention", QUICK["pez"]),
        ("soda", "flat", QUICK["soda"]),
        ("gcg", "attention", QUICK["gcg"]),
    ],
)
def test_shown_tokens_are_recovered(small_model, name, settings, mixer, monkeypatch):
    """Rows are done when they are solved; the model stays as it is."""
    monkeypatch.setattr("eval.inversion.gradient.descend.CHECK", 10)
    model = small_model(mixers=(mixer,))
    before = {part: weight.clone() for part, weight in model.named_parameters()}
    answers = solve(name, posed(model, TRUTH), **settings)
    right = tokens_of(answers) == TRUTH
    assert right.float().mean() >= 0.8
    for answer, hits in zip(answers, right, strict=True):
        assert answer.scores.argmax(dim=-1).equal(answer.tokens)
        assert (answer.certificate == "residual") == bool(hits.all())
        assert (answer.steps is not None) == bool(hits.all())
        assert answer.evaluations > 0
        if name == "adam" and answer.steps:
            assert answer.steps % 10 == 0
            assert answer.evaluations == 6 * (3 * answer.steps + answer.steps // 10)
    assert all(p.equal(before[part]) and p.grad is None for part, p in model.named_parameters())


def ranked(truth):
    return lambda answer, row: score_answer(answer, truth[row])


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["descent", "adam", "pez", "soda", "gcg"])
def test_rows_do_not_touch_each_other(small_model, name):
    problem = posed(small_model(mixers=("attention+flat",)), TRUTH, "[:, 1:, :20]")
    asked = solvers()[name].configured(QUICK[name] | {"steps": 20})
    (together,) = ask_solver(asked, [problem], generators(3), ranked(TRUTH))
    for row, one in enumerate(together):
        single = [problem.of([row])], [generators(3)[row]], ranked(TRUTH[[row]])
        ((alone,),) = ask_solver(asked, *single)
        assert one.tokens.equal(alone.tokens)
        assert one.ranks is not None
        assert alone.ranks is not None
        torch.testing.assert_close(one.ranks, alone.ranks, atol=2, rtol=0)
        for field in ("steps", "evaluations", "certificate"):
            assert getattr(one, field) == getattr(alone, field)


def test_losses_of_guesses_and_their_gradient_are_autograds(small_model):
    model = small_model(mixers=("attention",))
    problem, guesses = posed(model, TRUTH, "[:, 1:, :]"), prompts(15, 6, seed=1).view(3, 5, 6)
    target = model.hidden(model.embed(TRUTH), 2)[:, None, 1:]
    x = model.embed(guesses).requires_grad_()
    outputs = model.hidden(x.flatten(0, 1), 2).unflatten(0, (3, 5))[:, :, 1:]
    losses = ((outputs - target).norm(dim=-1) / target.norm(dim=-1)).square().sum(dim=-1)
    assert torch.allclose(losses_of(problem, guesses), losses, rtol=1e-4)
    (slope,) = torch.autograd.grad(losses.sum(), x)
    assert torch.allclose(gradient_at(problem, guesses[:, 2]), slope[:, 2], rtol=1e-4, atol=1e-5)


def test_the_answer_of_gcg_is_its_guess_however_small_the_target(small_model):
    """A step exchanges one token; the gradient's favourites stood in the place of all others."""
    problem = posed(small_model(mixers=("attention",)), TRUTH[:1])
    problem = replace(problem, target=problem.target * 1e-6)
    (found,) = solve("gcg", problem, steps=1)
    (start,) = random_tokens(generators(1), (6,), problem.vocabulary)
    assert (found.tokens != start).sum() <= 1


def test_allowed_words_that_a_tokenizer_lacks_are_refused(small_model, small_tokenizer):
    """The token of unknown words was allowed in their place."""
    checkpoint = open_model(small_model(), tokenizer=small_tokenizer)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    checkpoint = replace(checkpoint, tokenizer=tokenizer)
    assert Inversion(allowed="the <unk>").allowed_tokens(checkpoint) == (0, 1)
    with one_line(RequestError, "--allowed 'the zebra'"):
        Inversion(allowed="the zebra").allowed_tokens(checkpoint)
