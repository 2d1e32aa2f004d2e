"""What a part of a model costs, by formula: stored numbers, and work per token.

A FLOP is one multiplication or one addition of a matrix product: a product of (n, m) by (m,) is
2 n m. Of a triangular product, and of causal attention, only the entries on and below the diagonal
count: the empty half is no work. Norms, activations, biases and look-ups are not counted. The
backward pass is two products of the forward one's size, recomputation left out, so training
costs three times the forward pass.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Cost:
    """Parameters, and forward FLOPs per token at some sequence length.

    Attributes:
        parameters: numbers stored.
        masked: those of them above a diagonal, which never act.
        flops: forward, per token.
    """

    parameters: int = 0
    masked: int = 0
    flops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.parameters + other.parameters,
            self.masked + other.masked,
            self.flops + other.flops,
        )

    @property
    def training_flops(self) -> int:
        """Forward and backward, per token."""
        return 3 * self.flops


def linear_cost(*layers: nn.Linear) -> Cost:
    """Of linear layers that every position passes once."""
    total = Cost()
    for layer in layers:
        weights = layer.in_features * layer.out_features
        biases = 0 if layer.bias is None else layer.out_features
        total += Cost(weights + biases, 0, 2 * weights)
    return total


def norm_cost(norm: nn.Module) -> Cost:
    """Of a norm over features, or of none: parameters only."""
    return Cost(sum(parameter.numel() for parameter in norm.parameters()))
