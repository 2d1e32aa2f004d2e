"""Searches that a gradient leads: SipIt for shown tokens, snap and resolve for hidden ones."""

import itertools

import torch
from torch import Tensor

from arch import State
from eval.inversion.answer import Answer
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.gradient.loop import with_gradient
from eval.inversion.problem import Batch, Problem
from eval.inversion.solvers import ANY, Chance, solver

LIKELIEST = 8  # tokens of each hidden position that snap runs exactly
ALL_CHOICES = 4096  # combinations of the likeliest tokens that are run, at most


@solver(
    "search",
    hidden=range(1),
    title="search in the order of gradients, SipIt",
)
def sipit(batch: Batch, chance: Chance, *, steps: int = 1000, tried: int = 1) -> list[Answer]:
    """Tries tokens at each position in the order in which a descent comes near them.

    SipIt (2510.15511). For positions that are shown, left to right: a free embedding descends
    towards the target, and at every step the nearest tokens that were not tried yet are run; one
    within the limit ends the search of its position, else the nearest one is kept. Steps are of one
    length, where the source's are in proportion to the gradient: no rate then fits two layers.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        steps: at each position, at most; each sends three tokens, and those it tries.
        tried: tokens at each step.
    """
    (problem,) = batch.problems
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    state = None
    for t in range(problem.target.shape[1]):
        if t:
            state = problem.circuit.prefix(parts[-1][0][:, None], state)
        parts.append(_search(problem, t, state, steps, tried))
    tokens, scores, hits, spent = (torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    return [
        Answer(
            tokens[p],
            scores[p],
            certificate="residual" if hits[p].all() else None,
            evaluations=int(spent[p].sum()),
        )
        for p in range(len(tokens))
    ]


def _search(
    problem: Problem, t: int, state: State | None, steps: int, tried: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nearest tokens tried at a position, `(P,)`, scores `(P, V)`, hits and tokens run."""
    circuit, target = problem.circuit, problem.target[:, t]
    W, P = circuit.vocabulary, len(target)
    x = W.mean(dim=0).repeat(P, 1)
    length = (W - x[0]).norm(dim=-1).mean()  # of a step: that of an embedding
    visited = torch.zeros(P, len(W), dtype=torch.bool, device=W.device)
    best, least = torch.zeros_like(visited[:, 0], dtype=torch.long), torch.full_like(x[:, 0], 1e38)
    count, seen = torch.zeros_like(best), -torch.cdist(x, W)

    def apart(x: Tensor) -> Tensor:
        outputs = problem.slice.narrow(circuit.step(x[:, None], state)[:, 0])
        return (outputs.view(P, -1, target.shape[-1]) - target[:, None]).squeeze(1)

    for _ in range(steps):
        active = least > problem.limit[:, t]
        if not active.any() or visited.all():
            break
        _, slope = with_gradient(lambda x: apart(x).square().sum(dim=-1), x)
        slope = slope / slope.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(W.dtype).tiny)
        x = torch.where(active[:, None], x - length * slope, x)
        seen = torch.where(active[:, None], -torch.cdist(x, W), seen)
        some = seen.masked_fill(visited, -torch.inf).topk(min(tried, len(W))).indices
        distance = apart(W[some].flatten(0, 1)).view(*some.shape, -1).norm(dim=-1)
        distance, nearest = distance.min(dim=1)
        nearer = active & (distance < least)
        best = torch.where(nearer, some.gather(1, nearest[:, None])[:, 0], best)
        least = torch.where(nearer, distance, least)
        visited.scatter_(1, some, True)
        count += active * (3 + some.shape[1])
    return best, seen, least <= problem.limit[:, t], count


@solver(
    "search",
    hidden=range(1, ANY),
    random=True,
    title="snap and resolve",
)
def snap(batch: Batch, chance: Chance, *, steps: int = 300, resolve: int = 600) -> list[Answer]:
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
    """
    (problem,) = batch.problems
    first = adam(batch, chance, steps=steps)
    tokens = torch.stack([answer.tokens for answer in first])
    free = torch.ones_like(tokens, dtype=torch.bool)
    free[:, problem.slice.positions(problem.length)] = False
    start = torch.where(free[..., None], scaled_start(batch, chance), problem.circuit.embed(tokens))
    second = adam(batch, chance, steps=resolve, start=start, free=free.to(start), normed=True)
    answers = []
    for p, (rough, resolved) in enumerate(zip(first, second, strict=True)):
        one, hidden, visible = problem.of([p]), free[p], tokens[p][~free[p]]
        best, tried = _best(one, visible, resolved.scores[hidden])
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
    outputs = torch.cat([problem.circuit.of_tokens(some) for some in whole.split(256)])
    return hidden[problem.distances(outputs).norm(dim=-1).argmin()]
