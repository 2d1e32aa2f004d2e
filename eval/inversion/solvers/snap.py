"""Snap and resolve: shown tokens first, then a descent on the hidden ones alone."""

import itertools

import torch
from torch import Tensor

from eval.inversion.gradient.descend import scaled_start
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import ANY, Answer, solver
from eval.inversion.solvers.adam import adam, descend_by_adam

LIKELIEST = 8  # tokens of each hidden position that are run exactly
ALL_CHOICES = 4096  # combinations of the likeliest tokens that are run, at most
TOGETHER = 256  # prompts that are run at once


@solver("search", hidden=range(1, ANY), random=True, title="snap and resolve")
def snap(
    problem: Problem, generators: Generators, *, steps: int = 300, resolve: int = 600
) -> list[Answer]:
    """Descends on all vectors, makes the shown ones tokens, then descends on the hidden ones alone.

    If all vectors are free, the hidden ones are not determined, as the shown ones absorb their
    effect. With the shown ones fixed, as many equations as before determine few unknowns. Hidden
    tokens are read by the direction of their vectors after the norm, and the likeliest few at each
    position are run exactly.

    Args:
        problem: with k >= 1 hidden positions before the last one shown.
        generators: of each prompt's starts.
        steps: steps of Adam on all positions.
        resolve: steps of Adam on the hidden ones.
    """
    first = adam(problem, generators, steps=steps)
    tokens = torch.stack([answer.tokens for answer in first])
    free = torch.ones_like(tokens, dtype=torch.bool)
    free[:, problem.positions] = False
    known = problem.circuit.embed(tokens)
    start = torch.where(free[..., None], scaled_start(problem, generators), known)
    second = descend_by_adam(problem, start, resolve, free=free, normed=True)
    answers = []
    for p, (rough, resolved) in enumerate(zip(first, second, strict=True)):
        single, hidden, visible = problem.of([p]), free[p], tokens[p][~free[p]]
        best, tried = _best(single, visible, resolved.scores[hidden])
        answers.append(
            Answer(
                tokens=single.whole(best[None], visible)[0],
                scores=torch.where(hidden[:, None], resolved.scores, rough.scores),
                evaluations=rough.evaluations + resolved.evaluations + tried,
            )
        )
    return answers


def _best(problem: Problem, visible: Tensor, scores: Tensor) -> tuple[Tensor, int]:
    """The hidden tokens that come nearest, of the likeliest at each position, `(k,)`.

    All combinations while they are few; else one position after the other. With it, how many
    tokens were run.
    """
    k, length = len(scores), problem.length
    lists = scores.topk(min(LIKELIEST, scores.shape[1]), dim=1).indices
    count = lists.shape[1]
    if count**k <= ALL_CHOICES:
        choices = torch.tensor(list(itertools.product(*lists.tolist())))
        return _nearest(problem, choices, visible), count**k * length
    best = lists[:, 0].clone()
    for j in list(range(k)) * 2:
        tried = best.repeat(count, 1)
        tried[:, j] = lists[j]
        best = _nearest(problem, tried, visible)
    return best, 2 * k * count * length


def _nearest(problem: Problem, hidden: Tensor, visible: Tensor) -> Tensor:
    hidden = hidden.to(visible.device)
    whole = problem.whole(hidden, visible)
    outputs = torch.cat([problem.circuit.of_tokens(batch) for batch in whole.split(TOGETHER)])
    return hidden[problem.distances(outputs).norm(dim=-1).argmin()]
