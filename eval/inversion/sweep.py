"""The exhaustive causal sweep: exact recovery of every token whose own position is shown.

A causal model's output at position t depends on the tokens up to t only. With those before t
found, all V tokens are tried at t on the shared prefix and the nearest one is kept. If it lies at
the floor it is proved. The candidates of all prompts go through the model together.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from arch import State
from eval.inversion.answer import Answer
from eval.inversion.problem import Problem

BATCH = 1024  # candidates sent through the model at once: what a CPU's caches like


def sweep(problem: Problem) -> list[Answer]:
    """Recovers P prompts whose every position is shown, `[:, 0:, :]`."""
    started = time.perf_counter()
    P, T = len(problem.target), problem.length
    swept = sweep_from(problem, None)
    near = swept.distances.gather(-1, swept.tokens[..., None])[..., 0] <= problem.limit
    seconds = (time.perf_counter() - started) / P
    return [
        Answer(
            tokens=swept.tokens[p],
            scores=-swept.distances[p],
            runner_up=runner_up(swept.distances[p]),
            collisions=collisions(swept.distances[p], problem.limit[p]),
            certificate="enumerated" if near[p].all() else None,
            evaluations=T * len(problem.circuit.vocabulary),
            seconds=seconds,
        )
        for p in range(P)
    ]


@dataclass(frozen=True)
class Swept:
    """Tokens `(P, S)`, and the distance of each token of the vocabulary, `(P, S, V)`."""

    tokens: Tensor
    distances: Tensor


def sweep_from(problem: Problem, state: State | None) -> Swept:
    """Finds the shown tokens, left to right, each given those before it.

    Args:
        problem: the first k positions hidden.
        state: those of each prompt; None if k is 0.
    """
    found, distances = [], []
    for t in range(problem.target.shape[1]):
        distance = try_all(problem, t, state)
        token = distance.argmin(dim=-1, keepdim=True)
        found.append(token)
        distances.append(distance)
        if t + 1 < problem.target.shape[1]:
            state = problem.circuit.prefix(token, state)
    return Swept(torch.cat(found, dim=1), torch.stack(distances, dim=1))


def try_all(problem: Problem, t: int, state: State | None) -> Tensor:
    """Distance of every token's output at the t-th shown position from the target, `(P, V)`.

    With no prefix all prompts share one set of candidates.
    """
    prefixes = 1 if state is None else len(problem.target)
    distances = []
    for candidates in problem.circuit.vocabulary.split(max(1, BATCH // prefixes)):
        distances.append(_try(problem, t, state, candidates.repeat(prefixes, 1), prefixes))
    return torch.cat(distances, dim=1)


def try_some(problem: Problem, t: int, state: State | None, tokens: Tensor) -> Tensor:
    """As `try_all`, of a few tokens `(n,)` after one prompt's prefix: `(1, n)`."""
    return _try(problem, t, state, problem.circuit.model.embed(tokens), 1)


def _try(problem: Problem, t: int, state: State | None, x: Tensor, prefixes: int) -> Tensor:
    outputs = problem.slice.narrow(problem.circuit.step(x[:, None], state)[:, 0])
    target = problem.target[:, t, None]
    return torch.linalg.vector_norm(outputs.view(prefixes, -1, outputs.shape[-1]) - target, dim=-1)


def runner_up(distances: Tensor) -> Tensor:
    """The second smallest of `(S, V)` distances at each position."""
    return distances.topk(2, dim=-1, largest=False).values[:, 1]


def collisions(distances: Tensor, limit: Tensor) -> dict[int, list[int]]:
    """Positions where several tokens lie within the limit: `(S, V)` distances, `(S,)` limits."""
    near = distances <= limit[:, None]
    return {
        int(t): near[t].nonzero()[:, 0].tolist() for t in (near.sum(dim=-1) > 1).nonzero()[:, 0]
    }
