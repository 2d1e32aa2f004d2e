"""Which implementation computes a product.

The Triton kernels take float32, float16 and bfloat16 on NVIDIA devices of compute capability 8.0
and above. Everything else, such as a CPU, float64, CUDA without Triton installed, or an empty
batch, is computed by the plain PyTorch blocks, which give the same results more slowly.
"""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from arch.kernels import blockwise, layout

_TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def choose(x: Tensor) -> ModuleType:
    """Return the module whose `product`, `transposed` and `outer` suit x's device and dtype."""
    suitable = x.is_cuda and x.dtype in _TRITON_DTYPES and x.numel() > 0
    if suitable and _triton_runs_on(x.device.index):
        from arch.kernels import launch

        return launch
    return blockwise


def input_gradient(
    g: Tensor,
    weight: Tensor,
    z: Tensor | None,
    *,
    like: Tensor,
    join: bool,
    needed: bool,
    sums: bool,
) -> tuple[Tensor, Tensor]:
    """Return tril(W)^T g, if needed, and the sums of g over batch and features, if asked for."""
    if needed:
        return choose(g).transposed(g, weight, z, like=like, join=join, sums=sums)
    return layout.nothing(g), blockwise.position_sums(g, weight) if sums else layout.nothing(g)


def weight_gradient(g: Tensor, x: Tensor, weight: Tensor, *, needed: bool) -> Tensor:
    """Return the gradient of weight, given the one at the product's output, if needed."""
    return choose(g).outer(g, x, weight) if needed else layout.nothing(weight)


@cache
def _triton_runs_on(device: int) -> bool:
    return (
        torch.version.cuda is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and find_spec("triton") is not None
    )
