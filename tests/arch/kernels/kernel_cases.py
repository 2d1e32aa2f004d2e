"""The masked convolution in plain dense PyTorch, and how far from float64 ours may be.

Imports nothing but torch and the operator, so that a separate process can use it too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from arch.kernels.masked_conv import masked_convolution

BATCH, FEATURES, HEADS = 2, 24, 3
LENGTHS = (1, 2, 3, 31, 64, 77, 128, 129, 200, 257, 512)

# Arguments and the letters of their shapes.
MEMBERS = {
    "bare": {"x": "BTD", "w": "TT"},
    "flat": {"x": "BTD", "w": "TT", "b": "T"},
    "headed": {"x": "BTD", "w": "HTT", "b": "HT"},
}


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """tril(W) x + b, by groups of features where W has heads."""
    if weight.dim() == 3:
        biases = [None] * len(weight) if bias is None else bias
        groups = x.chunk(len(weight), -1)
        return torch.cat([dense(*of) for of in zip(groups, weight, biases, strict=True)], -1)
    y = torch.tril(weight) @ x
    return y if bias is None else y + bias[:, None]


def arguments(
    name: str,
    length: int,
    dtype: torch.dtype,
    *,
    device: str = "cpu",
    batch: int = BATCH,
    features: int = FEATURES,
) -> list[Tensor]:
    """Random arguments. Weights and biases stay float32 beside half precision, of values it has."""
    sizes = {"B": batch, "T": length, "D": features, "H": HEADS}
    made = []
    for argument, letters in MEMBERS[name].items():
        value = torch.randn([sizes[letter] for letter in letters], dtype=torch.float64)
        value = (value / length**0.5 if argument == "w" else value).to(dtype)
        half = dtype.itemsize == 2
        made.append(value.float() if half and argument != "x" else value)
    return [value.to(device) for value in made]


def gradients(form: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
    """The result of a form, then the gradient of each of its arguments."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    y = form(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope.to(y.dtype))]


def compare(name: str, length: int, dtype: torch.dtype, device: str = "cpu", **sizes: int) -> None:
    """Assert that ours is at most 3 times as far from float64 as torch's own form in this dtype.

    Or than a sum over the positions in float32 may be, whose order is each library's own.
    Where a gradient has a few entries only, one of them may be exact by luck: more draws are made.
    """
    found, own, scale = torch.zeros(3, 1 + len(MEMBERS[name]), dtype=torch.float64)
    for _ in range(20 if length < 8 else 1):
        inputs = arguments(name, length, dtype, device=device, **sizes)
        slope = torch.randn(inputs[0].shape, dtype=torch.float64).to(device, dtype)
        with poison():
            ours = gradients(masked_convolution, inputs, slope)
        exact = gradients(dense, [value.double() for value in inputs], slope)
        theirs = gradients(dense, [value.to(dtype) for value in inputs], slope)
        found = found + squares(ours, exact)
        own = own + squares(theirs, exact)
        scale = scale + squares(exact)
    floor = max(torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps * length**0.5)
    allowed = torch.maximum(3 * (own / scale).sqrt(), torch.tensor(floor))
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
