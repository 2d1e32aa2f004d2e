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
from eval.circuit import Circuit, join
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.problem import Problem
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.models import candidates_at_once
from eval.progress import SoFar, tell, watched

VERIFIED = 64  # tokens that are run again where the first run was coarse


@solver(
    "search",
    hidden=range(1),
    together="layers",
    cost=lambda V, T, k: V * T,
    title="exact search, sweep",
    short="exact search",
    word="exact",
)
def sweep(
    batch: Batch, chance: Chance, tools: Tools = NONE, *, coarse: bool = False
) -> list[Answer]:
    """Tries every token of the vocabulary at each position, left to right, and keeps the nearest.

    For positions that are shown. Several layers of the same prompts are swept in one pass of the
    deepest: all tokens run through the blocks once, and are looked at behind each layer asked for.
    That needs all layers to find the same tokens, so that they share one prefix; where they do not,
    each is swept on its own.

    Args:
        batch: problems of circuits that differ in their layers only. Layers of the same prompts
            share a pass.
        chance: not used.
        tools: not used.
        coarse: all tokens are run in bfloat16 and the nearest few again in float32; the distance of
            the others stays what bfloat16 says, and the certificate is "screened".
    """
    answers = _sweep(list(batch.problems), coarse)
    return [answer for problem in answers for answer in problem]


def _sweep(problems: list[Problem], coarse: bool) -> list[list[Answer]]:
    """The answers of each problem; the time of the pass is shared evenly."""
    circuits = [problem.circuit for problem in problems]
    whole, cut = join(circuits)
    started, state, rough = time.perf_counter(), None, None
    P, T = problems[0].target.shape[:2]
    chosen, distances = [], []

    def look(circuit: Circuit, x: Tensor, state: State | None, t: int, P: int) -> list[Tensor]:
        outputs = cut(circuit.step(x[:, None], state)[:, 0])
        return [
            _distances(problem, t, output, P)
            for problem, output in zip(problems, outputs, strict=True)
        ]

    at_once = candidates_at_once(whole.model)
    for t in range(T):
        prefixes = 1 if state is None else P
        first, prefix = (whole.coarse, rough) if coarse else (whole, state)
        batches = [
            look(first, candidates.repeat(prefixes, 1), prefix, t, prefixes)
            for candidates in whole.vocabulary.split(max(1, at_once // prefixes))
        ]
        each = [torch.cat(parts, dim=1) for parts in zip(*batches, strict=True)]
        if coarse:
            count = min(VERIFIED, len(whole.vocabulary))
            near = torch.cat([d.topk(count, largest=False).indices for d in each], dim=1)
            x = whole.vocabulary[near.flatten()]
            again = look(whole, x, state, t, P)
            each = [d.scatter(1, near, exact) for d, exact in zip(each, again, strict=True)]
        tokens = torch.stack([distance.argmin(dim=1) for distance in each])
        if len(problems) > 1 and (tokens != tokens[0]).any():
            return [_sweep([problem], coarse)[0] for problem in problems]
        token = tokens[0, :, None]
        chosen.append(tokens[0])
        distances.append(each)
        if watched():
            tell(_progress(problems[0], chosen, [apart[0] for apart in distances]))
        state = whole.prefix(token, state)
        rough = whole.coarse.prefix(token, rough) if coarse else None
    seconds = (time.perf_counter() - started) / P / len(problems)
    tokens = torch.stack(chosen, dim=1)
    proof = "screened" if coarse else "enumerated"
    return [
        _answers(
            problem, Swept(tokens, torch.stack([each[i] for each in distances], 1)), proof, seconds
        )
        for i, problem in enumerate(problems)
    ]


def _progress(problem: Problem, chosen: list[Tensor], distances: list[Tensor]) -> SoFar:
    nearest = torch.stack([apart.amin(dim=1) for apart in distances], dim=1)
    second = distances[-1].topk(2, dim=1, largest=False).values[:, 1]
    t = len(chosen)
    settled, margins = nearest <= problem.limit[:, :t], (second / problem.floor[:, t - 1]).log2()
    return SoFar(torch.stack(chosen, dim=1), settled, margins)


def _answers(problem: Problem, swept: "Swept", proof: str, seconds: float) -> list[Answer]:
    near = swept.distances.gather(-1, swept.tokens[..., None])[..., 0] <= problem.limit
    return [
        problem.ranked(
            p,
            Answer(
                tokens=swept.tokens[p],
                scores=-swept.distances[p],
                runner_up=runner_up(swept.distances[p]),
                collisions=collisions(swept.distances[p], problem.limit[p]),
                certificate=proof if near[p].all() else None,
                evaluations=problem.length * len(problem.circuit.vocabulary),
                seconds=seconds,
            ),
        )
        for p in range(len(swept.tokens))
    ]


@dataclass(frozen=True)
class Swept:
    """Tokens `(P, S)`, and the distance of each token of the vocabulary, `(P, S, V)`."""

    tokens: Tensor
    distances: Tensor


def try_all(problem: Problem, t: int, state: State | None) -> Tensor:
    """Distance of every token's output at the t-th shown position from the target, `(P, V)`.

    With no prefix all prompts share one set of candidates.
    """
    prefixes = 1 if state is None else len(problem.target)
    distances = []
    at_once = max(1, candidates_at_once(problem.circuit.model) // prefixes)
    for candidates in problem.circuit.vocabulary.split(at_once):
        distances.append(_try(problem, t, state, candidates.repeat(prefixes, 1), prefixes))
    return torch.cat(distances, dim=1)


def try_some(problem: Problem, t: int, state: State | None, tokens: Tensor) -> Tensor:
    """As `try_all`, of a few tokens `(n,)` after one prompt's prefix: `(1, n)`."""
    return _try(problem, t, state, problem.circuit.embed(tokens), 1)


def _try(problem: Problem, t: int, state: State | None, x: Tensor, prefixes: int) -> Tensor:
    return _distances(problem, t, problem.circuit.step(x[:, None], state)[:, 0], prefixes)


def _distances(problem: Problem, t: int, outputs: Tensor, prefixes: int) -> Tensor:
    """Outputs of the candidates of each prefix, `(N, width)`, from each target: `(P, V)`."""
    outputs, target = problem.slice.narrow(outputs), problem.target[:, t, None]
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
