"""The flat masked mixer: one triangle over the sequence."""

from torch import Tensor

from arch.cost import Cost
from arch.history import History
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle


class Flat(TokenMixer):
    """tril(W) X + b (Badger, "Masked Mixers for Language Generation and Retrieval", 2409.01482)."""

    def __init__(self, d_model: int, context: int, *, bias: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        self.mix = Triangle(context, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.mix(x)

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of W per position."""
        return self.mix.step(x, state.values)

    def cost(self, length: int) -> Cost:
        """One triangular product."""
        return self.mix.cost(length, self.d_model)
