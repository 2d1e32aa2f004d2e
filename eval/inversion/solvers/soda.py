"""SODA: a decaying softmax over the vocabulary at each position."""

import torch
from torch import Tensor

from eval.inversion.gradient.descend import descend, normal, with_gradient
from eval.inversion.gradient.objectives import huber, model_input
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver

RATE = 0.065  # of Adam on z
KEPT = 0.9  # the fraction of z that is kept at every step
TEMPERATURE = 0.05  # of the softmax
NOISE = 0.1  # standard deviation of the start, which is zeros in the paper
BETAS = 0.9, 0.995
FORGET = 50  # steps after which the moments start anew


@solver("gradient", random=True, title="SODA")
def soda(problem: Problem, generators: Generators, *, steps: int = 1000) -> list[Answer]:
    """Descends on a softmax over the vocabulary at each position, with decay and restarts of Adam.

    Sparse one-hot discrete Adam (Skapars et al., 2507.01693). The model reads
    softmax(z / temperature) W. Adam has no bias correction; z decays at every step, and every 50
    steps Adam's moments start anew.

    Args:
        problem: of any slice.
        generators: of each row's start.
        steps: the most that a row takes.
    """
    W = problem.vocabulary
    z = NOISE * normal(generators, (problem.length, len(W)), W)
    optimizer = torch.optim.Adam([z], betas=BETAS)

    def read(z: Tensor) -> Tensor:
        return model_input("softmax", z / TEMPERATURE, W)

    def step(i: int) -> int:
        taken = i % FORGET + 1
        if taken == 1:
            optimizer.state.clear()
        # torch's Adam corrects for the start of both moments; the rate takes that back
        correction = (1 - BETAS[0] ** taken) / (1 - BETAS[1] ** taken) ** 0.5
        optimizer.param_groups[0]["lr"] = RATE * correction
        z.grad = with_gradient(lambda z: huber(problem.shown(read(z)), problem.target), z)[1]
        optimizer.step()
        z.mul_(KEPT)
        return 3 * problem.length

    return descend(problem, step, lambda: z, steps)
