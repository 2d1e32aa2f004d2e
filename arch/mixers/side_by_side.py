"""Several token mixers on the same input, their outputs summed."""

from typing import Any

from torch import Tensor, nn

from arch.cost import Cost
from arch.mixers.base import TokenMixer


class SideBySide(TokenMixer):
    """What `attention+flat` in a pattern builds."""

    def __init__(self, mixers: list[TokenMixer]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        y = self.mixers[0](x)
        for mixer in self.mixers[1:]:
            y = y + mixer(x)
        return y

    def prefix(self, x: Tensor, state: tuple[Any, ...] | None = None) -> tuple[Tensor, Any]:
        """The state is the tuple of the mixers' states."""
        states = state or (None,) * len(self.mixers)
        pairs = [m.prefix(x, s) for m, s in zip(self.mixers, states, strict=True)]  # pyright: ignore
        return sum(y for y, _ in pairs), tuple(s for _, s in pairs)  # pyright: ignore

    def step(self, x: Tensor, state: tuple[Any, ...]) -> Tensor:
        """Sum of the mixers' steps."""
        return sum(m.step(x, s) for m, s in zip(self.mixers, state, strict=True))  # pyright: ignore

    def cost(self, length: int) -> Cost:
        """Sum of the mixers' costs."""
        return sum((m.cost(length) for m in self.mixers), Cost())  # pyright: ignore
