"""The mixer that mixes nothing: the control of every comparison."""

from torch import Tensor

from arch.cost import Cost
from arch.mixers.base import TokenMixer


class Identity(TokenMixer):
    """Y = X: every position keeps to itself."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return x

    def prefix(self, x: Tensor, state: None = None) -> tuple[Tensor, None]:
        """There is nothing to remember."""
        return x, None

    def step(self, x: Tensor, state: None) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return x

    def cost(self, length: int) -> Cost:
        """Nothing."""
        return Cost()
