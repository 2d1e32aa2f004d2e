"""The learnt lower triangle that every masked convolution is made of."""

import torch
from torch import Tensor, nn

from arch.kernels import masked_convolution


class Triangle(nn.Module):
    """Y[b,i,:] = sum over j <= i of weight[i,j] X[b,j,:] + bias[i], for any T up to the context.

    Weights above the diagonal never influence anything: no value, no gradient, zero in saved files.

    Args:
        context: the largest T.
        bias: whether each output position has a scalar added to all its features.
    """

    def __init__(self, context: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, context))
        self.bias = nn.Parameter(torch.empty(context)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        T = x.shape[1]
        bias = None if self.bias is None else self.bias[:T]
        return masked_convolution(x, self.weight[:T, :T], bias)

    def step(self, x: Tensor, past: Tensor) -> Tensor:
        """Rows t ... t+S of the product: x `(N, S, D)` after past `(P, t, D)`, P dividing N."""
        (N, S, D), (P, t) = x.shape, past.shape[:2]
        rows = self.weight[t : t + S]
        own = masked_convolution(x, rows[:, t : t + S]) if S > 1 else x * rows[0, t]
        shared = rows[:, :t] @ past
        if self.bias is not None:
            shared = shared + self.bias[t : t + S, None]
        return (own.view(P, N // P, S, D) + shared[:, None]).view(N, S, D)
