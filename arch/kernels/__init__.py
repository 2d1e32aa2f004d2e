"""Masked convolutions: one lower-triangular matrix over positions, shared by the features.

    masked_convolution(x, weight, bias, residual)       tril(W) x + b + residual
    parallel_convolution(x, weight, bias, residual)     sum_p act(tril(W_p) x_p + b_p) + residual
    expanded_convolution(x, expand, expand_bias, contract, bias, residual)
                                                        sum_r tril(V_r) gelu(tril(U_r) x + c_r) + b
    toeplitz_convolution(x, taps, bias, residual)       the first, with W[i, j] = taps[i - j]

x is (B, T, D) and tril(W) x means y[b, i, :] = sum_{j <= i} W[i, j] x[b, j, :]. With heads, a
weight is (H, T, T) and a bias (H, T): the features stand in H contiguous groups of D/H, and group h
is mixed by weight[h].

What lies above the diagonal is never read into a result, NaN included, and its gradient is zero.
Slices `weight[:T, :T]` of a longer matrix are taken as they are. The products are computed in x's
dtype, or autocast's, and accumulated in float32; weights and biases may be kept in another dtype
and get their gradients in it; a float32 residual stays float32, and then so does the result. For
float32 on CUDA, `torch.backends.cuda.matmul.fp32_precision` decides about TF32. Results are the
same bits on every run. Gradients of gradients are not defined.

Nothing outside this package knows which implementation runs: see `arch.kernels.backend`.
"""

from torch import Tensor

from arch.kernels.arguments import expect, gradients_wanted, matrices, offsets, product_dtype
from arch.kernels.expanded import expanded
from arch.kernels.triangular import triangular

__all__ = [
    "expanded_convolution",
    "masked_convolution",
    "parallel_convolution",
    "toeplitz_convolution",
]


def masked_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Return tril(weight) x + bias + residual, a (B, T, D).

    Args:
        x: (B, T, D).
        weight: (T, T), or (H, T, T) for H groups of D/H features.
        bias: (T,), or (H, T) where weight has heads.
        residual: (B, T, D).

    Raises:
        ValueError: a shape does not fit.
    """
    triangle = matrices("weight", weight, x, (), 2)
    return _mix(x, triangle, offsets("bias", bias, weight.shape[:-1], triangle.shape[1]), residual)


def toeplitz_convolution(
    x: Tensor, taps: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Return masked_convolution of weight[i, j] = taps[i - j], without making that matrix.

    Args:
        x: (B, T, D).
        taps: (T,), or (H, T) for H groups of D/H features; taps[0] weighs the position itself.
        bias: (T,), or (H, T) where taps has heads.
        residual: (B, T, D).

    Raises:
        ValueError: a shape does not fit.
    """
    triangle = matrices("taps", taps, x, (), 1)
    return _mix(x, triangle, offsets("bias", bias, taps.shape, triangle.shape[1]), residual)


def parallel_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str = "none",
) -> Tensor:
    """Return sum_p act(tril(weight[p]) x_p + bias[p]) + residual, a (B, T, D).

    Without an activation and with one x for all, this is a single product of the summed weights.

    Args:
        x: (B, T, D), or (P, B, T, D) with an input for each branch.
        weight: (P, T, T) or (P, H, T, T).
        bias: (P, T), or (P, H, T) where weight has heads.
        residual: (B, T, D).
        activation: "none", or "gelu" for the exact GELU.

    Raises:
        ValueError: a shape does not fit, or the activation is another.
    """
    if activation not in ("none", "gelu"):
        raise ValueError(f"activation={activation!r}: expected 'none' or 'gelu'")
    if x.dim() == 4:
        expect("x", x, (len(weight), *x.shape[1:]))
    triangle = matrices("weight", weight, x, weight.shape[:1], 2)
    offset = offsets("bias", bias, weight.shape[:-1], triangle.shape[1])
    if activation == "none":
        offset = None if offset is None else offset.sum(0, keepdim=True)
        triangle = triangle if x.dim() == 4 else triangle.sum(0, keepdim=True)
    return _mix(x, triangle, offset, residual, gelu=activation == "gelu")


def expanded_convolution(
    x: Tensor,
    expand: Tensor,
    expand_bias: Tensor | None,
    contract: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return sum_r tril(contract[r]) gelu(tril(expand[r]) x + expand_bias[r]) + bias + residual.

    Args:
        x: (B, T, D).
        expand: (R, T, T) or (R, H, T, T).
        expand_bias: (R, T), or (R, H, T) where expand has heads.
        contract: of the shape of expand.
        bias: (T,), or (H, T) where expand has heads.
        residual: (B, T, D).

    Raises:
        ValueError: a shape does not fit.
    """
    up = matrices("expand", expand, x, expand.shape[:1], 2)
    expect("contract", contract, expand.shape)
    expect("residual", residual, x.shape)
    up_offset = offsets("expand_bias", expand_bias, expand.shape[:-1], up.shape[1])
    offset = offsets("bias", bias, expand.shape[1:-1], up.shape[1])
    keep = gradients_wanted(x, expand, expand_bias, contract)
    x = x.to(product_dtype(x))[None]
    y, _, _ = expanded(x, up, up_offset, contract.view(up.shape), offset, residual, keep)
    return y.squeeze(0)


def _mix(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, *, gelu: bool = False
) -> Tensor:
    expect("residual", residual, x.shape[-3:])
    keep = gelu and gradients_wanted(x, weight, bias)
    x = x.to(product_dtype(x))
    inputs = x if x.dim() == 4 else x[None]
    y, _ = triangular(inputs, weight, bias, residual, True, gelu, keep)
    return y.squeeze(0)
