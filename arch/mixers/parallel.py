"""The parallel masked mixer: several triangles side by side, their outputs summed."""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from arch.cost import Cost
from arch.errors import check_count
from arch.history import History
from arch.masked_conv import masked_convolution
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
        y = x.new_zeros(())
        for weight, bias in self._branches(0, x.shape[1]):
            part = masked_convolution(x, weight, bias)
            y = y + (part if self.activation == "none" else F.gelu(part))
        return y

    def step(self, x: Tensor, state: History) -> Tensor:
        """One row of every W per position."""
        past = state.values
        y = x.new_zeros(())
        for weight, bias in self._branches(past.shape[1], x.shape[1]):
            part = masked_rows(x, past, weight, bias)
            y = y + (part if self.activation == "none" else F.gelu(part))
        return y

    def _branches(self, start: int, count: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields each branch's rows, or those of their sum where no activation keeps them apart."""
        weight, bias = self.mix.rows(start, count)
        if self.activation == "none":
            weight = weight.sum(0, keepdim=True)
            bias = None if bias is None else bias.sum(0, keepdim=True)
        for p, w in enumerate(weight):
            yield w, None if bias is None else bias[p]

    def cost(self, length: int) -> Cost:
        """A triangular product for each branch, or one for all where they are summed first."""
        cost = self.mix.cost(length, self.d_model)
        products = 1 if self.activation == "none" else len(self.mix.weight)
        return Cost(cost.parameters, cost.masked, cost.flops // len(self.mix.weight) * products)
