"""The running sum of a sequence in which every position fades what came before it.

    s_i = g s_(i-1) + x_i

It is a masked convolution with W[i, j] = g^(i - j), so a chunk of positions is one product; what
came before a chunk reaches it as one vector. Work grows as the length, and the largest matrix is
`CHUNK` square.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arch.kernels.masked_conv import masked_convolution

CHUNK = 128
"""Positions that one product sums."""


def decayed_sum(x: Tensor, decay: Tensor | None, before: Tensor | None = None) -> Tensor:
    """s_i = g s_(i-1) + x_i, `(B, T, D) -> (B, T, D)`, from `before` `(B, D)` or zero on.

    `decay` is the logarithm of g `(H,)`, for each group of D/H features, or None where g is 1. A
    chunk of positions is a masked convolution; the sums of whole chunks are summed the same way.
    """
    (B, T, D), C = x.shape, min(CHUNK, x.shape[1])
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    chunks = F.pad(x, (0, 0, 0, -T % C)).unflatten(1, (-1, C))
    weight = decay_powers(lags_between(0, C, x.device), decay).to(x.dtype)
    sums = masked_convolution(chunks.flatten(0, 1), weight).view_as(chunks)
    if before is None and chunks.shape[1] == 1:
        return sums.flatten(1, 2)
    carried = x.new_zeros(B, D) if before is None else before.to(x.dtype)
    carried = torch.cat([carried[:, None], sums[:, :-1, -1]], dim=1)
    if carried.shape[1] > 1:
        carried = decayed_sum(carried, None if decay is None else C * decay)
    arriving = carried[:, :, None]
    if decay is not None:  # g^k - 1 is exact where g^k, rounded at every step, would drift
        faded = torch.expm1(torch.arange(1, C + 1, device=x.device)[:, None] * decay).to(x.dtype)
        change = carried.unflatten(-1, (len(decay), -1))[:, :, None] * faded[..., None]
        arriving = arriving + change.flatten(-2)
    return (sums + arriving).flatten(1, 2)[:, :T]


def lags_between(start: int, end: int, device: torch.device) -> Tensor:
    """i - j for rows start ... end and columns 0 ... end."""
    positions = torch.arange(end, device=device)
    return positions[start:, None] - positions


def decay_powers(lags: Tensor, decay: Tensor | None) -> Tensor:
    """g to the power of each lag, `(H, ...)`, or ones `(...)` where g is 1; of negative lags 1."""
    if decay is None:
        return torch.ones_like(lags, dtype=torch.float32)
    return (lags.clamp(min=0) * decay.view(-1, *[1] * lags.dim())).exp()
