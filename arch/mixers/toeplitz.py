"""The Toeplitz masked mixer: one weight for each lag, the same at every position."""

from torch import Tensor

from arch.cost import Cost
from arch.history import History
from arch.masked_conv import masked_convolution
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Diagonals, masked_rows


class Toeplitz(TokenMixer):
    """Y[b,i,:] = sum over j <= i of w[i-j] X[b,j,:] + b[i]: a causal convolution over time."""

    def __init__(self, d_model: int, context: int, *, bias: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        self.mix = Diagonals(context, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return masked_convolution(x, *self.mix.rows(0, x.shape[1]))

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of the matrix per position."""
        past = state.values
        return masked_rows(x, past, *self.mix.rows(past.shape[1], x.shape[1]))

    def cost(self, length: int) -> Cost:
        """One triangular product."""
        return self.mix.cost(length, self.d_model)
