"""PEZ: projected gradients, those at the tokens nearest to a guess."""

import torch

from eval.inversion.gradient.descend import descend, random_tokens, with_gradient
from eval.inversion.gradient.objectives import by_distance, relative
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver

RATE = 0.1  # in standard deviations of the embedding


@solver("gradient", random=True, title="PEZ")
def pez(problem: Problem, generators: Generators, *, steps: int = 1000) -> list[Answer]:
    """Moves vectors by the gradient that is computed at their nearest tokens.

    Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by Adam. The best guess
    on the way is the answer.

    Args:
        problem: of any slice.
        generators: of each row's first guess, of random tokens.
        steps: the most that a row takes.
    """
    W = problem.vocabulary
    x = W[random_tokens(generators, (problem.length,), W)]
    best, least = x.clone(), torch.full_like(x[:, 0, 0], torch.inf)
    optimizer = torch.optim.Adam([x], lr=RATE * problem.circuit.scale)

    def step(_: int) -> int:
        nearest = W[by_distance(problem.circuit, x).argmax(dim=-1)]
        losses, x.grad = with_gradient(
            lambda e: relative(problem.shown(e), problem.target), nearest
        )
        better = losses < least
        least.copy_(torch.where(better, losses, least))
        best.copy_(torch.where(better[:, None, None], x, best))
        optimizer.step()
        return 3 * problem.length

    return descend(problem, step, lambda: by_distance(problem.circuit, best), steps)
