"""Gradient descent by Adam on the model's input, at the embedding's own scale."""

import math

import torch
from torch import Tensor

from eval.inversion.gradient.descend import descend, scaled_start, with_gradient
from eval.inversion.gradient.objectives import by_distance, by_normed_direction, relative
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver

RATE = 0.2  # the first one, in standard deviations of the embedding


@solver("gradient", random=True, title="Adam at the model's scale")
def adam(problem: Problem, generators: Generators, *, steps: int = 300) -> list[Answer]:
    """Gradient descent by Adam, its start and step size scaled to the model's own embedding.

    Adam (Kingma & Ba, 1412.6980) with a rate that falls along a half cosine. The start is drawn
    from N(mean, std) of the embedding's entries, and the rate is in units of their standard
    deviation. The loss is the squared distance, in units of each target's length.

    Args:
        problem: of any slice.
        generators: of each row's start.
        steps: the most that a row takes.
    """
    return descend_by_adam(problem, scaled_start(problem, generators), steps)


def descend_by_adam(
    problem: Problem,
    x: Tensor,
    steps: int,
    *,
    free: Tensor | None = None,
    normed: bool = False,
) -> list[Answer]:
    """Descends by Adam from a start.

    Args:
        problem: of any slice.
        x: the start, `(P, T, D)`; it is moved.
        steps: the most that a row takes.
        free: which positions are descended on, `(P, T)` booleans; the others stay as they start.
        normed: whether tokens are read by their direction behind the first norm, not by distance.
    """
    decode = by_normed_direction if normed else by_distance
    optimizer = torch.optim.Adam([x], lr=RATE * problem.circuit.scale)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: (1 + math.cos(math.pi * i / steps)) / 2
    )

    def step(_: int) -> int:
        x.grad = with_gradient(lambda x: relative(problem.shown(x), problem.target), x)[1]
        if free is not None:
            x.grad *= free[..., None]
        optimizer.step()
        falling.step()
        return 3 * problem.length

    return descend(problem, step, lambda: decode(problem.circuit, x), steps)
