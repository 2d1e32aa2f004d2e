"""The kernel-k masked mixer: a window of neighbouring features, a triangle for each of its taps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from arch.cost import Cost
from arch.errors import check_count
from arch.history import History
from arch.masked_conv import masked_convolution
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle, masked_rows


class Kernel(TokenMixer):
    """sum over k of tril(W_k) X[:, :, d + k - (size - 1) // 2], + b: the features slide past.

    The "fully convoluted" mixer of Badger (2409.01482): a Conv1d over the feature axis whose
    channels are the positions, `padding="same"`, with zeros beyond the first and last feature.
    """

    def __init__(self, d_model: int, context: int, *, size: int = 4, bias: bool = True) -> None:
        super().__init__()
        check_count("kernel: size", size)
        self.d_model, self.size = d_model, size
        self.mix = Triangle(context, bias=bias, stack=(size,), summed=True)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        weight, bias = self.mix.rows(0, x.shape[1])
        taps = zip(self._shifted(x), weight, strict=True)
        parts = [masked_convolution(shifted, w) for shifted, w in taps]
        return _biased(torch.stack(parts).sum(0), bias)

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of every W per position."""
        past = state.values
        weight, bias = self.mix.rows(past.shape[1], x.shape[1])
        taps = zip(self._shifted(x), self._shifted(past), weight, strict=True)
        parts = [masked_rows(own, before, w) for own, before, w in taps]
        return _biased(torch.stack(parts).sum(0), bias)

    def cost(self, length: int) -> Cost:
        """A triangular product for each tap."""
        return self.mix.cost(length, self.d_model)

    def _shifted(self, x: Tensor) -> Tensor:
        """What each tap reads, `(B, T, D) -> (size, B, T, D)`."""
        before = (self.size - 1) // 2
        padded = F.pad(x, (before, self.size - 1 - before))
        return torch.stack([padded[..., k : k + self.d_model] for k in range(self.size)])


def _biased(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias[:, None]
