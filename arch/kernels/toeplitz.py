"""Products with long triangular Toeplitz matrices, by Fourier transforms of blocks.

    y_i = sum over j <= i of w[i - j] x_j

Within a block of positions the product is a masked convolution; what earlier blocks add is taken by
transforms of length twice a block. So a later input moves no bit of an output, as it would in one
transform over the whole length.
"""

import torch
from torch import Tensor

from arch.kernels.decayed_sum import lags_between
from arch.kernels.masked_conv import masked_convolution

BLOCK = 512
"""Positions of a block."""
LONG = 2048
"""Positions from which transforms are faster than one product on a CPU (docs/mixers.md)."""


def toeplitz_product(x: Tensor, weight: Tensor) -> Tensor:
    """The product `(B, T, D) -> (B, T, D)` by weights `(H, T)`, one for each lag and D/H features.

    Computed in float32 where x is of half precision.
    """
    (_, T, D), (H, _), C = x.shape, weight.shape, BLOCK
    exact = torch.promote_types(x.dtype, torch.float32)
    padding = -T % C
    x = torch.nn.functional.pad(x.to(exact), (0, 0, 0, padding)).unflatten(1, (-1, C))
    weight = torch.nn.functional.pad(weight.to(exact), (0, padding))
    lags = lags_between(0, C, x.device).clamp(min=0)
    y = masked_convolution(x.flatten(0, 1), weight[:, lags]).view_as(x)
    spectrum = torch.fft.rfft(x, 2 * C, dim=2)
    added = torch.zeros_like(spectrum)
    for distance in range(1, x.shape[1]):  # blocks between an input and an output
        start = distance * C
        later, earlier = weight[:, start : start + C], weight[:, start - C + 1 : start]
        around = torch.cat([later, weight.new_zeros(H, 1), earlier], dim=1)
        turned = torch.fft.rfft(around, dim=1).T.repeat_interleave(D // H, dim=1)
        added[:, distance:] += turned * spectrum[:, :-distance]
    return (y + torch.fft.irfft(added, 2 * C, dim=2)[:, :, :C]).flatten(1, 2)[:, :T]
