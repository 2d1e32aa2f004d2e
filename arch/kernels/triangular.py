"""The operator y_r = act(tril(W_r) x_r + b_r), known to autograd and to torch.compile.

`custom_op` rather than `triton_op`: the compiler sees one opaque node with a CPU and a CUDA side,
and the same node passes `torch.library.opcheck` on a machine without a GPU. The backward is an
operator too, so a compiled backward pass is made of the same kernels. Gradients of gradients are
not defined.
"""

from typing import Any

import torch
from torch import Tensor

from arch.kernels import backend, layout


@torch.library.custom_op("remnant::triangular", mutates_args=())
def triangular(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    join: bool,
    gelu: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Return y and, to keep for the backward, the argument of act: see `blockwise.product`."""
    return backend.choose(x).product(x, weight, bias, residual, join=join, gelu=gelu, keep=keep)


@triangular.register_fake
def _(x, weight, bias, residual, join, gelu, keep):
    y = layout.output(x, 1 if join else len(weight), residual)
    return y, layout.output(x, len(weight)) if keep else layout.nothing(x)


@torch.library.custom_op("remnant::triangular_backward", mutates_args=())
def triangular_backward(
    dy: Tensor, x: Tensor, weight: Tensor, z: Tensor | None, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, empty where `needs` says no."""
    need_x, need_weight, need_bias = needs
    dz = dy.to(x.dtype)
    if z is not None:
        dz = torch.ops.aten.gelu_backward(dz.expand_as(z), z)
    dx, dbias = backend.input_gradient(
        dz, weight, None, like=x, join=len(x) == 1, needed=need_x, sums=need_bias
    )
    return dx, backend.weight_gradient(dz, x, weight, needed=need_weight), dbias


@triangular_backward.register_fake
def _(dy, x, weight, z, needs):
    need_x, need_weight, need_bias = needs
    sums = layout.position_sums(len(dy if z is None else z), weight, x.dtype)
    return (
        layout.output(x, len(x)) if need_x else layout.nothing(x),
        layout.weight_gradient(weight) if need_weight else layout.nothing(weight),
        sums if need_bias else layout.nothing(sums),
    )


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, weight, bias, residual, _, _, keep = inputs
    ctx.save_for_backward(x, weight, output[1] if keep else None)
    ctx.dtypes = [None if t is None else t.dtype for t in (bias, residual)]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 7
    need_x, need_weight, need_bias, need_residual = ctx.needs_input_grad[:4]
    bias_dtype, residual_dtype = ctx.dtypes
    x, weight, z = ctx.saved_tensors
    dx, dweight, dbias = triangular_backward(dy, x, weight, z, [need_x, need_weight, need_bias])
    return (
        dx if need_x else None,
        dweight if need_weight else None,
        dbias.to(bias_dtype) if need_bias else None,
        dy.squeeze(0).to(residual_dtype) if need_residual else None,
        *(None, None, None),
    )


triangular.register_autograd(_backward, setup_context=_setup)
