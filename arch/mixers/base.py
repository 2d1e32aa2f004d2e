"""The contract of every token mixer."""

from typing import Any

from torch import Tensor, nn

from arch.cost import Cost
from arch.history import History


class TokenMixer(nn.Module):
    """The part of a block that moves information between positions; always causal.

    A class is built as `Mixer(d_model, context, **arguments)`, its arguments keyword-only: they are
    what a pattern such as `attention(heads=4)` may set. A mixer made of `Triangle`, `Diagonals`,
    `nn.Linear` and norms is initialised, saved and loaded with nothing more said; a linear layer
    that ends in the residual stream is called `o_proj`.

    `prefix` and `step` serve generation and exact search with one mechanism. N candidates may share
    P prefixes (P divides N, the candidates of one prefix stand together): nothing of a prefix is
    copied for them.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Mixes whole sequences, `(B, T, D) -> (B, T, D)`."""
        raise NotImplementedError

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Consumes T more positions, `(P, T, D) -> (P, T, D)`; a new state remembers them.

        The state is the inputs so far, unless a mixer has something better to remember.
        """
        if state is None:
            return self(x), History(x)
        return self.step(x, state), state.append(x)

    def step(self, x: Tensor, state: Any) -> Tensor:
        """Looks at S further positions, `(N, S, D) -> (N, S, D)`; the state stays as it is."""
        raise NotImplementedError

    def cost(self, length: int) -> Cost:
        """Parameters, and FLOPs per token in sequences of `length`, by formula."""
        raise NotImplementedError
