"""The operator y = sum_r tril(V_r) gelu(tril(U_r) x + c_r) + b, known to autograd and the compiler.

Two products of the kind in `triangular`. They are one operator so that the backward can multiply by
the derivative of GELU where the gradient is made, instead of in a pass of its own.
"""

from typing import Any

import torch
from torch import Tensor

from arch.kernels import backend, layout


@torch.library.custom_op("remnant::expanded", mutates_args=())
def expanded(
    x: Tensor,
    expand: Tensor,
    expand_bias: Tensor | None,
    contract: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y and, to keep for the backward, h_r = gelu(z_r) and z_r = tril(U_r) x + c_r."""
    product = backend.choose(x).product
    h, z = product(x, expand, expand_bias, None, join=False, gelu=True, keep=keep)
    y, _ = product(h, contract, bias, residual, join=True, gelu=False, keep=False)
    return y, h if keep else layout.nothing(x), z


@expanded.register_fake
def _(x, expand, expand_bias, contract, bias, residual, keep):
    h, z = (layout.output(x, len(expand)) if keep else layout.nothing(x) for _ in range(2))
    return layout.output(x, 1, residual), h, z


@torch.library.custom_op("remnant::expanded_backward", mutates_args=())
def expanded_backward(
    dy: Tensor,
    x: Tensor,
    expand: Tensor,
    contract: Tensor,
    h: Tensor,
    z: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, expand, expand_bias, contract, bias, empty where not needed."""
    need_x, need_expand, need_expand_bias, need_contract, need_bias = needs
    dy = dy.to(x.dtype)
    inner = need_x or need_expand or need_expand_bias
    dz, dbias = backend.input_gradient(
        dy, contract, z, like=x, join=False, needed=inner, sums=need_bias
    )
    dx, dexpand_bias = backend.input_gradient(
        dz, expand, None, like=x, join=True, needed=need_x, sums=need_expand_bias
    )
    dexpand = backend.weight_gradient(dz, x, expand, needed=need_expand)
    dcontract = backend.weight_gradient(dy, h, contract, needed=need_contract)
    return dx, dexpand, dexpand_bias, dcontract, dbias


@expanded_backward.register_fake
def _(dy, x, expand, contract, h, z, needs):
    need_x, need_expand, need_expand_bias, need_contract, need_bias = needs
    expand_sums = layout.position_sums(len(expand), expand, x.dtype)
    sums = layout.position_sums(1, contract, x.dtype)
    return (
        layout.output(x, 1) if need_x else layout.nothing(x),
        layout.weight_gradient(expand) if need_expand else layout.nothing(expand),
        expand_sums if need_expand_bias else layout.nothing(sums),
        layout.weight_gradient(contract) if need_contract else layout.nothing(contract),
        sums if need_bias else layout.nothing(sums),
    )


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, expand, expand_bias, contract, bias, residual, _ = inputs
    _, h, z = output
    ctx.save_for_backward(x, expand, contract, h, z)
    ctx.dtypes = [None if t is None else t.dtype for t in (expand_bias, bias, residual)]
    ctx.mark_non_differentiable(h, z)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 7
    *needs, need_residual, _ = ctx.needs_input_grad
    expand_bias_dtype, bias_dtype, residual_dtype = ctx.dtypes
    found = expanded_backward(dy, *ctx.saved_tensors, needs)
    dx, dexpand, dexpand_bias, dcontract, dbias = (
        gradient if needed else None for gradient, needed in zip(found, needs, strict=True)
    )
    return (
        dx,
        dexpand,
        None if dexpand_bias is None else dexpand_bias.to(expand_bias_dtype),
        dcontract,
        None if dbias is None else dbias.to(bias_dtype),
        dy.squeeze(0).to(residual_dtype) if need_residual else None,
        None,
    )


expanded.register_autograd(_backward, setup_context=_setup)
