"""The contract of every token mixer."""

from typing import Any

from torch import Tensor, nn


class TokenMixer(nn.Module):
    """The part of a block that moves information between positions; always causal.

    A class is built as `Mixer(d_model, context, **arguments)`, its arguments keyword-only: they are
    what a pattern such as `attention(heads=4)` may set.

    `prefix` and `step` serve generation and exact search with one mechanism. N candidates may share
    P prefixes (P divides N, the candidates of one prefix stand together): nothing of a prefix is
    copied for them.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Mixes whole sequences, `(B, T, D) -> (B, T, D)`."""
        raise NotImplementedError

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Consumes T more positions, `(P, T, D) -> (P, T, D)`; a new state remembers them."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> Tensor:
        """Looks at S further positions, `(N, S, D) -> (N, S, D)`; the state stays as it is."""
        raise NotImplementedError
