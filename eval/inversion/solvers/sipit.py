"""SipIt: a search of shown tokens in the order in which a descent comes near them."""

import torch
from torch import Tensor

from arch import State
from eval.inversion.gradient.descend import with_gradient
from eval.inversion.gradient.objectives import by_distance
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver


@solver("search", hidden=range(1), title="search in the order of gradients, SipIt")
def sipit(
    problem: Problem, generators: Generators, *, steps: int = 1000, tried: int = 1
) -> list[Answer]:
    """Tries tokens at each position in the order in which a descent comes near them.

    SipIt (2510.15511). All positions must be shown. From left to right, a free embedding descends
    towards the target, and after every step the nearest tokens that were not tried yet are run. A
    token within the limit ends the search at its position; without one the nearest is kept. Steps
    have one length; in the paper they are proportional to the gradient, so that no rate fits two
    layers.

    Args:
        problem: every position shown.
        generators: not used.
        steps: the most at each position; a step counts three evaluations and the tokens it tries.
        tried: tokens that are tried at each step.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    state = None
    for t in range(problem.target.shape[1]):
        if t:
            state = problem.circuit.prefix(parts[-1][0][:, None], state)
        parts.append(_search(problem, t, state, steps, tried))
    tokens, scores, spent = (torch.stack(answers, dim=1) for answers in zip(*parts, strict=True))
    answers = zip(tokens, scores, spent.sum(dim=1).tolist(), strict=True)
    return [Answer(ids, fits, evaluations=count) for ids, fits, count in answers]


def _search(
    problem: Problem, t: int, state: State | None, steps: int, tried: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest tokens tried at a position, `(P,)`, scores `(P, V)`, and tokens run."""
    circuit, target, W = problem.circuit, problem.target[:, t], problem.vocabulary
    P = len(target)
    x = W.mean(dim=0).repeat(P, 1)
    length = (W - x[0]).norm(dim=-1).mean()  # of a step: that of an embedding
    visited = torch.zeros(P, len(W), dtype=torch.bool, device=W.device)
    best, least = torch.zeros_like(visited[:, 0], dtype=torch.long), torch.full_like(x[:, 0], 1e38)
    count, seen = torch.zeros_like(best), by_distance(circuit, x[:, None])[:, 0]

    def difference(x: Tensor) -> Tensor:
        outputs = problem.slice.narrow(circuit.step(x[:, None], state)[:, 0])
        return (outputs.view(P, -1, target.shape[-1]) - target[:, None]).squeeze(1)

    for _ in range(steps):
        active = least > problem.tolerance.limit[:, t]
        if not active.any() or visited.all():
            break
        _, slope = with_gradient(lambda x: difference(x).square().sum(dim=-1), x)
        slope = slope / slope.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(W.dtype).tiny)
        x = torch.where(active[:, None], x - length * slope, x)
        seen = torch.where(active[:, None], by_distance(circuit, x[:, None])[:, 0], seen)
        best_seen = seen.masked_fill(visited, -torch.inf).topk(min(tried, len(W))).indices
        distance = difference(W[best_seen].flatten(0, 1)).view(*best_seen.shape, -1).norm(dim=-1)
        distance, nearest = distance.min(dim=1)
        nearer = active & (distance < least)
        best = torch.where(nearer, best_seen.gather(1, nearest[:, None])[:, 0], best)
        least = torch.where(nearer, distance, least)
        visited.scatter_(1, best_seen, True)
        count += active * (3 + best_seen.shape[1])
    return best, seen, count
