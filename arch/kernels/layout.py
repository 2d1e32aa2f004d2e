"""Shape, dtype and memory order of what the operators return, alike for every backend and fake.

Shapes, in all of this package: x, g, y, z are (S, B, T, D), with S the number of branches or 1;
weight is (R, H, T, T), or (R, H, T) for the taps of a Toeplitz matrix; bias is (R or 1, H, T).
"""

import torch
from torch import Tensor


def output(like: Tensor, branches: int, residual: Tensor | None = None) -> Tensor:
    """Return an empty (branches, B, T, D) in the order of `like`, batch- or position-major.

    Its dtype is that of `like`, promoted with the residual's.
    """
    batch, length, features = like.shape[1:]
    dtype = like.dtype if residual is None else torch.promote_types(like.dtype, residual.dtype)
    if like.stride(1) < like.stride(2):
        return like.new_empty(branches, length, batch, features, dtype=dtype).transpose(1, 2)
    return like.new_empty(branches, batch, length, features, dtype=dtype)


def weight_gradient(weight: Tensor) -> Tensor:
    """Return an empty contiguous tensor of weight's shape and dtype."""
    return weight.new_empty(weight.shape)


def position_sums(branches: int, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an empty (branches, H, T) for sums of `dtype` over batch and features."""
    return weight.new_empty(branches, *weight.shape[1:3], dtype=accumulator(dtype))


def nothing(like: Tensor) -> Tensor:
    """Return the tensor that stands for a result nobody asked for."""
    return like.new_empty(0)


def rows(x: Tensor) -> Tensor:
    """Return x with the features of a position side by side, copied only where they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of `dtype` are kept."""
    return torch.promote_types(dtype, torch.float32)
