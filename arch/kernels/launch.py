"""The host side of the Triton kernels: the twin of `arch.kernels.blockwise`, for CUDA tensors.

Under TRITON_INTERPRET=1 the same functions take CPU tensors.
"""

import torch
from torch import Tensor

from arch.kernels import layout, operands
from arch.kernels.toeplitz import diagonal_sums
from arch.kernels.triton_outer import outer_kernel
from arch.kernels.triton_product import product_kernel
from arch.kernels.triton_transposed import transposed_kernel


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    *,
    join: bool,
    gelu: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Return y_r = act(tril(W_r) x_r + b_r), or their sum plus residual, and what act was given."""
    branches, heads, length = weight.shape[:3]
    joined = branches if join else 1
    y = layout.output(x, branches // joined, residual)
    z = layout.output(x, branches) if keep else None
    x = layout.rows(x)
    bias = None if bias is None else bias.contiguous()
    residual = None if residual is None else layout.rows(residual)
    batch, width = x.shape[1], x.shape[3] // heads
    kernel = "parallel" if joined > 1 else "product_gelu"
    tile = operands.tile_of(kernel if gelu else "product", x, width)
    matrix = operands.matrix_of(weight, x.dtype, tile.rows, tile.rows)
    tiles = heads * operands.ceil(width, tile.columns) * operands.ceil(length, tile.rows)
    operands.run(
        product_kernel,
        tiles * batch * len(y),
        *(x, matrix.start, bias, residual, y, z),
        *(length, width, heads, batch),
        *operands.strides(x),
        *matrix.strides,
        *operands.strides(y),
        0 if z is None else z.stride(0),
        *((0, 0) if residual is None else residual.stride()[:2]),
        JOINED=joined,
        GELU=gelu,
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **operands.constants(tile, x.dtype),
    )
    return y, layout.nothing(x) if z is None else z


def transposed(
    g: Tensor, weight: Tensor, z: Tensor | None, *, like: Tensor, join: bool, sums: bool
) -> tuple[Tensor, Tensor]:
    """Return tril(W_r)^T g_r, or their sum, and the sums of g that are a bias's gradient."""
    branches, heads, length = weight.shape[:3]
    joined = branches if join else 1
    y = layout.output(like, branches // joined)
    g = layout.rows(g)
    batch, width = g.shape[1], g.shape[3] // heads
    tile = operands.tile_of("transposed" if z is None else "transposed_gelu", g, width)
    matrix = operands.matrix_of(weight, g.dtype, tile.rows, tile.depth)
    across = operands.ceil(width, tile.columns)
    partial = None
    if sums:
        partial = g.new_empty(len(g), batch, heads, across, length, dtype=torch.float32)
    operands.run(
        transposed_kernel,
        heads * across * operands.ceil(length, tile.rows) * batch * len(y),
        *(g, matrix.start, z, y, partial),
        *(length, width, heads, batch, len(g)),
        *operands.strides(g),
        *matrix.strides,
        *operands.strides(y),
        JOINED=joined,
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **operands.constants(tile, g.dtype),
    )
    return y, layout.nothing(g) if partial is None else partial.sum((1, 3))


def outer(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of weight, tril(sum_b g_r x_r^T), in weight's shape and dtype."""
    branches, heads, length = weight.shape[:3]
    g, x = layout.rows(g), layout.rows(x)
    batch, width = x.shape[1], x.shape[3] // heads
    tile = operands.tile_of("outer", x, width)
    parts, together = operands.parts_of(x, length, branches * heads, tile)
    operands.run(
        outer_kernel,
        parts.shape[0] * parts.shape[1] * parts.shape[2],
        *(g, x, parts),
        *(length, width, heads, branches, batch, together),
        *operands.strides(g),
        *operands.strides(x),
        WHOLE=width % tile.depth == 0,
        BLOCK=tile.rows,
        **operands.constants(tile, x.dtype),
    )
    if weight.dim() == 4:
        return operands.add_parts(parts, layout.weight_gradient(weight))
    square = weight.new_empty(branches, heads, length, length, dtype=torch.float32)
    return diagonal_sums(operands.add_parts(parts, square))[..., -length:].to(weight.dtype)
