"""The masked convolutions: learnt triangles over positions, the mixers made of them, a short one.

The forms are those of Badger, "Masked Mixers for Language Generation and Retrieval" (2409.01482),
unless a class says otherwise.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arch.errors import ModelError, check_count
from arch.kernels.masked_conv import masked_convolution
from arch.mixers.base import TokenMixer

MOST = 64
"""Branches, taps, distances and hidden rows that a mixer may have: more is a mistake."""
Rows = tuple[Tensor, Tensor | None, Tensor, Tensor | None]


class Triangle(nn.Module):
    """Y[b,i,:] = sum over j <= i of weight[i,j] X[b,j,:] + bias[i], for any T up to the context.

    Weights above the diagonal never influence anything: no value, no gradient, zero in saved files.
    `rows` are positions of the output, `columns` of the input, as many as rows when not given.
    `stack` are leading dimensions, for several triangles of one size; where their outputs are
    `summed` they share one bias, and the fan-in of an output is that of the whole stack.
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
        """Computes what `masked_rows` does, after the past `(P, t, D)`."""
        return masked_rows(x, past, *self.rows(past.shape[1], x.shape[1]))

    def rows(self, start: int, count: int) -> tuple[Tensor, Tensor | None]:
        """Weights `(..., count, start + count)` and biases `(..., count)` of `count` positions."""
        end = start + count
        bias = None if self.bias is None else self.bias[..., start:end]
        return self.weight[..., start:end, :end], bias


def masked_rows(x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows t ... t+S of a masked convolution, of x `(N, S, D)` after past `(P, t, D)`.

    N candidates share P prefixes; P divides N. Weight is `(S, t + S)`, or `(H, S, t + S)` with one
    for each group of D/H features; bias is `(S,)` or `(H, S)`.
    """
    (N, S, D), (P, t) = x.shape, past.shape[:2]
    if t == 0:
        return masked_convolution(x, weight, bias)
    heads = weight.reshape(-1, S, t + S)
    H, width = len(heads), D // len(heads)
    if S > 1:
        last = masked_convolution(x, weight[..., t:])
    else:  # a number for each head: no product at all
        last = x.unflatten(-1, (H, width)) * heads[:, :, t]
    shared = heads[..., :t] @ past.unflatten(-1, (H, width)).transpose(1, 2)
    if bias is not None:
        shared = shared + bias.reshape(H, S, 1)
    shared = shared.transpose(1, 2).reshape(P, 1, S, D)
    return (last.reshape(P, N // P, S, D) + shared).view(N, S, D)


class Masked(TokenMixer):
    """A masked convolution that remembers its inputs: a subclass computes what comes after some."""

    def after(self, past: Tensor, x: Tensor) -> Tensor:
        """The outputs `(N, S, D)` at x `(N, S, D)`, which follows past `(P, t, D)`; P divides N."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.after(x[:, :0], x)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return self.after(state, x)


class Flat(TokenMixer):
    """tril(W) X + b."""

    def __init__(self, d_model: int, context: int, *, bias: bool = True) -> None:
        super().__init__()
        self.mix = Triangle(context, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.mix(x)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """`(N, S, D) -> (N, S, D)`; the state is the inputs so far."""
        return self.mix.step(x, state)


class Parallel(Masked):
    """sum over p of act(tril(W_p) X + b_p), for p = 1 ... branches.

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
        check_count("parallel: branches", branches, MOST)
        self.activation: Literal["none", "gelu"] = activation
        self.mix = Triangle(context, bias=bias, stack=(branches,))

    def after(self, past: Tensor, x: Tensor) -> Tensor:
        """A product for each branch, or one for their sum where no activation keeps them apart."""
        weight, bias = self.mix.rows(past.shape[1], x.shape[1])
        if self.activation == "none":
            return masked_rows(x, past, weight.sum(0), None if bias is None else bias.sum(0))
        y = x.new_zeros(())
        for p, w in enumerate(weight):
            y = y + F.gelu(masked_rows(x, past, w, None if bias is None else bias[p]))
        return y


class Kernel(Masked):
    """sum over k of tril(W_k) X[:, :, d + k - (size - 1) // 2], + b: the features slide past.

    The "fully convoluted" mixer: a Conv1d over the feature axis whose channels are the positions,
    `padding="same"`, with zeros beyond the first and last feature.
    """

    def __init__(self, d_model: int, context: int, *, size: int = 4, bias: bool = True) -> None:
        super().__init__()
        check_count("kernel: size", size, MOST)
        self.size = size
        self.mix = Triangle(context, bias=bias, stack=(size,), summed=True)

    def after(self, past: Tensor, x: Tensor) -> Tensor:
        """`(N, S, D)`, the outputs at x."""
        weight, bias = self.mix.rows(past.shape[1], x.shape[1])
        y = x.new_zeros(())
        for shifted, before, w in zip(self._shifted(x), self._shifted(past), weight, strict=True):
            y = y + masked_rows(shifted, before, w, bias)
            bias = None
        return y

    def _shifted(self, x: Tensor) -> Iterator[Tensor]:
        """Yields what each tap reads, `(B, T, D)`."""
        before = (self.size - 1) // 2
        padded = F.pad(x, (before, self.size - 1 - before))
        for k in range(self.size):
            yield padded[..., k : k + x.shape[-1]]


class Headed(TokenMixer):
    """[tril(W_1) X A_1 + b_1, ..., tril(W_h) X A_h + b_h] W_o, D/heads features a head.

    The multi-headed form as it was meant: the A_h together are one D x D projection, each head has
    its own triangle, and W_o mixes the heads. `bias` is of the triangles.

    Raises:
        ModelError: heads that do not divide D.
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

    def prefix(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state is the projected inputs so far."""
        x = self.in_proj(x)
        if state is None:
            return self.o_proj(self.mix(x)), x
        return self.o_proj(self.mix.step(x, state)), torch.cat([state, x], dim=1)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return self.o_proj(self.mix.step(self.in_proj(x), state))


class Expanded(TokenMixer):
    """sum over r of tril(V_r) gelu(tril(U_r) X + c_r), + b, for r = 1 ... factor.

    A hidden layer over the sequence. Every hidden row (r, t) sees the tokens up to t, so all of a
    larger factor is used. At factor 1 this is Badger's two-stage form.
    """

    def __init__(self, d_model: int, context: int, *, factor: int = 2, bias: bool = True) -> None:
        super().__init__()
        check_count(f"{type(self).__name__.lower()}: factor", factor, MOST)
        self.expand = Triangle(context, bias=bias, stack=(factor,))
        self.contract = Triangle(context, bias=bias, stack=(factor,), summed=True)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._after(x, x[:, :0], None)[0]

    def prefix(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The state is the inputs and the hidden rows so far, `(P, t, D)` and `(P, t, R, D)`."""
        inputs, rows = state or (x[:, :0], None)
        y, hidden = self._after(x, inputs, rows)
        new = torch.stack(hidden, dim=2)
        rows = new if rows is None else torch.cat([rows, new], dim=1)
        return y, (torch.cat([inputs, x], dim=1), rows)

    def step(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return self._after(x, *state)[0]

    def rows(self, start: int, count: int) -> Rows:
        """U `(R, S, t)`, c `(R, S)`, V `(R, S, t)`, b `(S,)` of `count` positions."""
        return *self.expand.rows(start, count), *self.contract.rows(start, count)

    def _after(
        self, x: Tensor, past: Tensor, past_rows: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The output of x `(N, S, D)` and its hidden rows, R of `(N, S, D)`."""
        expand, expand_bias, contract, bias = self.rows(past.shape[1], x.shape[1])
        y, hidden = x.new_zeros(()), []
        for r, (u, v) in enumerate(zip(expand, contract, strict=True)):
            c = None if expand_bias is None else expand_bias[r]
            hidden.append(F.gelu(masked_rows(x, past, u, c)))
            before = past if past_rows is None else past_rows[:, :, r]
            y = y + masked_rows(hidden[r], before, v, bias if r == 0 else None)
        return y, hidden


class Rectangular(Expanded):
    """tril(V) gelu(tril(U) X + c) + b with U `(factor * context, context)` and V its transpose's.

    As in Badger's code, only there to reproduce it: one triangle over each whole rectangle. Output
    i reads hidden rows up to i, all of them in the upper square, so whatever a factor above 1 adds
    is dead weight, and the model computes what `expanded(factor=1)` does.
    """

    def __init__(self, d_model: int, context: int, *, factor: int = 2, bias: bool = True) -> None:
        super().__init__(d_model, context, factor=factor, bias=bias)
        self.expand = Triangle(factor * context, context, bias=bias)
        self.contract = Triangle(context, factor * context, bias=bias)

    def rows(self, start: int, count: int) -> Rows:
        """As `Expanded.rows`, of the square part of each rectangle."""
        expand, expand_bias = self.expand.rows(start, count)
        expand_bias = None if expand_bias is None else expand_bias[None]
        contract, bias = self.contract.rows(start, count)
        return expand[None], expand_bias, contract[None], bias


class Depthwise(TokenMixer):
    """Y[t] = sum over k < size of w_k * X[t - k], a weight for each feature and distance.

    A short causal convolution for what the last few tokens say together; beside another mixer, as
    `attention+depthwise`, it adds what that mixer would have to learn. It starts at zero.

    Raises:
        ModelError: a size that is not from 1 to `MOST`.
    """

    def __init__(self, d_model: int, context: int, *, size: int = 4) -> None:
        super().__init__()
        check_count("depthwise: size", size, MOST)
        self.weight = nn.Parameter(torch.empty(size, d_model))

    def reset_parameters(self) -> None:
        """Starts at zero."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._after(x)

    def prefix(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state is the last inputs, `(P, size - 1, D)`, zeros where there were none."""
        before = x.new_zeros(x.shape[0], len(self.weight) - 1, x.shape[2])
        inputs = torch.cat([before if state is None else state, x], dim=1)
        return self._after(inputs)[:, before.shape[1] :], inputs[:, x.shape[1] :]

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        past = state.repeat_interleave(len(x) // len(state), dim=0)
        return self._after(torch.cat([past, x], dim=1))[:, past.shape[1] :]

    def _after(self, x: Tensor) -> Tensor:
        """Zeros stand before the first position."""
        weight = self.weight.to(x.dtype)
        y = x * weight[0]
        for k in range(1, min(len(weight), x.shape[1])):
            y = y + F.pad(x[:, :-k], (0, 0, k, 0)) * weight[k]
        return y
