"""Structured masked mixers: the T x T triangle over positions is made of some T numbers.

Toeplitz matrices are those of Badger and Roland, "Toeplitz MLP Mixers" (2605.06683); matrices that
repeat one number along a row or a column those of Badger, "Structured Recurrent Mixers"
(2605.08696), which run as a recurrence whose state has one size at any length. Two forms differ
from the authors' code: a decay is exp(-softplus(p)), which has a gradient everywhere, and taps lie
on both sides of a feature, as those of `kernel`.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch.errors import ModelError, check_count
from arch.kernels.decayed_sum import decay_powers, decayed_sum, lags_between
from arch.kernels.masked_conv import may_be_counted
from arch.kernels.toeplitz import LONG, toeplitz_product
from arch.mixers.base import TokenMixer
from arch.mixers.masked import MOST, masked_rows

Decay = Literal["none", "learnt", "published"]


class Structured(TokenMixer):
    """What the structured mixers share: heads of D/heads features, projections, a bias.

    With `projections` all heads together read one D x D projection, and another mixes what they
    write. With `size` above 1 a feature also reads its neighbours in its head, each by a weight.

    Raises:
        ModelError: heads that do not divide D, or a size that is not from 1 to
            `MOST`, or above the features of a head.
    """

    def __init__(
        self, d_model: int, context: int, heads: int, size: int, projections: bool, bias: bool
    ) -> None:
        super().__init__()
        name = type(self).__name__.lower()
        if heads < 1 or d_model % heads:
            raise ModelError(f"{name}: heads={heads} must divide d_model={d_model}")
        check_count(f"{name}: size", size, min(MOST, d_model // heads))
        self.heads = heads
        self.in_proj = nn.Linear(d_model, d_model) if projections else nn.Identity()
        self.o_proj = nn.Linear(d_model, d_model) if projections else nn.Identity()
        self.bias = nn.Parameter(torch.empty(heads, context)) if bias else None

    def reset_parameters(self) -> None:
        """Starts the bias at zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def maps(self, length: int) -> Tensor:
        """The masked matrices of the first positions, `(size, heads, T, T)`."""
        raise NotImplementedError

    def _with_bias(self, y: Tensor, start: int) -> Tensor:
        """Outputs `(B, T, D)` of positions from `start` on, with the bias of their heads."""
        if self.bias is None:
            return y
        bias = self.bias[:, start : start + y.shape[1]].T[..., None]
        return (y.unflatten(-1, (self.heads, -1)) + bias).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.prefix(x)[0]

    def step(self, x: Tensor, state: Any) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return self.prefix(x, state)[0]


class Toeplitz(Structured):
    """y_i = sum over j <= i of w[i - j] x_j, + b_i: a weight for each distance and head."""

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int = 1,
        size: int = 1,
        projections: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, context, heads, size, projections, bias)
        self.values = nn.Parameter(torch.empty(size, heads, context))

    def reset_parameters(self) -> None:
        """Starts as a triangle does, the bias at zero."""
        super().reset_parameters()
        _start(self.values)

    def prefix(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state is the projected inputs so far, `(P, t, D)`."""
        x = self.in_proj(x)
        past = x[:, :0] if state is None else state
        return self._after(past, x), x if state is None else torch.cat([state, x], dim=1)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        return self._after(state, self.in_proj(x))

    def maps(self, length: int, start: int = 0) -> Tensor:
        """Rows `start` ... `length` of the masked matrices, `(size, heads, rows, length)`."""
        lags = lags_between(start, length, self.values.device)
        return self.values[..., lags.clamp(min=0)].masked_fill(lags < 0, 0)

    def _after(self, past: Tensor, x: Tensor) -> Tensor:
        """The outputs `(N, S, D)` at projected x, which follows past `(P, t, D)`; P divides N."""
        start, end = past.shape[1], past.shape[1] + x.shape[1]
        counted = not torch.compiler.is_compiling() and may_be_counted(x)
        if not start and end >= LONG and x.is_cpu and not counted:
            return self.o_proj(self._by_transforms(x))
        bias = None if self.bias is None else self.bias[:, start:end]
        y = x.new_zeros(())
        for k, weight in enumerate(rows := self.maps(end, start)):
            near, before = (_shift(t, self.heads, k, len(rows)) for t in (x, past))
            y = y + masked_rows(near, before, weight, bias if k == 0 else None)
        return self.o_proj(y)

    def _by_transforms(self, x: Tensor) -> Tensor:
        """The outputs `(B, T, D)` of long texts, projections left out."""
        T, y = x.shape[1], x.new_zeros(())
        for k, weight in enumerate(self.values[..., :T]):
            y = y + toeplitz_product(_shift(x, self.heads, k, len(self.values)), weight)
        return self._with_bias(y, 0).to(x.dtype)


class Repeat(nn.Module):
    """The triangles W[i,j] = v[j] g^(i-j), or v[i] g^(i-j): one v and one g for each head.

    Of `size` taps each has a v. `decay` none: g is 1. learnt: g is exp(-softplus(rate)), and starts
    where it halves over the context. published: g is the rate, held between 0.9 and 1 without a
    gradient beyond, to the power of 1/c; where `divides_values`, v is divided by c instead.

    Raises:
        ModelError: decay=published at a context at which c is 0.
    """

    def __init__(
        self, context: int, heads: int, size: int, by: str, decay: Decay, divides_values: bool
    ) -> None:
        super().__init__()
        self.by, self.decay, self.divides_values = by, decay, divides_values
        unit = 512 if size == 1 else 256
        self.constant = context // unit
        if decay == "published" and not self.constant:
            raise ModelError(
                f"decay=published divides by context // {unit}, which is 0 at a context of "
                f"{context}; take decay=learnt, or a context of {unit} or more"
            )
        self.values = nn.Parameter(torch.empty(size, heads, context))
        self.rate = None if decay == "none" else nn.Parameter(torch.empty(heads))

    def reset_parameters(self) -> None:
        """Starts as a triangle does, with the slowest decay."""
        _start(self.values)
        if self.rate is not None:
            halving = math.log(math.expm1(math.log(2) / self.values.shape[-1]))
            nn.init.constant_(self.rate, 1.0 if self.decay == "published" else halving)

    def forward(self, x: Tensor, start: int, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs at x `(B, T, D)` behind `start` positions that are summed to `before` `(B, D)`.

        Returns:
            The outputs, and the sum after the last position.
        """
        values, decay = self._values()[..., start : start + x.shape[1]], self._log_decay()
        if self.by == "source":
            y = decayed_sum(_weigh(x, values), decay, before)
            return y, y[:, -1]
        sums = decayed_sum(x, decay, before)
        return _weigh(sums, values), sums[:, -1]

    def maps(self, length: int) -> Tensor:
        """The masked matrices of the first positions, `(size, heads, T, T)`."""
        values = self._values()[..., :length]
        values = values[..., None, :] if self.by == "source" else values[..., None]
        lags = lags_between(0, length, values.device)
        return (values * decay_powers(lags, self._log_decay())).tril()

    def _values(self) -> Tensor:
        return self.values / self.constant if self.divides_values else self.values

    def _log_decay(self) -> Tensor | None:
        """The logarithm of g, `(heads,)`; None where g is 1."""
        if self.rate is None:
            return None
        rate = self.rate.to(torch.promote_types(self.rate.dtype, torch.float32))
        if self.decay == "learnt":
            return -F.softplus(rate)
        return rate.clamp(0.9, 1.0).log() / (1 if self.divides_values else self.constant)


class Running(NamedTuple):
    """What a repeated mixer remembers: a sum `(P, D)` for each repeat, and how many positions."""

    sums: tuple[Tensor, ...]
    length: int


class Row(Structured):
    """y_i = sum over j <= i of v[j] g^(i-j) x_j, + b_i: v[j] weights position j for all readers."""

    kinds: tuple[str, ...] = ("source",)
    split = False
    """Whether each kind has heads of its own; else each has all, and they are summed."""

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int | None = None,
        size: int = 1,
        decay: Decay = "none",
        projections: bool = False,
        bias: bool = True,
    ) -> None:
        groups = len(self.kinds) if self.split else 1
        heads = groups if heads is None else heads
        if heads % groups:
            raise ModelError(f"{type(self).__name__.lower()}: heads={heads} must be even")
        super().__init__(d_model, context, heads, size, projections, bias)
        twice = decay == "published" and len(self.kinds) > groups
        self.parts = nn.ModuleList(
            Repeat(context, heads // groups, size, kind, decay, twice and kind == "source")
            for kind in self.kinds
        )

    def prefix(self, x: Tensor, state: Running | None = None) -> tuple[Tensor, Running]:
        """The state is a sum for each kind: D numbers in all, 2 D where kinds are summed."""
        read, start = self.in_proj(x), state.length if state else 0
        inputs = read.chunk(len(self.parts), -1) if self.split else [read] * len(self.parts)
        sums = [s.repeat_interleave(len(x) // len(s), 0) for s in state.sums] if state else None
        given_parts = zip(self.parts, inputs, sums or [None] * len(self.parts), strict=True)
        found = [part(given, start, before) for part, given, before in given_parts]
        y = self._with_bias(self._join([y for y, _ in found], -1), start)
        after = tuple(last for _, last in found)
        return self.o_proj(y.to(x.dtype)), Running(after, start + x.shape[1])

    def maps(self, length: int) -> Tensor:
        """The masked matrices of the first positions, `(size, heads, T, T)`."""
        return self._join([part.maps(length) for part in self.parts], 1)  # pyright: ignore

    def _join(self, parts: list[Tensor], axis: int) -> Tensor:
        return torch.cat(parts, axis) if self.split else sum(parts[1:], parts[0])


class Column(Row):
    """y_i = v[i] sum over j <= i of g^(i-j) x_j, + b_i: v[i] weights what position i reads."""

    kinds = ("destination",)


class Combined(Row):
    """The sum of a row and a column mixer."""

    kinds = ("source", "destination")


class Mixed(Row):
    """Columns in the first half of the heads, rows in the second: the published recurrent mixer."""

    kinds = ("destination", "source")
    split = True


def _shift(x: Tensor, heads: int, k: int, size: int) -> Tensor:
    """What tap k of `size` reads of x `(B, T, D)`: the features of a head, shifted; else zeros."""
    if size == 1:
        return x
    x = x.unflatten(-1, (heads, -1))
    after = k - (size - 1) // 2
    return F.pad(x, (-after, after)).flatten(-2)


def _weigh(x: Tensor, values: Tensor) -> Tensor:
    """Each position of x `(B, T, D)` times its values `(size, heads, T)`, the taps summed."""
    (size, heads, _), y = values.shape, x.new_zeros(())
    for k, v in enumerate(values):
        y = y + _shift(x, heads, k, size).unflatten(-1, (heads, -1)) * v.T[..., None]
    return y.flatten(-2)


def _start(values: Tensor) -> None:
    """Starts weights `(size, heads, L)` as those of a triangle with the same fan-in."""
    bound = (values.shape[0] * values.shape[-1]) ** -0.5
    nn.init.uniform_(values, -bound, bound)
