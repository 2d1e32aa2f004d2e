"""Exact products with a Jacobian, from backward passes alone: no matrix, no difference."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


class Linear(NamedTuple):
    """A function near one point.

    Attributes:
        forward: J p, in the shape of the function's value, for p in the point's.
        backward: J' u, in the point's shape, for u in the value's.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]


def linearise(function: Callable[[Tensor], Tensor], point: Tensor) -> Linear:
    """Evaluates a function once, and keeps what products with its Jacobian J need.

    J' u is linear in u, so its gradient by u in the direction p is J p: the backward pass of a
    backward pass.
    """
    # The fused kinds of attention have no gradient of a gradient.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        x = point.detach().requires_grad_()
        value = function(x)
        u = torch.zeros_like(value).requires_grad_()
        (pulled,) = torch.autograd.grad(value, x, u, create_graph=True)

    def forward(p: Tensor) -> Tensor:
        return torch.autograd.grad(pulled, u, p, retain_graph=True)[0]

    def backward(u: Tensor) -> Tensor:
        return torch.autograd.grad(value, x, u, retain_graph=True)[0]

    return Linear(forward, backward)
