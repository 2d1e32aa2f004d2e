"""Propose, then verify: exact recovery of shown tokens at the price of a few forward passes.

A guess of the whole prompt is checked by one forward pass: by causality every position up to the
first one that misses its target is proved. What misses is guessed anew, all positions at once, from
what its output lacks. Where guesses do not hit, a shortlist is tried at the first miss, after its
proved prefix; where that fails too, the whole vocabulary. So the answer is exact whatever the
guesses are worth; only the cost depends on them.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.lexicon import Reader
from eval.inversion.problem import Problem
from eval.inversion.search.sweep import try_all, try_some
from eval.inversion.solvers import Chance, Tools, solver
from eval.progress import SoFar, tell, watched

SHORTLIST = 32  # tokens tried at a position before all of them are, by outputs and by the text
PATIENCE = 1  # passes that a miss may stay where it is before the shortlist


@solver(
    "search",
    hidden=range(1),
    needs=("lexicon",),
    cost=lambda V, T, k: 10 * T,
    title="exact search, propose and verify",
    short="exact search",
    word="exact",
)
def propose(batch: Batch, chance: Chance, tools: Tools) -> list[Answer]:
    """Guesses the whole prompt and checks it in one pass, which proves all before the first miss.

    There it searches. For positions that are shown.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        tools: the lexicon, for the guesses.
    """
    (problem,) = batch.problems
    assert tools.lexicon
    started = time.perf_counter()
    reader = Reader(tools.lexicon(problem.circuit), problem.slice.low, problem.slice.high)
    proof = _settle(problem, reader)
    P, seconds = len(proof.tokens), time.perf_counter() - started
    return [
        problem.ranked(
            p,
            Answer(
                tokens=proof.tokens[p],
                scores=-proof.distances[p],
                certificate="residual" if proof.proved[p] else None,
                evaluations=int(proof.evaluations[p]),
                seconds=seconds / P,
                notes={"swept": int(proof.swept[p])},
            ),
        )
        for p in range(P)
    ]


@dataclass
class Proof:
    """Tokens `(P, S)`, and how they were come by.

    Attributes:
        tokens: those that were searched for.
        distances: the last guess's distance of every token at each position, `(P, S, V)`.
        proved: whether every position lies within the limit, `(P,)`.
        evaluations: tokens sent through the circuit, `(P,)`.
        swept: positions at which the whole vocabulary had to be tried, `(P,)`.
    """

    tokens: Tensor
    distances: Tensor
    proved: Tensor
    evaluations: Tensor
    swept: Tensor


def _settle(problem: Problem, reader: Reader) -> Proof:
    """Finds the tokens, each after those before it.

    A position at which no token of the vocabulary lies within the limit keeps the nearest one; the
    search goes on after it.
    """
    target, limit, circuit = problem.target, problem.limit, problem.circuit
    P, S = target.shape[:2]
    distances = reader.distances(target)
    distances[:, 0] = reader.first(target[:, 0])
    tokens = distances.argmin(dim=-1)
    counts = (torch.zeros(P, dtype=torch.long) for _ in range(2))
    proof = Proof(tokens, distances, torch.ones(P, dtype=torch.bool), *counts)
    settled, stayed = [0] * P, [0] * P  # positions that need no more; passes without one more
    rows = list(range(P))
    while rows:
        whole = tokens[rows]
        outputs = problem.slice.select(circuit.of_tokens(whole))
        hit = torch.linalg.vector_norm(outputs - target[rows], dim=-1) <= limit[rows]
        again = reader.again(target[rows], outputs, tokens[rows])
        distances[rows] = torch.where(hit[..., None], distances[rows], again)
        guesses = torch.where(hit, tokens[rows], again.argmin(dim=-1))
        guesses[:, 0] = tokens[rows, 0]  # its entries are exact
        proof.evaluations[rows] += whole.shape[1]
        for i, p in enumerate(rows):
            before, misses = settled[p], (~hit[i, settled[p] :]).nonzero()
            settled[p] = before + int(misses[0]) if len(misses) else S
            stayed[p] = stayed[p] + 1 if settled[p] == before else 0
            if settled[p] == S:
                continue
            tokens[p, settled[p] :] = guesses[i, settled[p] :]
            if stayed[p] >= PATIENCE:
                _search_at(problem, p, settled[p], whole[i : i + 1, : settled[p]], proof)
                settled[p] += 1
        if watched():
            known = torch.tensor(settled, device=tokens.device)[:, None]
            tell(SoFar(tokens, torch.arange(S, device=tokens.device) < known))
        rows = [p for p in rows if settled[p] < S]
    return proof


def _search_at(problem: Problem, p: int, t: int, prefix: Tensor, proof: Proof) -> None:
    """Puts the nearest token at the t-th shown position of prompt p, all before it being settled.

    The shortlist first; the whole vocabulary where none of it lies within the limit.
    """
    one = problem.of([p])
    state = problem.circuit.prefix(prefix) if prefix.shape[1] else None
    count = min(SHORTLIST, proof.distances.shape[-1])
    best = proof.distances[p, t].topk(count, largest=False).indices
    if prefix.shape[1]:
        likely = problem.circuit.model(prefix)[0, -1].topk(count).indices
        best = torch.cat([best, likely]).unique()
        proof.evaluations[p] += prefix.shape[1]
    apart = try_some(one, t, state, best)[0]
    proof.evaluations[p] += len(apart)
    token = best[apart.argmin()]
    if apart.min() > problem.limit[p, t]:
        apart = try_all(one, t, state)[0]
        proof.evaluations[p] += len(apart)
        proof.swept[p] += 1
        proof.distances[p, t] = apart
        token = apart.argmin()
    proof.tokens[p, t] = token
    proof.proved[p] &= bool(apart.min() <= problem.limit[p, t])
