"""SipIt: the gradient orders the tokens that are tried at each position (2510.15511).

Left to right: at each position a free embedding descends towards the target, after the tokens
before it. At every step the nearest tokens that were not tried yet are run; one within the limit is
proved and ends the search of its position. In the end every token has been tried, so the search is
exact; the gradient decides the order. Steps are of one length, in units of the embedding, where
the source's are in proportion to the gradient: no rate then fits two layers.
"""

import torch
from torch import Tensor

from arch import State
from eval.inversion.answer import Answer
from eval.inversion.gradient.loop import with_gradient
from eval.inversion.problem import Batch, Problem
from eval.inversion.solvers import Chance, solver


@solver(
    "search",
    hidden=range(1),
    cost=lambda V, T, k: 200 * T,
    title="search in the order of gradients, SipIt",
    short="SipIt",
    word="SipIt",
)
def sipit(
    batch: Batch, chance: Chance, *, steps: int = 1000, tried: int = 1, rate: float = 1.0
) -> list[Answer]:
    """Tries tokens at each position in the order in which a descent comes near them.

    SipIt (2510.15511). For positions that are shown. Where no token tried lies within the limit,
    the nearest one is kept.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        steps: at each position, at most; each sends three tokens, and those it tries.
        tried: tokens at each step.
        rate: length of a step, as a share of a token's embedding.
    """
    (problem,) = batch.problems
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    state = None
    for t in range(problem.target.shape[1]):
        if t:
            state = problem.circuit.prefix(parts[-1][0][:, None], state)
        parts.append(_search(problem, t, state, steps, tried, rate))
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
    problem: Problem, t: int, state: State | None, steps: int, tried: int, rate: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nearest tokens tried at a position, `(P,)`, scores `(P, V)`, hits and tokens run."""
    circuit, target = problem.circuit, problem.target[:, t]
    W, P = circuit.vocabulary, len(target)
    x = W.mean(dim=0).repeat(P, 1)
    length = rate * (W - x[0]).norm(dim=-1).mean()
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
