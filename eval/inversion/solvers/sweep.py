"""Exact search by brute force, for tokens whose own positions are shown.

A causal model's output at position t depends on the tokens up to t only. With those before t known,
all tokens of the vocabulary are tried at t on the shared prefix and the nearest one is kept. If it
alone lies at the floor it is proved.
"""

import torch
from torch import Tensor

from arch import State
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import COLLISIONS, Answer, solver
from eval.models.memory import candidates_at_once
from eval.rows.progress import Progress, report_progress, watched
from eval.sites.circuit import Circuit


@solver("search", hidden=range(1), title="exact search, sweep")
def sweep(problem: Problem, generators: Generators, *, prior: float = 0.0) -> list[Answer]:
    """Tries every token of the vocabulary at each position, left to right, and keeps the nearest.

    All positions must be shown. With Gaussian noise in the target the nearest token is the
    likeliest one only if all tokens are equally likely beforehand. With a prior, the inverted
    model's own predictions count too: the answer minimises
    -log p(target | token) - prior * log p(token | those before), for noise of known size. This
    recovers more tokens, but then the figure measures the prior along with the outputs.

    Args:
        problem: every position shown.
        generators: not used.
        prior: weight of the model's own next-token probabilities; 1 is Bayes' rule.
    """
    circuit, (P, S, C) = problem.circuit, problem.target.shape
    text = Circuit(circuit.model, len(circuit.model.blocks), without=circuit.without)
    state, after, expected = None, None, problem.target.new_zeros(P, len(problem.vocabulary))
    tokens: list[Tensor] = []
    distances: list[Tensor] = []  # distances of all tokens, or scores with a prior, (P, V)
    for t in range(S):
        to_target = try_tokens(problem, t, state)
        if prior:
            rounding = problem.tolerance.floor[:, t, None].square() / C
            variance = problem.noise[:, t, None].square() + rounding  # of each channel
            distances.append(-to_target.square() / (2 * variance) + prior * expected)
            tokens.append(distances[-1].argmax(dim=1))
            outputs, after = text.extend(tokens[-1][:, None], after)
            logits = circuit.model.logits(outputs.to(circuit.model.embedding.weight.dtype))
            expected = logits[:, -1].to(to_target).log_softmax(dim=-1)
        else:
            distances.append(to_target)
            tokens.append(to_target.argmin(dim=1))
            if watched():
                _report(problem, tokens, distances)
        state = circuit.prefix(tokens[-1][:, None], state)
    evaluations = S * (len(problem.vocabulary) + (1 if prior else 0))
    chosen, every = torch.stack(tokens, dim=1), torch.stack(distances, dim=1)
    if prior:
        rows = zip(chosen, every, strict=True)
        return [Answer(ids, scores, evaluations=evaluations) for ids, scores in rows]
    collisions = find_collisions(every, problem.tolerance.limit)
    return [
        Answer(
            tokens=chosen[p],
            scores=-every[p],
            enumerated=True,
            runner_up=runner_up(every[p]),
            collisions=collisions[p],
            evaluations=evaluations,
        )
        for p in range(P)
    ]


def _report(problem: Problem, tokens: list[Tensor], distances: list[Tensor]) -> None:
    nearest = torch.stack([to_target.amin(dim=1) for to_target in distances], dim=1)
    margins = (runner_up(distances[-1]) / problem.tolerance.floor[:, len(tokens) - 1]).log2()
    settled = nearest <= problem.tolerance.limit[:, : len(tokens)]
    report_progress(Progress(torch.stack(tokens, dim=1), settled, margins))


def try_tokens(problem: Problem, t: int, state: State | None) -> Tensor:
    """Distance of every token's output at the t-th shown position from the target, `(P, V)`.

    With no prefix all prompts share the candidates.
    """
    circuit, prefixes = problem.circuit, 1 if state is None else len(problem.target)
    target, distances = problem.target[:, t, None], []
    for batch in problem.vocabulary.split(max(1, candidates_at_once(circuit.model) // prefixes)):
        outputs = circuit.step(batch.repeat(prefixes, 1)[:, None], state)[:, 0]
        outputs = problem.slice.narrow(outputs).unflatten(0, (prefixes, -1))
        distances.append(torch.linalg.vector_norm(outputs - target, dim=-1))
    return torch.cat(distances, dim=1)


def runner_up(distances: Tensor) -> Tensor:
    """The second smallest of `(..., V)` distances."""
    return distances.topk(2, largest=False).values[..., 1]


def find_collisions(distances: Tensor, limit: Tensor) -> list[dict[int, list[int]]]:
    """Each prompt's positions where several tokens lie within the limit, and the nearest of them.

    Of `(P, S, V)` distances and `(P, S)` limits.
    """
    nearest = distances.topk(min(COLLISIONS, distances.shape[-1]), largest=False)
    counts = (nearest.values <= limit[..., None]).sum(dim=-1)
    collisions: list[dict[int, list[int]]] = [{} for _ in distances]
    for p, t in (counts > 1).nonzero().tolist():
        collisions[p][t] = sorted(nearest.indices[p, t, : counts[p, t]].tolist())
    return collisions
