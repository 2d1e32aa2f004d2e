"""Which token is nearest to a vector: by product, by direction, by distance; and who agrees."""

import torch
from torch import Tensor

METRICS = ("dot", "cosine", "euclid")


def closeness(queries: Tensor, keys: Tensor, metric: str) -> Tensor:
    """What a metric orders keys by, `(N, V)`, the nearest with the largest value.

    Args:
        queries: `(N, D)`.
        keys: `(V, D)`.
        metric: one of `METRICS`.
    """
    products = queries @ keys.T
    if metric == "cosine":  # the query's own length changes no order
        return products / keys.norm(dim=1).clamp(min=1e-30)
    if metric == "euclid":  # nor does its square: |q - k|^2 = |q|^2 - 2 (q k - |k|^2 / 2)
        return products - keys.square().sum(dim=1) / 2
    return products


def nearest(queries: Tensor, keys: Tensor, metric: str, count: int = 1) -> Tensor:
    """The nearest keys, `(N, count)`, the nearest first."""
    return closeness(queries, keys, metric).topk(count, dim=1).indices


def agreement(queries: Tensor, keys: Tensor, answers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """How often the metrics agree with given answers, and with each other.

    Args:
        queries: `(N, D)`.
        keys: `(V, D)`.
        answers: `(N,)`.
        count: how many of the nearest two metrics are compared on.

    Returns:
        Share of queries whose nearest key is the answer, by each of `METRICS`, `(3,)`; share of
        the `count` nearest that two metrics have in common, `(3, 3)`.
    """
    found = [nearest(queries, keys, metric, count) for metric in METRICS]
    agreed = torch.stack([(tokens[:, 0] == answers).float().mean() for tokens in found])
    both = [[(a[:, :, None] == b[:, None]).any(-1).float().mean() for b in found] for a in found]
    return agreed, torch.tensor(both)
