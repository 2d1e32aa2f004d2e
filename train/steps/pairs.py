"""Initial values from the data: an embedding and a head that know which tokens follow which.

A model learns the frequencies of pairs first. To count them takes a second, and the embedding and
the head of a new model can hold them before the first step, as far as their width allows.
"""

from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, svds

from arch import LanguageModel, ModelConfig
from arch.model import embedding_scale
from train.settings import RunError
from train.steps.data import IGNORE, Windows

TOKENS = 2**23
"""Tokens that are counted, at most."""
UNSEEN = 100.0
"""Pairs that are added to those of each token, the other token as frequent as in all data: what
is known of rare tokens is uncertain."""
OTHERS = 0.5
"""Weight, in the embedding, of the token before and of the second token after; the next has 1."""
TOLERANCE = 1e-2
"""Of the singular values, relative: training moves them further."""
RIDGE = 1e-3
"""Added to the diagonal of the head's least squares, relative to its mean."""


@torch.no_grad()
def start_from_pairs(model: LanguageModel, windows: Windows) -> str:
    """Sets the embedding and the head, in place, so that each token predicts the next one.

    All rows of the embedding get one length, by `embedding_scale`: the norm before the head would
    make them equal anyway.

    Returns:
        A line about it.

    Raises:
        RunError: as `check_pairs`.
    """
    check_pairs(model.config)
    V, D = model.config.vocab_size, model.config.d_model
    batch = windows.batch(0, max(1, min(windows.count, TOKENS // windows.stride)))
    inputs, targets = (part.numpy() for part in batch)
    following = count_pairs(inputs, targets, V)
    embedding, head = factorise_pairs(following, count_pairs(inputs[:, :-1], targets[:, 1:], V), D)
    model.embedding.weight[:V] = torch.from_numpy(embedding) * embedding_scale(model)
    model.head.weight[:V] = torch.from_numpy(head)
    return f"the embedding and the head start from {int(following.sum()):,} pairs of tokens"


def check_pairs(config: ModelConfig) -> None:
    """Refuses a model that cannot start from pairs.

    Raises:
        RunError: a tied head, or an embedding that is not narrower than the vocabulary.
    """
    V, D = config.vocab_size, config.d_model
    if config.tied:
        raise RunError("--init_from pairs needs a head of its own; leave out --model.tied true")
    if D >= V - 1:
        raise RunError(
            f"--init_from pairs: --model.d_model is {D}; it must be below {V - 1}, with a "
            f"vocabulary of {V}"
        )


def count_pairs(firsts: np.ndarray, seconds: np.ndarray, V: int) -> sparse.csr_array:
    """How often each token is the second of each first one: `(V, V)` of two arrays `(B, T)`.

    Pairs whose second token is IGNORE do not count.
    """
    counted = seconds != IGNORE
    pairs: Any = (firsts[counted], seconds[counted])
    ones = np.ones(int(counted.sum()), np.float32)
    return sparse.coo_array((ones, pairs), shape=(V, V)).tocsr()


def factorise_pairs(
    following: sparse.csr_array, second: sparse.csr_array, D: int
) -> tuple[np.ndarray, np.ndarray]:
    """An embedding whose rows have length 1 a feature, and the head that fits it, both `(V, D)`.

    M `(V, V)` is log P(next token | token), up to a constant a row: a sparse part for seen pairs,
    plus one row of log frequencies for all other pairs. The embedding comes from the best rank-D
    approximation of M joined with similar matrices for the token before and the second token after;
    frequent tokens weigh more. The head minimises the weighted squares of M - embedding head^T.

    Args:
        following: counts of the next token, `(V, V)`.
        second: counts of the second token after.
    """
    fractions = following.sum(axis=0) + 0.5
    fractions, V = fractions / fractions.sum(), len(fractions)
    weights = np.sqrt(fractions * V).astype(np.float32)
    frequencies = np.log(fractions)
    frequencies = (frequencies - frequencies.mean()).astype(np.float32)
    seen = log_ratios(following, fractions)
    others = [OTHERS * log_ratios(counts, fractions) for counts in (following.T.tocsr(), second)]
    scale = sparse.diags_array(weights)
    beside: Any = sparse.hstack([scale @ part @ scale for part in (seen, *others)]).tocsr()
    unseen = np.zeros(beside.shape[1], np.float32)
    unseen[:V] = frequencies * weights
    operator: Any = LinearOperator
    whole = operator(
        beside.shape,
        matvec=lambda x: beside @ x.ravel() + weights * (unseen @ x.ravel()),
        rmatvec=lambda x: beside.T @ x.ravel() + unseen * (weights @ x.ravel()),
        dtype=np.float32,
    )
    start: Any = np.ones(V, np.float32)
    left, values, _ = svds(whole, k=D, v0=start, tol=TOLERANCE)  # pyright: ignore
    embedding = left * np.sqrt(values) / weights[:, None]
    lengths = np.sqrt(np.square(embedding).mean(axis=1, keepdims=True))
    embedding = embedding / np.maximum(lengths, np.finfo(np.float32).tiny)
    weighted = embedding * np.square(weights)[:, None]
    squares = embedding.T @ weighted
    products = seen.T @ weighted + frequencies[:, None] * weighted.sum(axis=0)
    squares += RIDGE * np.trace(squares) / D * np.eye(D, dtype=np.float32)
    return embedding, np.linalg.solve(squares, products.T).T


def log_ratios(counts: sparse.csr_array, fractions: np.ndarray) -> sparse.csr_array:
    """log P(second | first) - log P(second), up to a number a row, which is that of unseen pairs.

    Args:
        counts: of pairs, `(V, V)`.
        fractions: of the data, by token, `(V,)`.
    """
    ratios = counts.copy()
    ratios.data = np.log1p(ratios.data / (UNSEEN * fractions[ratios.indices])).astype(np.float32)
    return ratios
