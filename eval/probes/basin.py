"""Basin of attraction: how far from the truth a solver may start and still end there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import adam
from eval.inversion.problem import pose
from eval.slices import Slice

Solve = Callable[[Tensor], Tensor]
"""Starts `(P, T, D)` in the space of embeddings to tokens `(P, T)`."""


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


def descend(circuit: Circuit, tokens: Tensor, hidden: int, steps: int) -> Solve:
    """The solver `adam` towards the outputs after the first `hidden` positions, from a start.

    Args:
        circuit: any site.
        tokens: the truth, `(P, T)`.
        hidden: k.
        steps: the most that it takes; a prompt that is solved earlier stops.
    """
    problem = pose(circuit, tokens, Slice(hidden))

    def solve(start: Tensor) -> Tensor:
        unused = [torch.Generator()] * len(tokens)  # nothing is drawn from a given start
        answers = adam(Batch((problem,)), unused, start=start, steps=steps)
        return torch.stack([answer.tokens for answer in answers])

    return solve
