"""Basin of attraction: how far from the truth a solver may start and still end there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.circuit import Circuit

Solve = Callable[[Tensor], Tensor]
"""Starts `(P, T, D)` in the space of embeddings to tokens `(P, T)`."""

RATE = 0.2  # of Adam, in standard deviations of the embedding


@dataclass(frozen=True)
class Basin:
    """What became of starts at one distance from the truth.

    Attributes:
        radius: r; every token's embedding e was moved by r |e| in a random direction.
        right: which tokens came out right, `(P, T)`.
    """

    radius: float
    right: Tensor


@torch.no_grad()
def basin(
    solve: Solve, circuit: Circuit, tokens: Tensor, radii: list[float], seed: int = 0
) -> list[Basin]:
    """Starts a solver at several distances from the truth; the directions are the same at all.

    Args:
        solve: the solver, which knows its target already; called once a radius.
        circuit: whose embeddings are meant.
        tokens: the truth, `(P, T)`.
        radii: distances in units of each token's embedding.
        seed: of the directions.
    """
    truth = circuit.embed(tokens)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed)).to(truth)
    direction = noise / noise.norm(dim=-1, keepdim=True) * truth.norm(dim=-1, keepdim=True)
    return [Basin(r, solve(truth + r * direction) == tokens) for r in radii]


def descend(circuit: Circuit, target: Tensor, hidden: int, steps: int) -> Solve:
    """Adam on all embeddings towards the outputs after the first `hidden` positions.

    Squared distance in units of each position's target; the rate falls along a half cosine; tokens
    by the nearest embedding.

    Args:
        circuit: any site.
        target: its outputs for the truth, `(P, T - hidden, F)`.
        hidden: k.
        steps: number of steps.
    """
    unit = target.square().sum(dim=-1).clamp(min=1e-30)

    def solve(start: Tensor) -> Tensor:
        x = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([x], lr=RATE * circuit.scale)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        for _ in range(steps):
            with torch.enable_grad():
                apart = (circuit(x)[:, hidden:] - target).square().sum(dim=-1)
                (x.grad,) = torch.autograd.grad((apart / unit).sum(), x)
            optimiser.step()
            schedule.step()
        return torch.cdist(x.detach(), circuit.vocabulary[None]).argmin(dim=-1)

    return solve
