"""The expanded masked mixer: a hidden layer over the sequence, between stacked triangles."""

import torch
from torch import Tensor
from torch.nn import functional as F

from arch.cost import Cost
from arch.errors import check_count
from arch.history import History
from arch.masked_conv import masked_convolution
from arch.mixers.base import TokenMixer
from arch.mixers.triangle import Triangle, masked_rows

Rows = tuple[Tensor, Tensor | None, Tensor, Tensor | None]


class Expanded(TokenMixer):
    """sum over r of tril(V_r) gelu(tril(U_r) X + c_r), + b, for r = 1 ... factor.

    Every hidden row (r, t) sees the tokens up to t, so all of a larger factor is used. At factor 1
    this is the two-stage form of Badger (2409.01482).
    """

    def __init__(self, d_model: int, context: int, *, factor: int = 2, bias: bool = True) -> None:
        super().__init__()
        check_count(f"{type(self).__name__.lower()}: factor", factor)
        self.d_model = d_model
        self.expand = Triangle(context, bias=bias, stack=(factor,))
        self.contract = Triangle(context, bias=bias, stack=(factor,), summed=True)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        expand, expand_bias, contract, bias = self._rows(0, x.shape[1])
        y = None
        for r, (u, v) in enumerate(zip(expand, contract, strict=True)):
            c = None if expand_bias is None else expand_bias[r]
            part = masked_convolution(
                F.gelu(masked_convolution(x, u, c)), v, bias if y is None else None
            )
            y = part if y is None else y + part
        return y  # pyright: ignore[reportReturnType]

    def prefix(
        self, x: Tensor, state: tuple[History, History] | None = None
    ) -> tuple[Tensor, tuple[History, History]]:
        """The state is the inputs and the hidden rows so far, `(P, t, D)` and `(P, t, R, D)`."""
        if state is None:
            y, hidden = self._after(x, x[:, :0], None)
            return y, (History(x), History(hidden))
        inputs, rows = state
        y, hidden = self._after(x, inputs.values, rows.values)
        return y, (inputs.append(x), rows.append(hidden))

    def step(self, x: Tensor, state: tuple[History, History]) -> Tensor:
        """One row of every U and of every V per position."""
        inputs, rows = state
        return self._after(x, inputs.values, rows.values)[0]

    def cost(self, length: int) -> Cost:
        """Two triangular products for each r."""
        return self.expand.cost(length, self.d_model) + self.contract.cost(length, self.d_model)

    def _rows(self, start: int, count: int) -> Rows:
        """U `(R, S, t)`, c `(R, S)`, V `(R, S, t)`, b `(S,)`."""
        return *self.expand.rows(start, count), *self.contract.rows(start, count)

    def _after(self, x: Tensor, past: Tensor, past_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output of x `(N, S, D)` and its hidden rows `(N, S, R, D)`."""
        expand, expand_bias, contract, bias = self._rows(past.shape[1], x.shape[1])
        y, hidden = None, []
        for r, (u, v) in enumerate(zip(expand, contract, strict=True)):
            c = None if expand_bias is None else expand_bias[r]
            hidden.append(F.gelu(masked_rows(x, past, u, c)))
            before = past if past_rows is None else past_rows[:, :, r]
            part = masked_rows(hidden[r], before, v, bias if r == 0 else None)
            y = part if y is None else y + part
        return y, torch.stack(hidden, dim=2)  # pyright: ignore[reportReturnType]
