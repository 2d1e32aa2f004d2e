"""The parallel masked mixer: several triangles side by side, their outputs summed."""

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from arch.cost import Cost
from arch.errors import check_count
from arch.history import History
from arch.kernels import parallel_convolution
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle, masked_rows


class Parallel(TokenMixer):
    """sum over p of act(tril(W_p) X + b_p), for p = 1 ... branches (Badger, 2409.01482).

    With activation none this is one flat mixer of the summed weights, and runs as one; what differs
    is its start, whose standard deviation is that of flat times the root of branches, and that each
    step of the optimiser moves the sum by as many times.
    """

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        branches: int = 2,
        activation: Literal["none", "gelu"] = "none",
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_count("parallel: branches", branches)
        self.d_model = d_model
        self.activation: Literal["none", "gelu"] = activation
        self.mix = Triangle(context, bias=bias, stack=(branches,))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        weight, bias = self.mix.rows(0, x.shape[1])
        return parallel_convolution(x, weight, bias, activation=self.activation)

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of every W per position."""
        past = state.values
        weight, bias = self.mix.rows(past.shape[1], x.shape[1])
        if self.activation == "none":
            return masked_rows(x, past, weight.sum(0), None if bias is None else bias.sum(0))
        biases = [None] * len(weight) if bias is None else bias
        y = x.new_zeros(())
        for w, b in zip(weight, biases, strict=True):
            y = y + F.gelu(masked_rows(x, past, w, b))
        return y

    def cost(self, length: int) -> Cost:
        """A triangular product for each branch, or one for all where they are summed first."""
        cost = self.mix.cost(length, self.d_model)
        products = 1 if self.activation == "none" else len(self.mix.weight)
        return Cost(cost.parameters, cost.masked, cost.flops // len(self.mix.weight) * products)
