"""SipIt: the gradient orders the tokens that are tried at each position (2510.15511).

Left to right: at each position a free embedding descends towards the target, after the tokens
before it. At every step the nearest tokens that were not tried yet are run; one within the limit is
proved and ends the search of its position. In the end every token has been tried, so the search is
exact; what the gradient is worth is the order. Steps are of one length, in units of the embedding,
where the source's are in proportion to the gradient: no rate then fits two layers.
"""

import time

import torch
from torch import Tensor

from arch import State
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.problem import Problem
from eval.inversion.solvers import NONE, Chance, Tools, solver


@solver(
    "search",
    hidden=range(1),
    cost=lambda V, T, k: 200 * T,
    title="search in the order of gradients, SipIt",
    short="SipIt",
    word="SipIt",
)
def sipit(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 1000,
    tried: int = 1,
    rate: float = 1.0,
) -> list[Answer]:
    """Tries tokens at each position in the order in which a descent comes near them.

    SipIt (2510.15511). For positions that are shown. Where no token tried lies within the limit,
    the nearest one is kept.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        tools: not used.
        steps: at each position, at most; each sends three tokens, and those it tries.
        tried: tokens at each step.
        rate: length of a step, as a share of a token's embedding.
    """
    (problem,) = batch.problems
    started, circuit = time.perf_counter(), problem.circuit
    P, T = problem.target.shape[:2]
    tokens, scores, proved, spent = [], [], [], torch.zeros(P, dtype=torch.long)
    state = None
    for t in range(T):
        token, near, hit, count = _search(problem, t, state, steps, tried, rate)
        tokens.append(token)
        scores.append(near)
        proved.append(hit)
        spent += count.cpu()
        if t + 1 < T:
            state = circuit.prefix(token[:, None], state)
    chosen, near = torch.stack(tokens, dim=1), torch.stack(scores, dim=1)
    certain, seconds = torch.stack(proved).all(dim=0), time.perf_counter() - started
    return [
        problem.ranked(
            p,
            Answer(
                tokens=chosen[p],
                scores=near[p],
                certificate="residual" if certain[p] else None,
                evaluations=int(spent[p]),
                seconds=seconds / P,
            ),
        )
        for p in range(P)
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
    for _ in range(steps):
        active = least > problem.limit[:, t]
        if not active.any() or visited.all():
            break
        with torch.enable_grad():
            free = x.detach().requires_grad_(True)
            apart = problem.slice.narrow(circuit.step(free[:, None], state)[:, 0]) - target
            (slope,) = torch.autograd.grad(apart.square().sum(), free)
        slope = slope / slope.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(W.dtype).tiny)
        x = torch.where(active[:, None], x - length * slope, x)
        seen = torch.where(active[:, None], -torch.cdist(x, W), seen)
        some = seen.masked_fill(visited, -torch.inf).topk(min(tried, len(W))).indices
        outputs = circuit.step(W[some].flatten(0, 1)[:, None], state)[:, 0]
        outputs = problem.slice.narrow(outputs).view(P, -1, target.shape[-1])
        distance, nearest = (outputs - target[:, None]).norm(dim=-1).min(dim=1)
        nearer = active & (distance < least)
        best = torch.where(nearer, some.gather(1, nearest[:, None])[:, 0], best)
        least = torch.where(nearer, distance, least)
        visited.scatter_(1, some, True)
        count += active * (3 + some.shape[1])
    return best, seen, least <= problem.limit[:, t], count
