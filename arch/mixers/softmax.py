"""The softmax masked mixer: every output is a weighted mean of the positions that it may see."""

import torch
from torch import Tensor

from arch.cost import Cost
from arch.history import History
from arch.masked_conv import masked_convolution
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle, masked_rows


class Softmax(TokenMixer):
    """P X + b, where row i of P is the softmax of W[i, :i+1]: no weight for the future, at any T.

    The normalised mixers of Badger's code either let exp(0) of masked entries through or rewrite
    their weights at every call; this one does neither.
    """

    def __init__(self, d_model: int, context: int, *, bias: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        self.mix = Triangle(context, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return masked_convolution(x, *self._rows(0, x.shape[1]))

    def step(self, x: Tensor, state: History) -> Tensor:
        """One normalised row per position."""
        past = state.values
        return masked_rows(x, past, *self._rows(past.shape[1], x.shape[1]))

    def cost(self, length: int) -> Cost:
        """One triangular product."""
        return self.mix.cost(length, self.d_model)

    def _rows(self, start: int, count: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mix.rows(start, count)
        future = torch.ones_like(weight, dtype=torch.bool).triu(start + 1)
        return weight.masked_fill(future, -torch.inf).softmax(dim=-1), bias
