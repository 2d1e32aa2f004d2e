"""The host side of `triton_normed`: the fused twin of the operators in `arch.kernels.normed`."""

import torch
from torch import Tensor

from arch.kernels import layout, operands
from arch.kernels.triton_normed import (
    normed_outer_kernel,
    normed_product_kernel,
    normed_transposed_kernel,
    statistics_kernel,
)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    centred: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + tril(W) norm(x) + bias, the means (empty unless centred) and the rates of x."""
    y = layout.output(x[None], 1).squeeze(0)
    x = layout.rows(x)
    batch, length, width = x.shape
    rate = x.new_empty(batch, length, dtype=torch.float32)
    mean = torch.empty_like(rate) if centred else layout.nothing(rate)
    operands.run(
        statistics_kernel,
        batch * length,
        *(x, mean if centred else None, rate),
        *(length, width, *x.stride()[:2], epsilon),
        COLUMNS=1 << (width - 1).bit_length(),
    )
    tile = operands.tile_of("normed_product", x, width)
    matrix = operands.matrix_of(weight[None, None], x.dtype, tile.rows, tile.rows)
    operands.run(
        normed_product_kernel,
        operands.ceil(width, tile.columns) * operands.ceil(length, tile.rows) * batch,
        *(x, matrix.start, *map(_packed, (bias, scale, shift)), mean if centred else None, rate, y),
        *(length, width, batch),
        *(*x.stride()[:2], matrix.strides[2], *y.stride()[:2]),
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **operands.constants(tile, x.dtype),
    )
    return y, mean, rate


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    mean: Tensor,
    rate: Tensor,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight (empty if not needed), bias, scale and shift."""
    dx = layout.output(x[None], 1).squeeze(0)
    g, x = layout.rows(dy), layout.rows(x)
    batch, length, width = x.shape
    scale, shift = scale.contiguous(), _packed(shift)
    centre = mean if mean.numel() else None
    tile = operands.tile_of("normed_transposed", x, width)
    matrix = operands.matrix_of(weight[None, None], x.dtype, tile.rows, tile.depth)
    down = operands.ceil(length, tile.rows)
    dbias = x.new_empty(batch, length, dtype=torch.float32)
    dscale, dshift = x.new_empty(2, batch * down, width, dtype=torch.float32)
    operands.run(
        normed_transposed_kernel,
        down * batch,
        *(g, x, matrix.start, scale, centre, rate, dx, dbias, dscale, dshift),
        *(length, width, batch),
        *(*g.stride()[:2], *x.stride()[:2], matrix.strides[2], *dx.stride()[:2]),
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **operands.constants(tile, x.dtype),
    )
    dweight = layout.nothing(weight)
    if need_weight:
        tile = operands.tile_of("normed_outer", x, width)
        parts, together = operands.parts_of(x, length, 1, tile)
        operands.run(
            normed_outer_kernel,
            parts.shape[0] * parts.shape[2],
            *(g, x, scale, shift, centre, rate, parts),
            *(length, width, batch, together),
            *(*g.stride()[:2], *x.stride()[:2]),
            WHOLE=width % tile.depth == 0,
            BLOCK=tile.rows,
            **operands.constants(tile, x.dtype),
        )
        square = layout.weight_gradient(weight)[None, None]
        dweight = operands.add_parts(parts, square).view(weight.shape)
    return dx, dweight, dbias.sum(0), dscale.sum(0), dshift.sum(0)


def _packed(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.contiguous()
