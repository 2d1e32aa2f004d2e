"""Figures of matrices over positions: how far they look, and how much there is in them."""

import torch
import torch.nn.functional as F
from torch import Tensor

CORNER = 64  # positions of which singular values are taken
TINY = 1e-30


def by_lag(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean weight at each distance, absolute and signed: `(..., T, T)` to `(..., T)` twice."""
    T = weights.shape[-1]
    entries = T - torch.arange(T, device=weights.device)

    def mean(values: Tensor) -> Tensor:
        # One number more in every row of T shears the matrix: lag k comes to stand in column k - 1.
        sheared = F.pad(values.flip(-1), (0, 1)).flatten(-2).unflatten(-1, (T + 1, T))
        return sheared.sum(dim=-2).roll(1, dims=-1) / entries

    lower = weights.tril()
    return mean(lower.abs()), mean(lower)


def spectrum(weights: Tensor) -> Tensor:
    """Singular values for the first `CORNER` positions, `(..., T, T)` to `(..., R)`, on the CPU."""
    return torch.linalg.svdvals(weights[..., :CORNER, :CORNER].float().cpu())


def own_share(weights: Tensor) -> Tensor:
    """Share of a row's absolute weight that is on its own position, `(..., T, T)` to `(...)`."""
    sizes = weights.abs()
    own = sizes.diagonal(dim1=-2, dim2=-1)
    return (own / sizes.sum(dim=-1).clamp(min=TINY)).mean(dim=-1)


def first_share(weights: Tensor) -> Tensor:
    """Share that is on the very first position, rows after it, `(..., T, T)` to `(...)`."""
    sizes = weights[..., 1:, :].abs()
    return (sizes[..., 0] / sizes.sum(dim=-1).clamp(min=TINY)).mean(dim=-1)


def mean_distance(weights: Tensor) -> Tensor:
    """Mean distance looked back, weighted by absolute weights, `(..., T, T)` to `(...)`."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    back = (positions[:, None] - positions).clamp(min=0)
    sizes = weights.abs()
    rows = (sizes * back).sum(dim=-1) / sizes.sum(dim=-1).clamp(min=TINY)
    return rows.mean(dim=-1)


def effective_rank(singular: Tensor) -> Tensor:
    """e to the entropy of their shares (Roy & Vetterli 2007): `(..., R)` to `(...)`."""
    share = singular / singular.sum(dim=-1, keepdim=True).clamp(min=TINY)
    return torch.special.entr(share).sum(dim=-1).exp()


def participation(singular: Tensor) -> Tensor:
    """(sum s^2)^2 / sum s^4: how many singular values carry the square, `(..., R)` to `(...)`."""
    power = singular.square()
    return power.sum(dim=-1).square() / power.square().sum(dim=-1).clamp(min=TINY)
