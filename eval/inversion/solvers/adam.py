"""Gradient descent by Adam on the model's input, at the embedding's own scale."""

import math

import torch
from torch import Tensor

from eval.inversion.gradient.descend import descend, scaled_rate, scaled_start, with_gradient
from eval.inversion.gradient.objectives import (
    OBJECTIVES,
    by_distance,
    by_normed_direction,
    model_input,
)
from eval.inversion.problem import Chance, Problem
from eval.inversion.solver import Answer, solver

RATE = 0.2  # the first one, in standard deviations of the embedding


@solver("gradient", random=True, title="Adam at the model's scale")
def adam(
    problem: Problem,
    chance: Chance,
    *,
    steps: int = 300,
    objective: str = "relative",
    variable: str = "embedding",
) -> list[Answer]:
    """Gradient descent by Adam, its start and step size scaled to the model's own embedding.

    Kingma & Ba, 1412.6980, with the rate falling along a half cosine. The start is N(mean, std) of
    the embedding's entries, the rate in units of their standard deviation; for a vector over the
    vocabulary both are such that the embeddings move alike.

    Args:
        problem: of any slice.
        chance: the source of each row's start.
        steps: the most that a row takes.
        objective: that is lowered.
        variable: that is descended on.
    """
    x = scaled_start(problem, chance, variable)
    return descend_by_adam(problem, x, steps, objective=objective, variable=variable)


def descend_by_adam(
    problem: Problem,
    x: Tensor,
    steps: int,
    *,
    objective: str = "relative",
    variable: str = "embedding",
    free: Tensor | None = None,
    normed: bool = False,
) -> list[Answer]:
    """Adam from a start.

    Args:
        problem: of any slice.
        x: the start, `(P, T, D)` or `(P, T, V)`; it is moved.
        steps: the most that a row takes.
        objective: that is lowered.
        variable: that is descended on.
        free: which positions are descended on, `(P, T)` booleans; the others stay as they start.
        normed: whether tokens are read by their direction behind the first norm, not by distance.
    """
    loss, decode = OBJECTIVES[objective], by_normed_direction if normed else by_distance
    optimizer = torch.optim.Adam([x], lr=scaled_rate(problem, RATE, variable))
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: (1 + math.cos(math.pi * i / steps)) / 2
    )

    def read(x: Tensor) -> Tensor:
        return model_input(variable, x, problem.vocabulary)

    def step(_: int) -> int:
        x.grad = with_gradient(lambda x: loss(problem.shown(read(x)), problem.target), x)[1]
        if free is not None:
            x.grad *= free[..., None]
        optimizer.step()
        falling.step()
        return 3 * problem.length

    return descend(problem, step, lambda: decode(problem.circuit, read(x)), steps)
