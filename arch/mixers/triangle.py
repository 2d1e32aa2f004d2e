"""The learnt triangles that every masked convolution is made of, and their rows one at a time."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arch.cost import Cost
from arch.masked_conv import masked_convolution


class Triangle(nn.Module):
    """Y[b,i,:] = sum over j <= i of weight[i,j] X[b,j,:] + bias[i], for any T up to the context.

    Weights above the diagonal never influence anything: no value, no gradient, zero in saved files.

    Args:
        rows: positions of the output.
        columns: positions of the input; as many as rows when not given.
        bias: whether each output position has a scalar added to all its features.
        stack: leading dimensions, for several triangles of one size.
        summed: whether the outputs of the stack are summed: they then share one bias, and the
            fan-in of an output is that of the whole stack.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        bias: bool = True,
        stack: tuple[int, ...] = (),
        summed: bool = False,
    ) -> None:
        super().__init__()
        columns = columns or rows
        self.fan_in = columns * (math.prod(stack) if summed else 1)
        self.weight = nn.Parameter(torch.empty(*stack, rows, columns))
        shape = (rows,) if summed else (*stack, rows)
        self.bias = nn.Parameter(torch.empty(shape)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`; a stack is one triangle for each group of features."""
        return masked_convolution(x, *self.rows(0, x.shape[1]))

    def step(self, x: Tensor, past: Tensor) -> Tensor:
        """As `masked_rows`, after past `(P, t, D)`."""
        return masked_rows(x, past, *self.rows(past.shape[1], x.shape[1]))

    def rows(self, start: int, count: int) -> tuple[Tensor, Tensor | None]:
        """Weights `(..., count, start + count)` and biases `(..., count)` of `count` positions."""
        end = start + count
        bias = None if self.bias is None else self.bias[..., start:end]
        return self.weight[..., start:end, :end], bias

    def cost(self, length: int, d_model: int) -> Cost:
        """Of the whole stack, each triangle acting on `d_model` features."""
        *stack, rows, columns = self.weight.shape
        corner = min(rows, columns)
        above = corner * (corner - 1) // 2 + corner * max(0, columns - rows)
        biases = 0 if self.bias is None else math.prod(self.bias.shape)
        return Cost(
            parameters=math.prod(stack) * rows * columns + biases,
            masked=math.prod(stack) * above,
            flops=math.prod(stack) * (length + 1) * d_model,
        )


class Diagonals(nn.Module):
    """A triangle with one weight for each lag: W[i,j] = weight[i-j]."""

    def __init__(self, context: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fan_in = context
        self.weight = nn.Parameter(torch.empty(context))
        self.bias = nn.Parameter(torch.empty(context)) if bias else None

    def rows(self, start: int, count: int) -> tuple[Tensor, Tensor | None]:
        """As `Triangle.rows`, with zeros above the diagonal."""
        end = start + count
        lags = F.pad(self.weight[:end], (count - 1, 0)).flip(0)  # the longest first
        weight = lags.unfold(0, end, 1).flip(0)
        return weight, None if self.bias is None else self.bias[start:end]

    def cost(self, length: int, d_model: int) -> Cost:
        """As `Triangle.cost`, but nothing is stored above the diagonal."""
        context = len(self.weight)
        biases = 0 if self.bias is None else context
        return Cost(parameters=context + biases, flops=(length + 1) * d_model)


def masked_rows(x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows t ... t+S of a masked convolution, for N candidates that share P prefixes.

    Args:
        x: the candidates, `(N, S, D)`, P dividing N.
        past: what came before, `(P, t, D)`.
        weight: `(S, t + S)`, or `(H, S, t + S)` with one for each group of D/H features.
        bias: `(S,)` or `(H, S)`.
    """
    (N, S, D), (P, t) = x.shape, past.shape[:2]
    heads = weight.reshape(-1, S, t + S)
    H, width = len(heads), D // len(heads)
    if S > 1:
        own = masked_convolution(x, weight[..., t:])
    else:  # a number for each head: no product at all
        own = x.unflatten(-1, (H, width)) * heads[:, :, t]
    shared = heads[..., :t] @ past.unflatten(-1, (H, width)).transpose(1, 2)
    if bias is not None:
        shared = shared + bias.reshape(H, S, 1)
    shared = shared.transpose(1, 2).reshape(P, 1, S, D)
    return (own.reshape(P, N // P, S, D) + shared).view(N, S, D)
