"""The operator y = x + tril(W) norm(x) + b: a block's first half in one pass over x.

norm(x) = (x - m) n scale + shift, with the mean m and the rate n = 1 / sqrt(variance + epsilon) of
a position's features (LayerNorm, arXiv:1607.06450), or m = 0 (RMSNorm, arXiv:1910.07467). Only m
and n are kept for the backward. Where x has the dtype of the products, the Triton kernels never
write norm(x) to memory; everywhere else it is written, multiplied, and made again for the backward.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from arch.kernels import backend, blockwise, layout


@torch.library.custom_op("remnant::normed", mutates_args=())
def normed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    centred: bool,
    epsilon: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, T, D), and the means (empty unless centred) and rates (B, T) of x.

    Args:
        x: (B, T, D).
        weight: (T, T).
        bias: (T,).
        scale: (D,).
        shift: (D,).
        centred: LayerNorm instead of RMSNorm.
        epsilon: added to the variance.
        dtype: of the product.
    """
    fused = _fused(x, dtype)
    if fused:
        return fused.forward(x, weight, bias, scale, shift, centred, epsilon)
    wide = x.to(layout.accumulator(x.dtype))
    mean = wide.mean(-1) if centred else layout.nothing(wide)
    deviation = wide - mean[..., None] if centred else wide
    rate = (deviation.square().mean(-1) + epsilon).rsqrt()
    values = _scaled(deviation * rate[..., None], scale, shift).to(dtype)[None]
    offset = None if bias is None else bias[None, None]
    y, _ = backend.choose(values).product(
        values, weight[None, None], offset, x, join=True, gelu=False, keep=False
    )
    return y.squeeze(0).to(x.dtype), mean, rate


@normed.register_fake
def _(x, weight, bias, scale, shift, centred, epsilon, dtype):
    rate = x.new_empty(x.shape[:2], dtype=layout.accumulator(x.dtype))
    mean = torch.empty_like(rate) if centred else layout.nothing(rate)
    return layout.output(x[None], 1).squeeze(0), mean, rate


@torch.library.custom_op("remnant::normed_backward", mutates_args=())
def normed_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    mean: Tensor,
    rate: Tensor,
    dtype: torch.dtype,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight (empty if not needed), bias, scale and shift."""
    fused = _fused(x, dtype)
    if fused:
        return fused.backward(dy, x, weight, scale, shift, mean, rate, need_weight)
    wide = x.to(layout.accumulator(x.dtype))
    plain = (wide - mean[..., None] if mean.numel() else wide) * rate[..., None]
    values = _scaled(plain, scale, shift).to(dtype)[None]
    slope, square = dy.to(dtype)[None], weight[None, None]
    kernels = backend.choose(values)
    back, dbias = kernels.transposed(slope, square, None, like=values, join=True, sums=True)
    back = back.squeeze(0).to(wide.dtype)
    dscale, dshift = (back * plain).sum((0, 1)), back.sum((0, 1))
    back = back * scale
    inner = back - plain * (back * plain).mean(-1, keepdim=True)
    if mean.numel():
        inner = inner - back.mean(-1, keepdim=True)
    dx = layout.output(x[None], 1).squeeze(0).copy_(inner * rate[..., None] + dy)
    dweight = layout.nothing(weight)
    if need_weight:
        dweight = kernels.outer(slope, values, square).view(weight.shape)
    return dx, dweight, dbias.view(-1), dscale, dshift


@normed_backward.register_fake
def _(dy, x, weight, scale, shift, mean, rate, dtype, need_weight):
    sums = rate.new_empty(x.shape[-1])
    dweight = layout.weight_gradient(weight) if need_weight else layout.nothing(weight)
    dx = layout.output(x[None], 1).squeeze(0)
    return dx, dweight, rate.new_empty(x.shape[1]), sums, torch.empty_like(sums)


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, weight, bias, scale, shift, _, _, ctx.dtype = inputs
    _, mean, rate = output
    ctx.save_for_backward(x, weight, scale, shift, mean, rate)
    ctx.dtypes = [None if t is None else t.dtype for t in (x, weight, bias, scale, shift)]
    ctx.mark_non_differentiable(mean, rate)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 8
    needs = ctx.needs_input_grad[:5]
    found = normed_backward(dy, *ctx.saved_tensors, ctx.dtype, needs[1])
    wanted = zip(found, needs, ctx.dtypes, strict=True)
    gradients = [gradient.to(dtype) if need else None for gradient, need, dtype in wanted]
    return (*gradients, None, None, None)


normed.register_autograd(_backward, setup_context=_setup)


def _fused(x: Tensor, dtype: torch.dtype) -> ModuleType | None:
    if x.dtype != dtype or backend.choose(x) is blockwise:
        return None
    from arch.kernels import launch_normed

    return launch_normed


def _scaled(plain: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    return plain * scale if shift is None else plain * scale + shift
