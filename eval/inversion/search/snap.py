"""Snap and resolve: descent on every position, then on the hidden ones alone."""

import itertools

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.problem import Batch, Problem
from eval.inversion.solvers import ANY, Chance, solver

ALL_CHOICES = 4096  # combinations of the likeliest tokens that are run, at most


@solver(
    "search",
    hidden=range(1, ANY),
    random=True,
    cost=lambda V, T, k: 3 * 900 * T + V * k,
    title="snap and resolve",
    short="snap",
)
def snap(
    batch: Batch, chance: Chance, *, steps: int = 300, resolve: int = 600, likeliest: int = 8
) -> list[Answer]:
    """Descends on all vectors, makes the shown ones tokens, then descends on the hidden ones alone.

    With everything free, hidden embeddings are not determined: visible ones absorb their effect.
    With the visible ones fixed there are as many equations as before for few unknowns. Hidden
    tokens are read by direction behind the norm, and the likeliest few of each position are run
    exactly.

    Args:
        batch: one problem with k >= 1 hidden positions before the last one shown.
        chance: the source of each prompt's starts.
        steps: of Adam on all positions.
        resolve: of Adam on the hidden ones.
        likeliest: tokens of each hidden position that are run exactly.
    """
    (problem,) = batch.problems
    first = adam(batch, chance, steps=steps)
    tokens = torch.stack([answer.tokens for answer in first])
    free = torch.ones_like(tokens, dtype=torch.bool)
    free[:, problem.slice.positions(problem.length)] = False
    start = torch.where(free[..., None], scaled_start(batch, chance), problem.circuit.embed(tokens))
    second = adam(batch, chance, steps=resolve, start=start, free=free.to(start), decode="normed")
    answers = []
    for p, (rough, resolved) in enumerate(zip(first, second, strict=True)):
        one, hidden, visible = problem.of([p]), free[p], tokens[p][~free[p]]
        best, tried = _best(one, visible, resolved.scores[hidden], likeliest)
        whole = one.whole(best[None], visible)
        answers.append(
            Answer(
                tokens=whole[0],
                scores=torch.where(hidden[:, None], resolved.scores, rough.scores),
                certificate="residual" if one.residual(whole)[1] else None,
                evaluations=rough.evaluations + resolved.evaluations + tried,
                seconds=rough.seconds + resolved.seconds,
            )
        )
    return answers


def _best(problem: Problem, visible: Tensor, scores: Tensor, likeliest: int) -> tuple[Tensor, int]:
    """The hidden tokens that come nearest, of the likeliest at each position, `(k,)`.

    All combinations while they are few; else one position after the other. With it, how many
    tokens were run.
    """
    k, length = len(scores), problem.length
    lists = scores.topk(min(likeliest, scores.shape[1]), dim=1).indices
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
    outputs = torch.cat([problem.circuit.of_tokens(some) for some in whole.split(256)])
    return hidden[problem.distances(outputs).norm(dim=-1).argmin()]
