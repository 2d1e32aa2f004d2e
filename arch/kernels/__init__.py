"""Masked convolutions: one lower-triangular matrix over positions, shared by all features.

Y[b, i, :] = sum_{j <= i} W[i, j] X[b, j, :] + bias[i] (+ residual[b, i, :])

Four members of one family, each with its gradients:

    masked_convolution(x, weight, bias, residual)              tril(W) x + b
    parallel_convolution(x, weight, bias, residual, activation=)  sum_p act(tril(W_p) x + b_p)
    expanded_convolution(x, expand, expand_bias, contract, bias, residual)
                                              sum_r tril(V_r) gelu(tril(U_r) x + c_r) + b
    toeplitz_convolution(x, taps, bias, residual)              W[i, j] = taps[i - j]

Entries above the diagonal never reach a result, whatever they hold, and their gradient is zero.
With heads, weight is (H, T, T) and bias (H, T): the features stand in H contiguous groups of D/H
and group h is mixed by weight[h]. A slice `weight[:T, :T]` of a longer stored matrix is welcome.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "expanded_convolution",
    "masked_convolution",
    "parallel_convolution",
    "toeplitz_convolution",
]


def masked_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Return tril(weight) x + bias + residual.

    Args:
        x: (B, T, D).
        weight: (T, T), or (H, T, T) with one matrix for each group of D/H features.
        bias: (T,) or (H, T).
        residual: (B, T, D), added to the result.
    """
    y = _mix(x, weight, bias)
    return y if residual is None else y + residual


def parallel_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str = "none",
) -> Tensor:
    """Return sum_p act(tril(weight[p]) x[p] + bias[p]) + residual.

    Args:
        x: (B, T, D), read by every branch, or (P, B, T, D), one input for each branch.
        weight: (P, T, T) or (P, H, T, T).
        bias: (P, T) or (P, H, T).
        residual: (B, T, D), added to the result.
        activation: "none" or "gelu".
    """
    if activation not in ("none", "gelu"):
        raise ValueError(f"activation={activation!r}: expected 'none' or 'gelu'")
    branches = len(weight)
    inputs = x if x.dim() == 4 else x.expand(branches, *x.shape)
    biases = [None] * branches if bias is None else bias
    sides = [_mix(a, w, b) for a, w, b in zip(inputs, weight, biases, strict=True)]
    if activation == "gelu":
        sides = [functional.gelu(side) for side in sides]
    y = torch.stack(sides).sum(0)
    return y if residual is None else y + residual


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
        expand_bias: (R, T) or (R, H, T).
        contract: the shape of expand.
        bias: (T,) or (H, T).
        residual: (B, T, D), added to the result.
    """
    biases = [None] * len(expand) if expand_bias is None else expand_bias
    hidden = [functional.gelu(_mix(x, u, c)) for u, c in zip(expand, biases, strict=True)]
    y = torch.stack([_mix(h, v, None) for h, v in zip(hidden, contract, strict=True)]).sum(0)
    y = y if bias is None else y + _per_feature(bias, x.shape[-1])
    return y if residual is None else y + residual


def toeplitz_convolution(
    x: Tensor, taps: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Return y[:, i] = sum_{j <= i} taps[i - j] x[:, j] + bias[i] + residual[:, i].

    Args:
        x: (B, T, D).
        taps: (T,) or (H, T); taps[0] weighs the position itself.
        bias: (T,) or (H, T).
        residual: (B, T, D), added to the result.
    """
    length = x.shape[1]
    positions = torch.arange(length, device=x.device)
    lag = (positions[:, None] - positions).clamp(min=0)
    return masked_convolution(x, taps[..., lag], bias, residual)


def _mix(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    lower = weight.new_zeros(()).where(_above(weight), weight)
    heads = 1 if weight.dim() == 2 else len(weight)
    groups = x.unflatten(-1, (heads, -1))
    y = torch.einsum("hij,bjhd->bihd", lower.reshape(heads, *weight.shape[-2:]), groups).flatten(2)
    return y if bias is None else y + _per_feature(bias, x.shape[-1])


def _above(weight: Tensor) -> Tensor:
    rows = torch.arange(weight.shape[-1], device=weight.device)
    return rows > rows[:, None]


def _per_feature(bias: Tensor, features: int) -> Tensor:
    rows = bias.reshape(-1, bias.shape[-1]).T
    return rows.repeat_interleave(features // rows.shape[1], 1)
