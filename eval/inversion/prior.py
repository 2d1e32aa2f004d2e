"""What the model itself expects, weighed against the evidence: for noisy targets, reported apart.

With Gaussian noise in the target the nearest token is the likeliest one if all tokens are alike.
They are not: the model that is being inverted says how likely each is after the tokens before it.
Adding that (maximum a posteriori) finds more, but measures the prior along with the evidence.
"""

import time

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.lexicon import Lexicon
from eval.inversion.problem import Problem
from eval.inversion.sweep import try_all


def expected(problem: Problem, lexicon: Lexicon, weight: float = 1.0) -> list[Answer]:
    """The sweep on -log p(target | token) - weight * log p(token | those before), for noise known.

    Args:
        problem: every position shown.
        lexicon: not used.
        weight: of the prior; 1 is Bayes' rule.
    """
    started = time.perf_counter()
    model, (P, S, C) = problem.circuit.model, problem.target.shape
    whole = Circuit(model, len(model.blocks))
    state, after, tokens, all_scores = None, None, [], []
    prior = problem.target.new_zeros(P, len(problem.circuit.vocabulary))  # nothing stands before
    for t in range(S):
        apart = try_all(problem, t, state)
        rounding = problem.floor[:, t, None].square() / C
        variance = problem.noise[:, t, None].square() + rounding  # of each channel
        scores = -apart.square() / (2 * variance) + weight * prior
        token = scores.argmax(dim=-1, keepdim=True)
        tokens.append(token)
        all_scores.append(scores)
        state = problem.circuit.prefix(token, state)
        hidden, after = whole.extend(token, after)
        logits = model.logits(hidden.to(model.embedding.weight.dtype))[:, -1]
        prior = logits.to(apart).log_softmax(dim=-1)
    found, scores = torch.cat(tokens, dim=1), torch.stack(all_scores, dim=1)
    return _answers(problem, found, scores, (time.perf_counter() - started) / P)


def _answers(problem: Problem, found: Tensor, scores: Tensor, seconds: float) -> list[Answer]:
    spent = problem.length * (len(problem.circuit.vocabulary) + 1)
    return [
        problem.ranked(p, Answer(found[p], scores[p], evaluations=spent, seconds=seconds))
        for p in range(len(found))
    ]
