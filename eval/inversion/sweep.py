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
from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.problem import ACCEPT, Problem

BATCH = 1024  # candidates sent through the model at once: what a CPU's caches like


def sweep(problem: Problem) -> list[Answer]:
    """Recovers P prompts whose every position is shown, `[:, 0:, :]`."""
    started = time.perf_counter()
    P, T = len(problem.target), problem.length
    distances = sweep_from(problem.circuit, problem.target, None)
    seconds = (time.perf_counter() - started) / P
    return [
        Answer(
            tokens=distances.tokens[p],
            scores=-distances.all[p],
            runner_up=distances.all[p].topk(2, dim=-1, largest=False).values[:, 1],
            collisions=collisions(distances.all[p], problem.floor[p]),
            evaluations=T * len(problem.circuit.vocabulary),
            seconds=seconds,
        )
        for p in range(P)
    ]


@dataclass(frozen=True)
class Swept:
    """Tokens `(P, T)`, and the distance of each token of the vocabulary, `(P, T, V)`."""

    tokens: Tensor
    all: Tensor


def sweep_from(circuit: Circuit, target: Tensor, state: State | None) -> Swept:
    """Finds the tokens that follow a prefix, left to right, each given those before it.

    Args:
        circuit: a causal circuit.
        target: the outputs at the positions after the prefix, `(P, T, D)`.
        state: the prefix of each prompt; None if there is none.
    """
    found, distances = [], []
    for t in range(target.shape[1]):
        distance = try_all(circuit, target[:, t], state)
        token = distance.argmin(dim=-1, keepdim=True)
        found.append(token)
        distances.append(distance)
        if t + 1 < target.shape[1]:
            state = circuit.prefix(token, state)
    return Swept(torch.cat(found, dim=1), torch.stack(distances, dim=1))


def try_all(circuit: Circuit, target: Tensor, state: State | None) -> Tensor:
    """Distance of every token's output at the next position from the target, `(P, D) -> (P, V)`.

    With no prefix all prompts share one set of candidates.
    """
    prefixes = 1 if state is None else len(target)
    distances = []
    for candidates in circuit.vocabulary.split(max(1, BATCH // prefixes)):
        outputs = circuit.step(candidates.repeat(prefixes, 1)[:, None], state)
        outputs = outputs.view(prefixes, len(candidates), -1)
        distances.append(torch.linalg.vector_norm(outputs - target[:, None], dim=-1))
    return torch.cat(distances, dim=1)


def collisions(distances: Tensor, floor: Tensor) -> dict[int, list[int]]:
    """Positions where several tokens lie within the floor: `(T, V)` distances, `(T,)` floors."""
    near = distances <= ACCEPT * floor[:, None]
    return {
        int(t): near[t].nonzero()[:, 0].tolist() for t in (near.sum(dim=-1) > 1).nonzero()[:, 0]
    }
