"""Exact searches for tokens whose own positions are shown, and the control that answers by chance.

A causal model's output at position t depends on the tokens up to t only. With those before t known,
all tokens of the vocabulary, or some, are tried at t on the shared prefix and the nearest one is
kept. If it alone lies at the floor it is proved. The candidates of all prompts go through the model
together.
"""

import time

import torch
from torch import Tensor

from arch import State
from eval.circuit import Circuit, join
from eval.inversion.answer import COLLISIONS, Answer
from eval.inversion.problem import Batch, Problem
from eval.inversion.solvers import Chance, solver
from eval.models import candidates_at_once
from eval.tasks import SoFar, tell, watched


@solver(
    "search",
    hidden=range(1),
    together="layers",
    title="exact search, sweep",
)
def sweep(batch: Batch, chance: Chance) -> list[Answer]:
    """Tries every token of the vocabulary at each position, left to right, and keeps the nearest.

    For positions that are shown. Several layers of the same prompts are swept in one pass of the
    deepest: all tokens run through the blocks once, and are looked at behind each layer asked for.
    That needs all layers to name the same tokens, so that they share one prefix; where they do not,
    each is swept on its own.

    Args:
        batch: problems of circuits that differ in their layers only. Layers of the same prompts
            share a pass.
        chance: not used.
    """
    problems = batch.problems
    whole, cut = join([problem.circuit for problem in problems])
    started, state = time.perf_counter(), None
    P, T = problems[0].target.shape[:2]
    chosen: list[Tensor] = []
    distances: list[list[Tensor]] = []  # of each position and problem, (P, V)
    apart = torch.zeros((), dtype=torch.bool, device=whole.vocabulary.device)  # layers

    at_once = candidates_at_once(whole.model)
    for t in range(T):
        prefixes, batches = 1 if state is None else P, []
        for candidates in whole.vocabulary.split(max(1, at_once // prefixes)):
            outputs = cut(whole.step(candidates.repeat(prefixes, 1)[:, None], state)[:, 0])
            shown = zip(problems, outputs, strict=True)
            batches.append([_distances(problem, t, each, prefixes) for problem, each in shown])
        each = [torch.cat(parts, dim=1) for parts in zip(*batches, strict=True)]
        tokens = torch.stack([distance.argmin(dim=1) for distance in each])
        chosen.append(tokens[0])
        apart = apart | (tokens != tokens[0]).any()
        distances.append(each)
        if watched():
            nearest = torch.stack([apart[0].amin(dim=1) for apart in distances], dim=1)
            margins = (runner_up(each[0]) / problems[0].floor[:, t]).log2()
            settled = nearest <= problems[0].limit[:, : t + 1]
            tell(SoFar(torch.stack(chosen, dim=1), settled, margins))
        state = whole.prefix(tokens[0, :, None], state)
    if len(problems) > 1 and apart:  # the host waits here for the first time
        alone = [sweep(Batch((problem,)), chance) for problem in problems]
        return [answer for answers in alone for answer in answers]
    seconds = (time.perf_counter() - started) / P / len(problems)
    tokens, answers = torch.stack(chosen, dim=1), []
    for problem, apart in zip(problems, zip(*distances, strict=True), strict=True):
        apart = torch.stack(apart, dim=1)
        near = apart.gather(-1, tokens[..., None])[..., 0] <= problem.limit
        proved, collisions = near.all(dim=1).tolist(), _collisions(apart, problem.limit)
        answers += [
            Answer(
                tokens=tokens[p],
                scores=-apart[p],
                runner_up=runner_up(apart[p]),
                collisions=collisions[p],
                certificate="enumerated" if proved[p] else None,
                evaluations=T * apart.shape[-1],
                seconds=seconds,
            )
            for p in range(P)
        ]
    return answers


def try_tokens(problem: Problem, t: int, state: State | None) -> Tensor:
    """Distance of every token's output at the t-th shown position from the target, `(P, V)`.

    With no prefix all prompts share the candidates.
    """
    circuit, prefixes = problem.circuit, 1 if state is None else len(problem.target)
    parts = circuit.vocabulary.split(max(1, candidates_at_once(circuit.model) // prefixes))
    outputs = [circuit.step(some.repeat(prefixes, 1)[:, None], state)[:, 0] for some in parts]
    return torch.cat([_distances(problem, t, part, prefixes) for part in outputs], dim=1)


def _distances(problem: Problem, t: int, outputs: Tensor, prefixes: int) -> Tensor:
    """Outputs of the candidates of each prefix, `(N, width)`, from each target: `(P, V)`."""
    outputs, target = problem.slice.narrow(outputs), problem.target[:, t, None]
    return torch.linalg.vector_norm(outputs.view(prefixes, -1, outputs.shape[-1]) - target, dim=-1)


def runner_up(distances: Tensor) -> Tensor:
    """The second smallest of `(..., V)` distances."""
    return distances.topk(2, dim=-1, largest=False).values[..., 1]


def _collisions(distances: Tensor, limit: Tensor) -> list[dict[int, list[int]]]:
    """Each prompt's positions where several tokens lie within the limit, and the nearest of them.

    Of `(P, S, V)` distances and `(P, S)` limits.
    """
    nearest = distances.topk(min(COLLISIONS, distances.shape[-1]), largest=False)
    near = (nearest.values <= limit[..., None]).sum(dim=-1)
    collisions: list[dict[int, list[int]]] = [{} for _ in distances]
    for p, t in (near > 1).nonzero().tolist():
        collisions[p][t] = sorted(nearest.indices[p, t, : near[p, t]].tolist())
    return collisions


@solver(
    "prior",
    hidden=range(1),
    title="search with a prior",
)
def expected(batch: Batch, chance: Chance, *, weight: float = 1.0) -> list[Answer]:
    """A sweep that weighs the evidence against the model's own next-token probabilities.

    With Gaussian noise in the target the nearest token is the likeliest one if all tokens are
    alike. They are not: the model that is being inverted says how likely each is after the tokens
    before it. Adding that (maximum a posteriori) recovers more, but measures the prior along with
    the evidence. It minimises -log p(target | token) - weight * log p(token | those before),
    for noise known.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        weight: of the prior; 1 is Bayes' rule.
    """
    (problem,) = batch.problems
    model, (P, S, C) = problem.circuit.model, problem.target.shape
    whole = Circuit(model, len(model.blocks))
    state, after, tokens, scores = None, None, [], []
    prior = problem.target.new_zeros(P, len(problem.circuit.vocabulary))  # nothing stands before
    for t in range(S):
        apart = try_tokens(problem, t, state)
        rounding = problem.floor[:, t, None].square() / C
        variance = problem.noise[:, t, None].square() + rounding  # of each channel
        scores.append(-apart.square() / (2 * variance) + weight * prior)
        token = scores[-1].argmax(dim=-1, keepdim=True)
        tokens.append(token)
        state = problem.circuit.prefix(token, state)
        hidden, after = whole.extend(token, after)
        logits = model.logits(hidden.to(model.embedding.weight.dtype))[:, -1]
        prior = logits.to(apart).log_softmax(dim=-1)
    spent = S * (prior.shape[-1] + 1)
    each = zip(torch.cat(tokens, dim=1), torch.stack(scores, dim=1), strict=True)
    return [Answer(chosen, score, evaluations=spent) for chosen, score in each]


@solver("control", random=True, name="chance")
def guess(batch: Batch, chance: Chance) -> list[Answer]:
    """Random tokens, without looking: the control that every figure is compared with."""
    V = len(batch.circuit.vocabulary)
    several = [torch.rand(batch.length, V, generator=generator) for generator in chance]
    return [Answer(scores.argmax(dim=-1), scores) for scores in several]
