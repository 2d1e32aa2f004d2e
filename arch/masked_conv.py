"""The masked convolution: one lower-triangular matrix over positions, shared by the features.

    y[b, i, :] = sum_{j <= i} W[i, j] x[b, j, :] + bias[i]

Three products make it and its gradients: forward, tril(W) x; dx, tril(W)^T g; dw, tril(g x^T).
Each is linear in both of its operands, and its gradients are the other two, so that gradients of
every order exist. Each is an operator of its own: one opaque node on every device, which passes
`torch.library.opcheck` without a GPU. Eager on a CPU, where an operator in Python costs as much as
a small product, a convolution is one of torch's own dense products instead.

What lies above the diagonal is never read into a result, NaN included, and its gradient is zero.
The products are computed in x's dtype, or autocast's, and accumulated in float32; weights and
biases may be kept in another dtype and get their gradients in it. For float32 on CUDA,
`torch.backends.cuda.matmul.fp32_precision` decides about TF32. Results are the same bits on every
run. `implementation` says what computes the products on a device.
"""

import logging
import math
import platform
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Numbers in an operand from which on oneDNN, where it is faster, outweighs its longer calls.
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
    if not is_one_node(x):
        return _dense(x, weight, bias)
    bias = None if bias is None else bias.reshape(heads, length)
    return forward(x, weight.reshape(heads, length, length), bias)


def product_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype to multiply in: autocast's where it is on, else x's own."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def is_one_node(x: Tensor) -> bool:
    """Returns whether a convolution of x is an operator of ours, not one of torch's products.

    It is on any device but a CPU, to torch.compile, which cannot trace the choice, and for fake
    tensors, so that who counts their work counts a triangle.
    """
    return torch.compiler.is_compiling() or type(x) is not Tensor or not x.is_cpu


@cache
def implementation(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Returns what computes the products, "triton" or "dense", and why.

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
        return "dense", f"bmm, and in float32 Conv1d from T = {onednn_length()} on"
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


def describe_processor() -> str:
    """Returns what the system says of the processor, its vendor and family among it."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()


@cache
def onednn_length() -> float:
    """Returns the length T from which on oneDNN multiplies float32 faster than MKL here.

    MKL uses 512-bit instructions on Intel's processors only, and AMD's execute them at full width
    from family 26 (Zen 5) on. Elsewhere oneDNN gains by the gradient of long matrices.
    """
    processor = describe_processor()
    if "GenuineIntel" in processor:
        return 1024
    family = re.search(r"family\s*:?\s*(\d+)", processor, re.IGNORECASE)
    if "AuthenticAMD" not in processor or family is None:
        return math.inf
    return 1 if int(family[1]) >= 26 else 256


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(weight) x + bias as `masked_convolution` does, in x's dtype.

    The gradient of bmm by W takes memory for `(B, T, T)`.
    """
    if weight.dim() == 3:
        biases = [None] * len(weight) if bias is None else bias
        groups = zip(x.chunk(len(weight), -1), weight, biases, strict=True)
        return torch.cat([_dense(*group) for group in groups], -1)
    lower = weight.to(x.dtype).tril()
    bias = None if bias is None else bias.to(x.dtype)
    large = x.numel() >= ONEDNN and x.shape[1] >= onednn_length()
    if large and x.is_cpu and x.dtype == torch.float32:
        return F.conv1d(x, lower[..., None], bias)  # over the features; channels are positions
    lower = lower.expand(len(x), -1, -1)
    return torch.bmm(lower, x) if bias is None else torch.baddbmm(bias[:, None], lower, x)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(W) x + bias: x `(B, T, D)`, weight `(H, T, T)`, bias `(H, T)`."""
    kernels = _triton(x)
    return kernels.forward(x, weight, bias) if kernels else _dense(x, weight, bias).contiguous()


def _dx(g: Tensor, weight: Tensor) -> Tensor:
    """Returns tril(W)^T g: g `(B, T, D)`, weight `(H, T, T)`."""
    if kernels := _triton(g):
        return kernels.dx(g, weight)
    lower, groups = weight.to(g.dtype).tril(), g.unflatten(-1, (len(weight), -1))
    return torch.einsum("hij,bihd->bjhd", lower, groups).flatten(2).contiguous()


def _dw(g: Tensor, x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Returns tril(sum_b g x^T), `(H, T, T)` of `dtype`: g and x `(B, T, D)`."""
    if kernels := _triton(x):
        return kernels.dw(g, x, x.new_zeros(heads, x.shape[1], x.shape[1], dtype=dtype))
    g, x = (t.unflatten(-1, (heads, -1)) for t in (g, x))
    return torch.einsum("bihd,bjhd->hij", g, x).tril().to(dtype)


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
    lambda x, weight, bias: x.new_empty(x.shape),
    _keep_forward,
    _backward,
)
dx = _operator(
    "masked_conv_dx",
    "(Tensor g, Tensor weight) -> Tensor",
    _dx,
    lambda g, weight: g.new_empty(g.shape),
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
