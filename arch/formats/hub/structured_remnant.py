"""The structured mixers of remnant for transformers: triangles over positions of some T numbers.

Needs torch alone. Each mixer writes its triangles out, and multiplies by them.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 128
"""Positions that one product sums."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """tril(weight) x + bias: x `(B, T, D)`, weight `(T, T)`, bias `(T,)`."""
    lower = weight.tril().expand(len(x), -1, -1)
    return torch.bmm(lower, x) if bias is None else torch.baddbmm(bias[:, None], lower, x)


def convolve_heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `convolve`, with a weight `(H, T, T)` and a bias `(H, T)` for groups of D/H features."""
    biases = [None] * len(weight) if bias is None else bias
    return torch.cat(list(map(convolve, x.chunk(len(weight), -1), weight, biases)), -1)


def shift(x: Tensor, heads: int, k: int, size: int) -> Tensor:
    """What tap k of `size` reads of x `(B, T, D)`: the features of a head, shifted; else zeros."""
    after = k - (size - 1) // 2
    return F.pad(x.unflatten(-1, (heads, -1)), (-after, after)).flatten(-2)


def decayed_sum(x: Tensor, decay: Tensor | None) -> Tensor:
    """s_i = g s_(i-1) + x_i, `(B, T, D) -> (B, T, D)`: of chunks, then of what chunks hand on.

    `decay` is the logarithm of g `(H,)`, for each group of D/H features, or None where g is 1.
    """
    (B, T, D), C = x.shape, min(CHUNK, x.shape[1])
    chunks = F.pad(x, (0, 0, 0, -T % C)).unflatten(1, (-1, C))
    rows, lags = chunks.flatten(0, 1), lags_of(chunks[0]).clamp(min=0)
    if decay is None:
        sums = convolve(rows, torch.ones_like(lags, dtype=x.dtype), None)
    else:
        sums = convolve_heads(rows, (lags * decay[:, None, None]).exp().to(x.dtype), None)
    sums = sums.view_as(chunks)
    if len(chunks[0]) == 1:
        return sums.flatten(1, 2)
    carried = torch.cat([x.new_zeros(B, 1, D), sums[:, :-1, -1]], dim=1)
    carried = decayed_sum(carried, None if decay is None else C * decay)
    arriving = carried[:, :, None]
    if decay is not None:  # g^k - 1 is exact where g^k, rounded at every step, would drift
        faded = torch.expm1(torch.arange(1, C + 1, device=x.device)[:, None] * decay).to(x.dtype)
        change = carried.unflatten(-1, (len(decay), -1))[:, :, None] * faded[..., None]
        arriving = arriving + change.flatten(-2)
    return (sums + arriving).flatten(1, 2)[:, :T]


class Structured(nn.Module):
    """Heads of D/heads features between two projections, and a bias."""

    def __init__(self, D: int, T: int, heads: int, projections: bool, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(D, D) if projections else nn.Identity()
        self.o_proj = nn.Linear(D, D) if projections else nn.Identity()
        self.bias = nn.Parameter(torch.empty(heads, T)) if bias else None

    def reset_parameters(self) -> None:
        """Starts the bias at zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Toeplitz(Structured):
    """y_i = sum over j <= i of w[i - j] x_j, + b_i: a weight for each distance and head."""

    def __init__(
        self,
        D: int,
        T: int,
        *,
        heads: int = 1,
        size: int = 1,
        projections: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(D, T, heads, projections, bias)
        self.values = nn.Parameter(torch.empty(size, heads, T))

    def reset_parameters(self) -> None:
        """Starts as a triangle does, the bias at zero."""
        super().reset_parameters()
        start_values(self.values)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        x, T = self.in_proj(x), x.shape[1]
        lags = lags_of(x)
        bias, y = None if self.bias is None else self.bias[:, :T], x.new_zeros(())
        for k, values in enumerate(self.values):
            weight = values[:, lags.clamp(min=0)]
            near = shift(x, self.heads, k, len(self.values))
            y = y + convolve_heads(near, weight, bias if k == 0 else None)
        return self.o_proj(y)


class Repeat(nn.Module):
    """The triangles W[i,j] = v[j] g^(i-j), or v[i] g^(i-j): one v and one g for each head."""

    def __init__(
        self, T: int, heads: int, size: int, by: str, decay: str, divides_values: bool
    ) -> None:
        super().__init__()
        self.by, self.decay, self.divides_values = by, decay, divides_values
        self.constant = T // (512 if size == 1 else 256)
        self.values = nn.Parameter(torch.empty(size, heads, T))
        self.rate = None if decay == "none" else nn.Parameter(torch.empty(heads))

    def reset_parameters(self) -> None:
        """Starts as a triangle does, with the slowest decay."""
        start_values(self.values)
        if self.rate is not None:
            halving = math.log(math.expm1(math.log(2) / self.values.shape[-1]))
            nn.init.constant_(self.rate, 1.0 if self.decay == "published" else halving)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`, in float32 at least."""
        if self.by == "source":
            return self._sum(self._weigh(x))
        return self._weigh(self._sum(x))

    def _weigh(self, x: Tensor) -> Tensor:
        """Each position times its values, the taps summed."""
        values = self.values / self.constant if self.divides_values else self.values
        (size, heads, _), y = values.shape, x.new_zeros(())
        for k, v in enumerate(values[..., : x.shape[1]]):
            y = y + shift(x, heads, k, size).unflatten(-1, (heads, -1)) * v.T[..., None]
        return y.flatten(-2)

    def _sum(self, x: Tensor) -> Tensor:
        """What stands before each position, and it, faded by how far it lies behind."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.rate is None:
            return decayed_sum(x, None)
        rate = self.rate.to(torch.promote_types(self.rate.dtype, torch.float32))
        if self.decay == "learnt":
            logarithm = -F.softplus(rate)
        else:
            logarithm = rate.clamp(0.9, 1.0).log() / (1 if self.divides_values else self.constant)
        return decayed_sum(x, logarithm)


class Row(Structured):
    """y_i = sum over j <= i of v[j] g^(i-j) x_j, + b_i: v[j] weights position j for all readers."""

    kinds: tuple[str, ...] = ("source",)
    split = False

    def __init__(
        self,
        D: int,
        T: int,
        *,
        heads: int | None = None,
        size: int = 1,
        decay: str | None = "none",
        projections: bool = False,
        bias: bool = True,
    ) -> None:
        groups = len(self.kinds) if self.split else 1
        heads, decay = heads or groups, decay or "none"
        super().__init__(D, T, heads, projections, bias)
        twice = decay == "published" and len(self.kinds) > groups
        self.parts = nn.ModuleList(
            Repeat(T, heads // groups, size, kind, decay, twice and kind == "source")
            for kind in self.kinds
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        read = self.in_proj(x)
        inputs = read.chunk(len(self.parts), -1) if self.split else [read] * len(self.parts)
        outputs: list[Any] = [part(given) for part, given in zip(self.parts, inputs, strict=True)]
        y: Any = torch.cat(outputs, -1) if self.split else sum(outputs[1:], outputs[0])
        if self.bias is not None:
            bias = self.bias[:, : x.shape[1]].T[..., None]
            y = (y.unflatten(-1, (self.heads, -1)) + bias).flatten(-2)
        return self.o_proj(y.to(x.dtype))


class Column(Row):
    """y_i = v[i] sum over j <= i of g^(i-j) x_j, + b_i: v[i] weights what position i reads."""

    kinds = ("destination",)


class Combined(Row):
    """The sum of a row and a column mixer."""

    kinds = ("source", "destination")


class Mixed(Row):
    """Columns in the first half of the heads, rows in the second."""

    kinds = ("destination", "source")
    split = True


def lags_of(x: Tensor) -> Tensor:
    """How far each position of x `(B, T, D)` lies behind each, `(T, T)`."""
    positions = torch.arange(x.shape[1], device=x.device)
    return positions[:, None] - positions


def start_values(values: Tensor) -> None:
    """Draws weights `(size, heads, T)` as those of a triangle with the same fan-in."""
    bound = (values.shape[0] * values.shape[-1]) ** -0.5
    nn.init.uniform_(values, -bound, bound)


STRUCTURED: dict[str, type[nn.Module]] = {
    "column": Column, "combined": Combined, "mixed": Mixed, "row": Row, "toeplitz": Toeplitz,
}  # fmt: skip
