"""Spearman's rank correlation."""

import torch
from torch import Tensor


def ranks(values: Tensor) -> Tensor:
    """Rank of each of `(N,)` numbers, equal ones their mean rank, `(N,)` in float64."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[place]


def spearman(a: Tensor, b: Tensor) -> float:
    """Of two vectors `(N,)`; nan where one of them is constant."""
    return float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1])
