"""Ranks: of tokens among scores, and effective ones of matrices by their singular values."""

import torch
from torch import Tensor


def token_ranks(scores: Tensor, tokens: Tensor, answers: Tensor | None = None) -> Tensor:
    """How many other tokens come before each token: the better ones and half of the ties.

    A token among V equal ones has rank (V - 1) / 2, as by chance. NaN is the worst score; scores
    that are all NaN are all equal. With answers, those come first whatever their scores: a token
    that is the answer has rank 0, any other 1 or more, by the scores of the remaining tokens.

    Args:
        scores: `(..., V)`, higher is better.
        tokens: `(...)`, the tokens that are ranked.
        answers: `(...)`, the tokens answered, where scores alone do not decide them.

    Returns:
        `(...)` in float32, 0 for the first.
    """
    score = scores.gather(-1, tokens[..., None])
    before = _compare(scores, score) - 0.5  # a token ties with itself
    if answers is None:
        return before
    answered = scores.gather(-1, answers[..., None])
    rest = before - _compare(answered, score)
    return torch.where(answers == tokens, 0.0, 1 + rest)


def _compare(scores: Tensor, score: Tensor) -> Tensor:
    """How many of `(..., N)` scores are better than `(..., 1)`, ties counted as half, `(...)`."""
    better, tied = scores > score, scores == score
    if score.isnan().any():
        better |= score.isnan() & ~scores.isnan()
        tied |= score.isnan() & scores.isnan()
    return better.sum(dim=-1).float() + tied.sum(dim=-1) / 2


def effective_rank(singular: Tensor) -> Tensor:
    """e to the entropy of their shares (Roy & Vetterli 2007): `(..., R)` to `(...)`."""
    fractions = singular / singular.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return torch.special.entr(fractions).sum(dim=-1).exp()
