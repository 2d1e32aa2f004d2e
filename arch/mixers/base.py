"""The contract of token mixers, and two mixers: identity, and several side by side."""

from typing import Any

import torch
from torch import Tensor, nn

from arch.errors import ModelError


class TokenMixer(nn.Module):
    """The part of a block that moves information between positions; always causal.

    A class is built as `Mixer(d_model, context, **arguments)`, its arguments keyword-only: they are
    what a pattern such as `attention(heads=4)` may set. A mixer made of `Triangle`,
    `nn.Linear` and norms is initialised, saved and loaded with nothing more said; a linear layer
    that ends in the residual stream is called `o_proj`. A mixer with parameters of its own starts
    them in its `reset_parameters`. `forward` is all that a class must have.

    `prefix` and `step` serve generation and exact search with one mechanism. N candidates may share
    P prefixes (P divides N, the candidates of one prefix stand together): nothing of a prefix is
    copied for them.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Mixes whole sequences, `(B, T, D) -> (B, T, D)`."""
        raise NotImplementedError

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Consumes T more positions, `(P, T, D) -> (P, T, D)`; a new state remembers them.

        The state is the inputs so far, `(P, t, D)`, unless a mixer has something better to
        remember.
        """
        if state is None:
            return self(x), x
        return self.step(x, state), torch.cat([state, x], dim=1)

    def step(self, x: Tensor, state: Any) -> Tensor:
        """Looks at S further positions, `(N, S, D) -> (N, S, D)`; the state stays as it is.

        Of a mixer that has only `forward`: all inputs so far are run again, which is exact and
        slow.

        Raises:
            ModelError: a mixer that remembers something else than its inputs has no `step`.
        """
        if not isinstance(state, Tensor):
            raise ModelError(
                f"mixer {type(self).__name__} has a prefix of its own and no step; give it a "
                "method step(self, x, state)"
            )
        past = state.repeat_interleave(len(x) // len(state), dim=0)
        return self(torch.cat([past, x], dim=1))[:, past.shape[1] :]


class Identity(TokenMixer):
    """Y = X: every position keeps to itself. The control of every comparison."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return x

    def prefix(self, x: Tensor, state: None = None) -> tuple[Tensor, None]:
        """`(P, T, D) -> (P, T, D)`; nothing is remembered."""
        return x, None

    def step(self, x: Tensor, state: None) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return x


class SideBySide(TokenMixer):
    """Several token mixers on the same input, their outputs summed: `attention+flat`."""

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
        """`(N, S, D) -> (N, S, D)`."""
        return sum(m.step(x, s) for m, s in zip(self.mixers, state, strict=True))  # pyright: ignore
