"""What the public functions do to their arguments before an operator sees them."""

import torch
from torch import Tensor


def matrices(name: str, weight: Tensor, x: Tensor, branches: tuple[int, ...], own: int) -> Tensor:
    """Return weight with its branches and heads written out, (R, H, T, T) or (R, H, T).

    Args:
        name: what the caller calls weight.
        weight: (*branches, T, T) or (*branches, H, T, T), with one T less for Toeplitz taps.
        x: (..., T, D).
        branches: (R,) or ().
        own: the number of dimensions of one triangle, 2, or 1 for Toeplitz taps.

    Raises:
        ValueError: the shape is another, or H does not divide D.
    """
    length, features = x.shape[-2:]
    triangle = (length,) * own
    heads = weight.shape[len(branches) : weight.dim() - own]
    if len(heads) > 1 or weight.shape != (*branches, *heads, *triangle):
        plain, headed = (*branches, *triangle), (*branches, "H", *triangle)
        allowed = f"{plain}, or {headed} with H heads".replace("'", "")
        raise ValueError(f"{name} is {tuple(weight.shape)}: expected {allowed}")
    if heads and features % heads[0]:
        raise ValueError(f"{name} has {heads[0]} heads: expected a divisor of D = {features}")
    return weight.view(*(branches or (1,)), *(heads or (1,)), *triangle)


def offsets(name: str, bias: Tensor | None, shape: tuple[int, ...], heads: int) -> Tensor | None:
    """Return a bias of the given shape as (branches, H, T)."""
    if bias is None:
        return None
    expect(name, bias, shape)
    return bias.view(-1, heads, bias.shape[-1])


def expect(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise a ValueError that names a tensor of another shape."""
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}: expected {tuple(shape)}")


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to multiply in: autocast's where it is on, else x's own."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def gradients_wanted(*tensors: Tensor | None) -> bool:
    """Return whether a backward pass through these tensors can follow."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
