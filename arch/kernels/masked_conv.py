"""The masked convolution: one lower-triangular matrix over positions, shared by the features.

    y[b, i, :] = sum_{j <= i} W[i, j] x[b, j, :] + bias[i]

Three products make it and its gradients: forward, tril(W) x; dx, tril(W)^T g; dw, tril(g x^T).
Each is linear in both of its operands, and its gradients are the other two, so that gradients of
every order exist. Each is an operator, on a GPU one which `torch.compile` sees through. Eager on a
CPU, where an operator in Python costs as much as a small product, a convolution is one of torch's
own dense products instead.

What W holds above the diagonal is never read into a result, NaN included, and its gradient is zero.
(A NaN or infinity in x may reach earlier rows, as 0 * NaN does in a dense product.) The products
are computed in x's dtype, or autocast's, and accumulated in float32; weights and biases may be kept
in another dtype and get their gradients in it. Results are the same bits on every run.

On NVIDIA devices products in float16 and bfloat16 are Triton's, unless REMNANT_KERNELS is dense.
"""

import logging
import math
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.library import custom_op, triton_op
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from arch.errors import ModelError, show_value

ONEDNN = 2**18
"""Use oneDNN from this many numbers in x on; below, its call overhead is larger."""
TRITON_DTYPES = (torch.float16, torch.bfloat16)
KERNELS = ("auto", "dense", "triton")
"""What the environment variable REMNANT_KERNELS may be."""


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

    It is on any device but a CPU, to torch.compile, which cannot trace the choice, and where its
    work may be counted, as that of a triangle.
    """
    return torch.compiler.is_compiling() or not x.is_cpu or may_be_counted(x)


def may_be_counted(x: Tensor) -> bool:
    """Returns whether x is fake, or a mode of torch's sees the operators that run on it."""
    return type(x) is not Tensor or is_in_torch_dispatch_mode()


def chosen_kernels() -> str:
    """Returns what the environment variable REMNANT_KERNELS says: auto (unset), dense or triton.

    Raises:
        ModelError: it is something else.
    """
    chosen = os.environ.get("REMNANT_KERNELS", "auto")
    if chosen not in KERNELS:
        raise ModelError(
            f"REMNANT_KERNELS is {show_value(chosen)}; allowed: {', '.join(KERNELS)}; set one of "
            "these, or unset it"
        )
    return chosen


@cache
def implementation(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Returns what computes the products, "triton" or "dense", and why.

    REMNANT_KERNELS is read by the first call for a device and dtype, which logs the answer: as a
    warning where a CUDA device goes without the Triton kernels in half precision unasked.

    Raises:
        ModelError: REMNANT_KERNELS is no word for kernels, or is triton where Triton cannot run.
    """
    chosen = chosen_kernels()
    if device.type == "cuda" and device.index is None:  # the same device, and one line of the log
        return implementation(torch.device("cuda", torch.cuda.current_device()), dtype)
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    major, minor = torch.cuda.get_device_capability(device) if nvidia else (0, 0)
    reasons = {
        f"bmm, and in float32 Conv1d from T = {onednn_length()} on": device.type == "cpu",
        "the Triton kernels are for NVIDIA devices": not nvidia,
        f"the Triton kernels are for half precision, not {dtype}": dtype not in TRITON_DTYPES,
        "Triton is not installed": find_spec("triton") is None,
        f"Triton needs {missing_for_triton()}": missing_for_triton() is not None,
        f"the Triton kernels need sm_80, the device is sm_{major}{minor}": major < 8,
    }
    name, why = "triton", f"sm_{major}{minor}"
    if against := [reason for reason, holds in reasons.items() if holds]:
        name, why = "dense", against[0]
        if chosen == "triton":
            why = next(reason for reason in against if "Triton" in reason)
            raise ModelError(
                f"REMNANT_KERNELS is triton, which cannot run on {device} in {dtype}: {why}; unset "
                "it, or set it to dense"
            )
    elif chosen == "dense":
        name, why = "dense", "REMNANT_KERNELS is dense"
    lacking = device.type == "cuda" and dtype in TRITON_DTYPES and bool(against)
    level = logging.WARNING if lacking else logging.INFO
    message = "masked convolutions on %s in %s: %s (%s)"
    logging.getLogger(__name__).log(level, message, device, dtype, name, why)
    return name, why


@cache
def missing_for_triton() -> str | None:
    """Returns what the machine lacks of what Triton builds its link to Python with, if anything."""
    if not shutil.which(os.environ.get("CC") or "gcc") and not shutil.which("clang"):
        return "a C compiler (gcc, or another one that CC names)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h (the package python3-dev)"
    return None


def describe_processor() -> str:
    """Returns what the system says of the processor, its vendor and family among it."""
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8") if file.is_file() else platform.processor()


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


def _operator(name: str) -> Callable[[Callable[..., Tensor]], CustomOpDef]:
    """Returns what makes a function an operator, which torch.compile sees through on a GPU.

    Elsewhere it is one node: `triton_op` imports the compiler, as long as torch itself takes.
    """

    def register(compute: Callable[..., Tensor]) -> CustomOpDef:
        if torch.version.cuda is not None and find_spec("triton"):
            return triton_op(name, compute, mutates_args=())  # pyright: ignore
        operator = custom_op(name, compute, mutates_args=())
        operator.register_fake(compute)
        return operator

    return register


@_operator("remnant::masked_conv")
def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(W) x + bias: x `(B, T, D)`, weight `(H, T, T)`, bias `(H, T)`."""
    kernels = _triton(x)
    return kernels.forward(x, weight, bias) if kernels else _dense(x, weight, bias).contiguous()


@_operator("remnant::masked_conv_dx")
def dx(g: Tensor, weight: Tensor) -> Tensor:
    """Returns tril(W)^T g: g `(B, T, D)`, weight `(H, T, T)`."""
    if kernels := _triton(g):
        return kernels.dx(g, weight)
    lower, groups = weight.to(g.dtype).tril(), g.unflatten(-1, (len(weight), -1))
    return torch.einsum("hij,bihd->bjhd", lower, groups).flatten(2).contiguous()


@_operator("remnant::masked_conv_dw")
def dw(g: Tensor, x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Returns tril(sum_b g x^T), `(H, T, T)` of `dtype`: g and x `(B, T, D)`."""
    if kernels := _triton(x):
        return kernels.dw(g, x, x.new_zeros(heads, x.shape[1], x.shape[1], dtype=dtype))
    g, x = (t.unflatten(-1, (heads, -1)) for t in (g, x))
    return torch.einsum("bihd,bjhd->hij", g, x).tril().to(dtype)


def _save_forward(ctx: Any, inputs: tuple, output: Tensor) -> None:
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


def _save_two(ctx: Any, inputs: tuple, output: Tensor) -> None:
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


forward.register_autograd(_backward, setup_context=_save_forward)
dx.register_autograd(_dx_backward, setup_context=_save_two)
dw.register_autograd(_dw_backward, setup_context=_save_two)


def _triton(x: Tensor) -> ModuleType | None:
    """Returns the Triton kernels where they compute a product of x `(B, T, D)`."""
    # A plan counts on fake tensors of a CPU what a GPU will do.
    if not x.is_cuda and chosen_kernels() == "triton":
        return None
    if implementation(x.device, x.dtype)[0] != "triton" or not x.numel():
        return None
    from arch.kernels import triton as masked_conv_triton

    return masked_conv_triton
