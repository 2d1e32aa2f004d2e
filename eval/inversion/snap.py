"""Snap and resolve: descent on the hidden tokens alone, once the visible ones are tokens.

With everything free, hidden embeddings can be anything: each visible one absorbs what they do. So
descend on all, snap the visible positions to tokens, then descend on the hidden ones only, which
leaves as many equations as before for few unknowns. Hidden tokens are read by direction behind the
norm, and the likeliest few of each position are run exactly.
"""

import itertools

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.lexicon import Lexicon
from eval.inversion.problem import Problem

ALL_CHOICES = 4096  # combinations of the likeliest tokens that are run, at most


def snap(
    problem: Problem,
    lexicon: Lexicon,
    chance: list[torch.Generator],
    steps: int = 300,
    resolve: int = 600,
    likeliest: int = 8,
) -> list[Answer]:
    """Recovers P prompts whose first k positions are hidden, `[:, k:, :]`.

    Args:
        problem: k >= 1.
        lexicon: not used.
        chance: the source of each prompt's starts.
        steps: of Adam on all positions.
        resolve: of Adam on the hidden ones.
        likeliest: tokens of each hidden position that are run exactly.
    """
    batch, k = Batch((problem,)).keeping_scores(), problem.hidden
    assert k
    first = adam(batch, chance, steps=steps)
    tokens = torch.stack([answer.tokens for answer in first])
    start = scaled_start(batch, chance)
    start[:, k:] = problem.circuit.embed(tokens[:, k:])
    free = (torch.arange(problem.length, device=tokens.device) < k).expand(tokens.shape)
    second = adam(batch, chance, steps=resolve, start=start, free=free.to(start), decode="normed")
    answers = []
    for p, (found, resolved) in enumerate(zip(first, second, strict=True)):
        best = _best(problem.of([p]), tokens[p, k:], resolved.scores[:k], likeliest)
        answer = Answer(
            tokens=torch.cat([best, tokens[p, k:]]),
            scores=torch.cat([resolved.scores[:k], found.scores[k:]]),
            evaluations=found.evaluations + resolved.evaluations,
            seconds=found.seconds + resolved.seconds,
        )
        answer.evaluations += likeliest * k * problem.length
        answer.certificate = (
            "residual" if problem.of([p]).residual(answer.tokens[None])[1] else None
        )
        answers.append(problem.ranked(p, answer))
    return answers


def _best(problem: Problem, visible: Tensor, scores: Tensor, likeliest: int) -> Tensor:
    """The hidden tokens that come nearest, of the likeliest at each position, `(k,)`.

    All combinations while they are few; else one position after the other.
    """
    k = len(scores)
    lists = scores.topk(min(likeliest, scores.shape[1]), dim=1).indices
    if lists.shape[1] ** k <= ALL_CHOICES:
        return _nearest(problem, torch.tensor(list(itertools.product(*lists.tolist()))), visible)
    best = lists[:, 0].clone()
    for j in list(range(k)) * 2:
        tried = best.repeat(lists.shape[1], 1)
        tried[:, j] = lists[j]
        best = _nearest(problem, tried, visible)
    return best


def _nearest(problem: Problem, hidden: Tensor, visible: Tensor) -> Tensor:
    hidden = hidden.to(visible.device)
    whole = torch.cat([hidden, visible.expand(len(hidden), -1)], dim=1)
    outputs = torch.cat([problem.circuit.of_tokens(some) for some in whole.split(256)])
    return hidden[problem.distances(outputs).norm(dim=-1).argmin()]
