"""Hill climbing: one token at a time is exchanged for a random one."""

import torch

from eval.inversion.gradient.descend import random_tokens
from eval.inversion.solver import Answer, solver


@solver("search", random=True, title="hill climbing")
def hill(problem, generators, *, rounds: int = 25, width: int = 64):
    """Exchanges one token at a time for a random one, and keeps what comes nearer.

    Args:
        problem: of any slice.
        generators: of each row's guesses.
        rounds: over all positions.
        width: tokens tried at a position in each.
    """
    V, T = len(problem.vocabulary), problem.length
    answers = []
    for row, generator in enumerate(generators):
        one = problem.of([row])
        tokens = random_tokens([generator], (T,), problem.vocabulary)
        scores = torch.full((T, V), -torch.inf, device=tokens.device)
        for _ in range(rounds):
            for t in range(T):
                tried = tokens.repeat(width + 1, 1)  # the last one stays as it is
                tried[:-1, t] = random_tokens([generator], (width,), problem.vocabulary)[0]
                distances = one.distances(one.circuit.of_tokens(tried)).norm(dim=-1)
                scores[t, tried[:, t]] = -distances
                tokens = tried[distances.argmin()][None]
        scores[torch.arange(T), tokens[0]] = scores.amax(dim=-1) + 1
        answers.append(Answer(tokens[0], scores, evaluations=rounds * T * (width + 1) * T))
    return answers
