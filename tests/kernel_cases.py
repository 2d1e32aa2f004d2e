"""The masked convolutions written out in plain dense PyTorch, and how far from float64 ours may be.

Imports nothing but torch and the kernels, so that a separate process can use it too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from arch.kernels import (
    expanded_convolution,
    masked_convolution,
    parallel_convolution,
    toeplitz_convolution,
)

BATCH, FEATURES, HEADS, BRANCHES = 2, 24, 3, 2
LENGTHS = (1, 2, 3, 31, 64, 77, 128, 200, 257, 512)


@dataclass(frozen=True)
class Member:
    """One way to call the kernels, the same thing written out, and the shapes of its arguments."""

    ours: Callable[..., Tensor]
    dense: Callable[..., Tensor]
    shapes: str  # "name: letters of the shape", separated by commas


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """tril(W) x + b, by groups of features where W has heads."""
    if weight.dim() == 3:
        biases = [None] * len(weight) if bias is None else bias
        groups = x.chunk(len(weight), -1)
        return torch.cat([dense(*of) for of in zip(groups, weight, biases, strict=True)], -1)
    y = torch.tril(weight) @ x
    return y if bias is None else y + bias[:, None]


def _parallel(x: Tensor, w: Tensor, b: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    inputs = x if x.dim() == 4 else x.expand(len(w), *x.shape)
    return torch.stack([act(dense(*of)) for of in zip(inputs, w, b, strict=True)]).sum(0)


def _expanded(x: Tensor, u: Tensor, c: Tensor, v: Tensor, b: Tensor, r: Tensor) -> Tensor:
    hidden = [functional.gelu(dense(x, *of)) for of in zip(u, c, strict=True)]
    mixed = torch.stack([dense(*of) for of in zip(hidden, v, strict=True)]).sum(0)
    return mixed + dense(torch.zeros_like(x), torch.zeros_like(v[0]), b) + r


def _toeplitz(x: Tensor, taps: Tensor, b: Tensor) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    return dense(x, taps[..., (positions[:, None] - positions).clamp(min=0)], b)


MEMBERS = {
    "flat": Member(
        masked_convolution, lambda x, w, b, r: dense(x, w, b) + r, "x:BTD, w:TT, b:T, r:BTD"
    ),
    "bare": Member(masked_convolution, dense, "x:BTD, w:TT"),
    "headed": Member(masked_convolution, dense, "x:BTD, w:HTT, b:HT"),
    "parallel": Member(
        parallel_convolution,
        lambda x, w, b: _parallel(x, w, b, lambda z: z),
        "x:BTD, w:RTT, b:RT",
    ),
    "parallel gelu": Member(
        lambda x, w, b, r: parallel_convolution(x, w, b, r, activation="gelu"),
        lambda x, w, b, r: _parallel(x, w, b, functional.gelu) + r,
        "x:BTD, w:RTT, b:RT, r:BTD",
    ),
    "inputs": Member(
        parallel_convolution,
        lambda x, w, b: _parallel(x, w, b, lambda z: z),
        "x:RBTD, w:RHTT, b:RHT",
    ),
    "inputs gelu": Member(
        lambda x, w, b: parallel_convolution(x, w, b, activation="gelu"),
        lambda x, w, b: _parallel(x, w, b, functional.gelu),
        "x:RBTD, w:RTT, b:RT",
    ),
    "expanded": Member(expanded_convolution, _expanded, "x:BTD, w:RTT, c:RT, v:RTT, b:T, r:BTD"),
    "expanded headed": Member(
        expanded_convolution, _expanded, "x:BTD, w:RHTT, c:RHT, v:RHTT, b:HT, r:BTD"
    ),
    "toeplitz": Member(toeplitz_convolution, _toeplitz, "x:BTD, w:T, b:T"),
    "toeplitz headed": Member(toeplitz_convolution, _toeplitz, "x:BTD, w:HT, b:HT"),
}


def arguments(
    member: Member,
    length: int,
    dtype: torch.dtype,
    *,
    device: str = "cpu",
    batch: int = BATCH,
    features: int = FEATURES,
) -> list[Tensor]:
    """Random arguments. Weights and biases stay float32 beside half precision, of values it has."""
    sizes = {"B": batch, "T": length, "D": features, "H": HEADS, "R": BRANCHES}
    made = []
    for name, letters in (argument.strip().split(":") for argument in member.shapes.split(",")):
        value = torch.randn([sizes[letter] for letter in letters], dtype=torch.float64)
        value = (value / length**0.5 if name in "wv" else value).to(dtype)
        half = dtype.itemsize == 2
        made.append(value.float() if half and name not in "xr" else value)
    return [value.to(device) for value in made]


def gradients(form: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
    """The result of a form, then the gradient of each of its arguments."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    y = form(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope.to(y.dtype))]


def compare(name: str, length: int, dtype: torch.dtype, device: str = "cpu", **sizes: int) -> None:
    """Assert that ours is at most 3 times as far from float64 as torch's own form in this dtype.

    Where a gradient has a few entries only, one of them may be exact by luck: more draws are made.
    """
    member = MEMBERS[name]
    found, own, scale = torch.zeros(3, 1 + len(member.shapes.split(",")), dtype=torch.float64)
    for _ in range(20 if length < 8 else 1):
        inputs = arguments(member, length, dtype, device=device, **sizes)
        slope = torch.randn(inputs[0].shape[-3:], dtype=torch.float64).to(device, dtype)
        with poison():
            ours = gradients(member.ours, inputs, slope)
        exact = gradients(member.dense, [value.double() for value in inputs], slope)
        theirs = gradients(member.dense, [value.to(dtype) for value in inputs], slope)
        found = found + squares(ours, exact)
        own = own + squares(theirs, exact)
        scale = scale + squares(exact)
    allowed = torch.maximum(3 * (own / scale).sqrt(), torch.tensor(torch.finfo(dtype).eps / 2))
    wrong = ~((found / scale).sqrt() <= allowed)
    assert not wrong.any(), (
        f"{name}, T={length}, {dtype}: relative errors of the result and of each gradient"
        f" {(found / scale).sqrt().tolist()}, allowed {allowed.tolist()}"
    )


def squares(found: list[Tensor], true: list[Tensor] | None = None) -> Tensor:
    """The sum of the squares of each tensor, or of its difference from the true one."""
    true = [torch.zeros_like(value) for value in found] if true is None else true
    differences = [(a.double() - b).cpu() for a, b in zip(found, true, strict=True)]
    return torch.stack([difference.square().sum() for difference in differences])


@contextmanager
def poison() -> Iterator[None]:
    """Let every new uninitialised tensor be full of NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(8).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
