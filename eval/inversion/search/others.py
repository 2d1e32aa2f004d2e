"""The solvers beside exact search: snap and resolve, search with a prior, and chance."""

import itertools
import time

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.problem import Problem
from eval.inversion.search.sweep import try_all
from eval.inversion.solvers import ANY, NONE, Chance, Tools, solver

ALL_CHOICES = 4096  # combinations of the likeliest tokens that are run, at most


@solver("control", random=True, cost=lambda V, T, k: T)
def chance(batch: Batch, chance: Chance, tools: Tools = NONE) -> list[Answer]:
    """Random tokens, without looking: the control that every figure is compared with."""
    V, answers = len(batch.circuit.vocabulary), []
    for row, generator in enumerate(chance):
        scores = torch.rand(batch.length, V, generator=generator)
        answers.append(batch.ranked(row, Answer(scores.argmax(dim=-1), scores)))
    return answers


@solver(
    "prior",
    hidden=range(1),
    cost=lambda V, T, k: 2 * V * T,
    title="search with a prior",
    short="with prior",
    word="prior",
)
def expected(
    batch: Batch, chance: Chance, tools: Tools = NONE, *, weight: float = 1.0
) -> list[Answer]:
    """A sweep that weighs the evidence against what the model itself expects to come next.

    With Gaussian noise in the target the nearest token is the likeliest one if all tokens are
    alike. They are not: the model that is being inverted says how likely each is after the tokens
    before it. Adding that (maximum a posteriori) finds more, but measures the prior along with the
    evidence. What is lowered is -log p(target | token) - weight * log p(token | those before), for
    noise known.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        tools: not used.
        weight: of the prior; 1 is Bayes' rule.
    """
    (problem,) = batch.problems
    started = time.perf_counter()
    model, (P, S, C) = problem.circuit.model, problem.target.shape
    whole = Circuit(model, len(model.blocks))
    state, after, tokens, all_scores = None, None, [], []
    prior = problem.target.new_zeros(P, len(problem.circuit.vocabulary))  # nothing stands before
    for t in range(S):
        apart = try_all(problem, t, state)
        rounding = problem.floor[:, t, None].square() / C
        variance = problem.noise[:, t, None].square() + rounding  # of each channel
        scores = -apart.square() / (2 * variance) + weight * prior
        token = scores.argmax(dim=-1, keepdim=True)
        tokens.append(token)
        all_scores.append(scores)
        state = problem.circuit.prefix(token, state)
        hidden, after = whole.extend(token, after)
        logits = model.logits(hidden.to(model.embedding.weight.dtype))[:, -1]
        prior = logits.to(apart).log_softmax(dim=-1)
    chosen, scores = torch.cat(tokens, dim=1), torch.stack(all_scores, dim=1)
    seconds, spent = (time.perf_counter() - started) / P, S * (scores.shape[-1] + 1)
    return [
        problem.ranked(p, Answer(chosen[p], scores[p], evaluations=spent, seconds=seconds))
        for p in range(P)
    ]


@solver(
    "search",
    hidden=range(1, ANY),
    random=True,
    cost=lambda V, T, k: 3 * 900 * T + V * k,
    title="snap and resolve",
    short="snap",
)
def snap(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 300,
    resolve: int = 600,
    likeliest: int = 8,
) -> list[Answer]:
    """Descends on all vectors, makes the shown ones tokens, then descends on the hidden ones alone.

    With everything free, hidden embeddings can be anything: each visible one absorbs what they do.
    With the visible ones fixed there are as many equations as before for few unknowns. Hidden
    tokens are read by direction behind the norm, and the likeliest few of each position are run
    exactly.

    Args:
        batch: one problem with k >= 1 hidden positions before the last one shown.
        chance: the source of each prompt's starts.
        tools: not used.
        steps: of Adam on all positions.
        resolve: of Adam on the hidden ones.
        likeliest: tokens of each hidden position that are run exactly.
    """
    (problem,) = batch.problems
    scored = batch.keeping_scores()
    first = adam(scored, chance, steps=steps)
    tokens = torch.stack([answer.tokens for answer in first])
    free = torch.ones_like(tokens, dtype=torch.bool)
    free[:, problem.slice.positions(problem.length)] = False
    noise = scaled_start(scored, chance)
    start = torch.where(free[..., None], noise, problem.circuit.embed(tokens))
    second = adam(scored, chance, steps=resolve, start=start, free=free.to(start), decode="normed")
    answers = []
    for p, (rough, resolved) in enumerate(zip(first, second, strict=True)):
        hidden, visible = free[p], tokens[p][~free[p]]
        best, tried = _best(problem.of([p]), visible, resolved.scores[hidden], likeliest)
        answer = Answer(
            tokens=problem.whole(best[None], visible)[0],
            scores=torch.where(hidden[:, None], resolved.scores, rough.scores),
            evaluations=rough.evaluations + resolved.evaluations + tried,
            seconds=rough.seconds + resolved.seconds,
        )
        answer.certificate = (
            "residual" if problem.of([p]).residual(answer.tokens[None])[1] else None
        )
        answers.append(problem.ranked(p, answer))
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
