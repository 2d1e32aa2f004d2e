"""The masked convolution: one lower-triangular matrix over positions, shared by the features.

    y[b, i, :] = sum_{j <= i} W[i, j] x[b, j, :] + bias[i]

Three products make it and its gradients: forward, tril(W) x; dx, tril(W)^T g; dw, tril(g x^T).
Each is linear in both of its operands, and its gradients are the other two, so that gradients of
every order exist. Each is an operator of its own to autograd and to torch.compile: one opaque node
on every device, which passes `torch.library.opcheck` without a GPU.

What lies above the diagonal is never read into a result, NaN included, and its gradient is zero.
The products are computed in x's dtype, or autocast's, and accumulated in float32; weights and
biases may be kept in another dtype and get their gradients in it. For float32 on CUDA,
`torch.backends.cuda.matmul.fp32_precision` decides about TF32. Results are the same bits on every
run. `implementation` says what computes the products on a device.
"""

import logging
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# Rows of W in a block on a CPU; a shorter sequence is one dense product.
BLOCK = 128
# Numbers in an operand from which on oneDNN, where it is, outweighs its longer calls.
ONEDNN = 2**18
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def masked_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns tril(weight) x + bias, `(B, T, D)`.

    Weight is `(T, T)`, or `(H, T, T)` for H contiguous groups of D/H features; a slice of a longer
    matrix is taken as it is. Bias is `(T,)`, or `(H, T)` where weight has heads.

    Raises:
        ValueError: a shape does not fit.
    """
    length, features = x.shape[-2:]
    heads = weight.shape[0] if weight.dim() == 3 else 1
    if weight.dim() not in (2, 3) or weight.shape[-2:] != (length, length):
        plain = f"({length}, {length})"
        raise ValueError(
            f"weight is {tuple(weight.shape)}: expected {plain}, or (H, {plain[1:]} with H heads"
        )
    if features % heads:
        raise ValueError(f"weight has {heads} heads: expected a divisor of D = {features}")
    if bias is not None and bias.shape != weight.shape[:-1]:
        expected = tuple(weight.shape[:-1])
        raise ValueError(f"bias is {tuple(bias.shape)}: expected {expected}")
    x = x.to(product_dtype(x))
    bias = None if bias is None else bias.reshape(heads, length)
    return forward(x, weight.reshape(heads, length, length), bias)


def product_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype to multiply in: autocast's where it is on, else x's own."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


@cache
def implementation(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Returns what computes the products, "triton", "blocked" or "dense", and why.

    The first call for a device and dtype logs the answer: as a warning where a CUDA device goes
    without the Triton kernels.
    """
    name, why = _implementation(device, dtype)
    level = logging.WARNING if device.type == "cuda" and name != "triton" else logging.INFO
    message = "masked convolutions on %s in %s: %s (%s)"
    logging.getLogger(__name__).log(level, message, device, dtype, name, why)
    return name, why


def _implementation(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    if device.type == "cpu":
        return "blocked", f"blocks of {BLOCK} positions on a CPU"
    if device.type != "cuda" or torch.version.cuda is None:
        return "dense", "the Triton kernels are for NVIDIA devices"
    if find_spec("triton") is None:
        return "dense", "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return "dense", f"the Triton kernels need sm_80, the device is sm_{major}{minor}"
    if dtype not in TRITON_DTYPES:
        return "dense", f"the Triton kernels do not compute in {dtype}"
    return "triton", f"sm_{major}{minor}"


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(W) x + bias: x `(B, T, D)`, weight `(H, T, T)`, bias `(H, T)`."""
    if kernels := _triton(x):
        return kernels.forward(x, weight, bias)
    if _short(x, weight):
        return _convolve(weight[0].to(x.dtype).tril(), x, None if bias is None else bias[0])
    y = _empty(x)
    for head, features in _groups(weight, x):
        for rows in _blocks(x):
            triangle = weight[head, rows, : rows.stop].to(x.dtype).tril(rows.start)
            offset = None if bias is None else bias[head, rows, None]
            _multiply(triangle, x[:, : rows.stop, features], y[:, rows, features], offset)
    return y


def _dx(g: Tensor, weight: Tensor) -> Tensor:
    """Returns tril(W)^T g: g `(B, T, D)`, weight `(H, T, T)`."""
    if kernels := _triton(g):
        return kernels.dx(g, weight)
    if _short(g, weight):
        return _convolve(weight[0].to(g.dtype).tril().T, g, None)
    y = _empty(g)
    for head, features in _groups(weight, g):
        for columns in _blocks(g):
            triangle = weight[head, columns.start :, columns].to(g.dtype).tril()
            _multiply(triangle.T, g[:, columns.start :, features], y[:, columns, features])
    return y


def _dw(g: Tensor, x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Returns tril(sum_b g x^T), `(H, T, T)` of `dtype`: g and x `(B, T, D)`."""
    gradient = x.new_zeros(heads, x.shape[1], x.shape[1], dtype=dtype)
    if kernels := _triton(x):
        return kernels.dw(g, x, gradient)
    multiply = _linear if _onednn(x) else torch.mm
    for head, features in _groups(gradient, x):
        left, right = (t[..., features].transpose(0, 1).flatten(1) for t in (g, x))
        for rows in _blocks(x):
            block = multiply(left[rows], right[: rows.stop].T)
            gradient[head, rows, : rows.stop] = block.tril_(rows.start)
    return gradient


def _keep_forward(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    need_x, need_weight, need_bias = ctx.needs_input_grad
    by_bias = None
    if need_bias:
        groups = g.unflatten(-1, (len(weight), -1))
        exact = torch.promote_types(g.dtype, torch.float32)
        by_bias = groups.sum((0, 3), dtype=exact).T.to(ctx.bias_dtype)
    return (
        dx(g, weight) if need_x else None,
        dw(g, x, len(weight), weight.dtype) if need_weight else None,
        by_bias,
    )


def _keep_two(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _dx_backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
    g, weight = ctx.saved_tensors
    need_g, need_weight = ctx.needs_input_grad
    return (
        forward(u, weight, None) if need_g else None,
        dw(g, u, len(weight), weight.dtype) if need_weight else None,
    )


def _dw_backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
    g, x = ctx.saved_tensors
    need_g, need_x, *_ = ctx.needs_input_grad
    return forward(x, u, None) if need_g else None, dx(g, u) if need_x else None, None, None


def _operator(
    name: str, schema: str, compute: Callable, fake: Callable, keep: Callable, backward: Callable
) -> Any:
    """Returns a new operator; defined by its parts, a call costs less than one of `custom_op`."""
    name = f"remnant::{name}"
    torch.library.define(name, schema)
    torch.library.impl(name, "default", compute)
    torch.library.register_fake(name, fake)
    torch.library.register_autograd(name, backward, setup_context=keep)
    return getattr(torch.ops.remnant, name.removeprefix("remnant::")).default


forward = _operator(
    "masked_conv",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _forward,
    lambda x, weight, bias: _empty(x),
    _keep_forward,
    _backward,
)
dx = _operator(
    "masked_conv_dx",
    "(Tensor g, Tensor weight) -> Tensor",
    _dx,
    lambda g, weight: _empty(g),
    _keep_two,
    _dx_backward,
)
dw = _operator(
    "masked_conv_dw",
    "(Tensor g, Tensor x, int heads, ScalarType dtype) -> Tensor",
    _dw,
    lambda g, x, heads, dtype: x.new_empty(heads, x.shape[1], x.shape[1], dtype=dtype),
    _keep_two,
    _dw_backward,
)


def _triton(x: Tensor) -> ModuleType | None:
    """Returns the Triton kernels where they compute a product of x."""
    if implementation(x.device, x.dtype)[0] != "triton" or not x.numel():
        return None
    from arch import masked_conv_triton

    return masked_conv_triton


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _blocks(x: Tensor) -> Iterator[slice]:
    """Yields the positions of x, block by block; rows of W end at a block's diagonal."""
    length = x.shape[1]
    step = BLOCK if x.device.type == "cpu" else max(1, length)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def _groups(weight: Tensor, x: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields each head and its features."""
    width = x.shape[-1] // len(weight)
    for head in range(len(weight)):
        yield head, slice(head * width, (head + 1) * width)


def _multiply(matrix: Tensor, x: Tensor, y: Tensor, offset: Tensor | None = None) -> None:
    """Fills y `(B, M, D)` with matrix `(M, K)` times x `(B, K, D)`, plus an offset `(M, 1)`."""
    if _onednn(x):
        for one, result in zip(x, y, strict=True):
            product = _linear(matrix, one)
            result.copy_(product) if offset is None else torch.add(product, offset, out=result)
        return
    torch.baddbmm(y, matrix.expand(len(x), -1, -1), x, beta=0, out=y)
    if offset is not None:
        y += offset


def _short(x: Tensor, weight: Tensor) -> bool:
    """Whether one product does it all, but for so many sequences that each has little to do."""
    return _onednn(x) and x.shape[1] <= BLOCK and len(weight) == 1


def _convolve(matrix: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Returns matrix x + bias as a convolution whose channels are the positions: one call."""
    bias = None if bias is None else bias.to(x.dtype)
    return torch.ops.aten.mkldnn_convolution(x, matrix[..., None], bias, [0], [1], [1], 1)


def _linear(a: Tensor, b: Tensor) -> Tensor:
    """Returns a `(M, K)` times b `(K, N)`, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")


def _onednn(x: Tensor) -> bool:
    """Whether oneDNN multiplies: in float32 it uses all of any x86 processor, MKL Intel's only."""
    large = x.numel() >= ONEDNN
    return large and x.device.type == "cpu" and x.dtype == torch.float32 and _has_onednn()


@cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
