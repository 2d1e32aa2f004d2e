"""The headed masked mixer: a triangle for each group of features, between two projections."""

from torch import Tensor, nn

from arch.cost import Cost, linear_cost
from arch.errors import ModelError
from arch.history import History
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle


class Headed(TokenMixer):
    """[tril(W_1) X A_1 + b_1, ..., tril(W_h) X A_h + b_h] W_o, D/heads features a head.

    The multi-headed form of Badger (2409.01482) as it was meant: the A_h together are one D x D
    projection, each head has its own triangle, and W_o mixes the heads.

    Args:
        d_model: width D of the input and output.
        context: the largest T.
        heads: number of triangles; divides D.
        bias: whether the triangles have biases.
        projection_bias: whether the two projections have.

    Raises:
        ModelError: heads that do not divide.
    """

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int = 4,
        bias: bool = True,
        projection_bias: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or d_model % heads:
            raise ModelError(f"headed: heads={heads} must divide d_model={d_model}")
        self.in_proj = nn.Linear(d_model, d_model, bias=projection_bias)
        self.mix = Triangle(context, bias=bias, stack=(heads,))
        self.o_proj = nn.Linear(d_model, d_model, bias=projection_bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.o_proj(self.mix(self.in_proj(x)))

    def prefix(self, x: Tensor, state: History | None = None) -> tuple[Tensor, History]:
        """The state is the projected inputs so far."""
        x = self.in_proj(x)
        if state is None:
            return self.o_proj(self.mix(x)), History(x)
        return self.o_proj(self.mix.step(x, state.values)), state.append(x)

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of each head's W per position."""
        return self.o_proj(self.mix.step(self.in_proj(x), state.values))

    def cost(self, length: int) -> Cost:
        """Two projections and, over all heads together, one triangular product."""
        heads, d_model = len(self.mix.weight), self.in_proj.in_features
        return self.mix.cost(length, d_model // heads) + linear_cost(self.in_proj, self.o_proj)
