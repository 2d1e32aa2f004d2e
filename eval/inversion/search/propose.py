"""Propose, then verify: exact recovery of shown tokens at the price of a few forward passes.

A guess of the whole prompt is checked by one forward pass: by causality every position up to the
first one that misses its target is proved. The others are guessed anew, all positions at once, from
the difference of output and target. Where guesses do not hit, a shortlist is tried at the first
miss, after its proved prefix; where that fails too, the whole vocabulary. So the answer is exact
whatever the guesses are worth; only the cost depends on them.
"""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.lexicon import Reader
from eval.inversion.problem import Batch, Problem
from eval.inversion.search.sweep import try_all, try_some
from eval.inversion.solvers import Chance, LexiconOf, solver
from eval.tasks import SoFar, tell, watched

SHORTLIST = 32  # tokens tried at a position before all of them are, by outputs and by the text
PATIENCE = 1  # passes that a miss may stay where it is before the shortlist


@solver(
    "search",
    hidden=range(1),
    cost=lambda V, T, k: 10 * T,
    title="exact search, propose and verify",
    short="exact search",
    word="exact",
)
def propose(batch: Batch, chance: Chance, lexicon: LexiconOf) -> list[Answer]:
    """Guesses the whole prompt and checks it in one pass, which proves all before the first miss.

    There it searches. For positions that are shown. A position at which no token of the vocabulary
    lies within the limit keeps the nearest one; the search goes on after it.

    Args:
        batch: one problem, every position shown.
        chance: not used.
        lexicon: for the guesses.
    """
    (problem,) = batch.problems
    reader = Reader(lexicon(problem.circuit), problem.slice.low, problem.slice.high)
    target, limit, circuit = problem.target, problem.limit, problem.circuit
    P, S = target.shape[:2]
    distances = reader.distances(target)  # the last guess's, of every token at each position
    distances[:, 0] = reader.first(target[:, 0])
    tokens = distances.argmin(dim=-1)
    answers = [
        Answer(tokens[p], distances[p], certificate="residual", notes={"swept": 0})
        for p in range(P)
    ]
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
        for i, p in enumerate(rows):
            answers[p].evaluations += S
            before, misses = settled[p], (~hit[i, settled[p] :]).nonzero()
            settled[p] = before + int(misses[0]) if len(misses) else S
            stayed[p] = stayed[p] + 1 if settled[p] == before else 0
            if settled[p] == S:
                continue
            tokens[p, settled[p] :] = guesses[i, settled[p] :]
            if stayed[p] >= PATIENCE:
                _search_at(problem.of([p]), settled[p], whole[i : i + 1, : settled[p]], answers[p])
                settled[p] += 1
        if watched():
            known = torch.tensor(settled, device=tokens.device)[:, None]
            tell(SoFar(tokens, torch.arange(S, device=tokens.device) < known))
        rows = [p for p in rows if settled[p] < S]
    for answer in answers:
        answer.scores = -answer.scores
    return answers


def _search_at(problem: Problem, t: int, prefix: Tensor, answer: Answer) -> None:
    """Puts the nearest token at the t-th shown position of a prompt, all before it being settled.

    The shortlist first; the whole vocabulary where none of it lies within the limit. The answer's
    scores are distances still.
    """
    state = problem.circuit.prefix(prefix) if prefix.shape[1] else None
    count = min(SHORTLIST, answer.scores.shape[-1])
    best = answer.scores[t].topk(count, largest=False).indices
    if prefix.shape[1]:
        likely = problem.circuit.model(prefix)[0, -1].topk(count).indices
        best = torch.cat([best, likely]).unique()
        answer.evaluations += prefix.shape[1]
    apart = try_some(problem, t, state, best)[0]
    answer.evaluations += len(apart)
    answer.tokens[t] = best[apart.argmin()]
    if apart.min() > problem.limit[0, t]:
        apart = try_all(problem, t, state)[0]
        answer.evaluations += len(apart)
        answer.notes["swept"] += 1
        answer.scores[t] = apart
        answer.tokens[t] = apart.argmin()
    if apart.min() > problem.limit[0, t]:
        answer.certificate = None
