"""Gradient solvers: descent on the embeddings of all prompts at once.

The problems of a batch do not touch each other: their losses are summed, so each one's gradient is
its own. Parameters carry no gradient.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.decode import by_distance, by_pseudo_inverse
from eval.inversion.problem import Problem

SHIFT = 0.05  # the reference's criterion compares with an input shifted by this much noise


def descent(
    problem: Problem,
    truth: Tensor,
    generators: list[torch.Generator],
    steps: int = 500,
    rate: float = 0.02,
) -> list[Answer]:
    """The reference's protocol to the letter (Badger, 2409.01482, and its published code).

    Start N(0, 1); loss the L1 distance summed over the slice; plain gradient steps at a rate that
    falls linearly to a tenth; tokens by the embedding's pseudo-inverse. Converged means nearer to
    the target than the outputs of the true embeddings shifted by 0.05 N(0, 1): recorded, not used.

    Args:
        problem: any slice.
        truth: the tokens, `(P, T)`, which only that criterion looks at.
        generators: the source of each prompt's start.
        steps: N; 500 in the reference.
        rate: the first rate; 0.02 in the reference's mixer code.
    """
    started = time.perf_counter()
    circuit = problem.circuit
    true_embeddings = circuit.model.embed(truth)
    x = _normal(generators, true_embeddings)
    with torch.no_grad():
        shifted = true_embeddings + SHIFT * _normal(generators, true_embeddings)
        bar = _l1(problem, circuit(shifted))
    for i in range(steps):
        falling = (rate * (steps - i) + rate / 10 * i) / steps
        x = x - falling * _gradient(problem, x, _l1)
    with torch.no_grad():
        criterion = _l1(problem, circuit(x)) < bar
    answers = _answers(problem, by_pseudo_inverse(circuit, x), steps, started)
    for answer, passed in zip(answers, criterion.tolist(), strict=True):
        answer.criterion = passed
    return answers


def adam(
    problem: Problem, generators: list[torch.Generator], steps: int = 300, rate: float = 0.2
) -> list[Answer]:
    """Adam (Kingma & Ba, 1412.6980) at the model's own scale.

    Start N(mean, std) of the embedding's entries; loss the squared distance of each position in
    units of its target's length, so that no position drowns the others; a rate in units of the
    embedding's standard deviation, falling along a half cosine; tokens by Euclidean distance.

    Args:
        problem: any slice.
        generators: the source of each prompt's start.
        steps: number of steps.
        rate: the first rate, in standard deviations of the embedding.
    """
    started = time.perf_counter()
    circuit = problem.circuit
    P, T, D = len(problem.target), problem.length, circuit.vocabulary.shape[1]
    x = _normal(generators, circuit.vocabulary.new_empty(P, T, D)) * circuit.scale
    x = (x + circuit.vocabulary.mean(dim=0)).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate * circuit.scale)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x.grad = _gradient(problem, x, _relative_square)
        optimiser.step()
        schedule.step()
    return _answers(problem, by_distance(circuit, x.detach()), steps, started)


def _l1(problem: Problem, outputs: Tensor) -> Tensor:
    return (problem.slice.select(outputs) - problem.target).abs().sum(dim=(1, 2))


def _relative_square(problem: Problem, outputs: Tensor) -> Tensor:
    unit = problem.target.square().sum(dim=-1)
    return ((problem.slice.select(outputs) - problem.target).square().sum(dim=-1) / unit).sum(dim=1)


def _gradient(problem: Problem, x: Tensor, loss: Callable[[Problem, Tensor], Tensor]) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(problem, problem.circuit(x)).sum(), x)
    return gradient


def _normal(generators: list[torch.Generator], like: Tensor) -> Tensor:
    """N(0, 1) of that shape, each prompt from its own source: no prompt depends on its batch."""
    rows: Iterator[Tensor] = (torch.randn(like.shape[1:], generator=g) for g in generators)
    return torch.stack(list(rows)).to(like)


def _answers(problem: Problem, scores: Tensor, steps: int, started: float) -> list[Answer]:
    P = len(scores)
    seconds = (time.perf_counter() - started) / P
    return [
        Answer(
            tokens=scores[p].argmax(dim=-1),
            scores=scores[p],
            evaluations=3 * steps * problem.length,
            seconds=seconds,
        )
        for p in range(P)
    ]
