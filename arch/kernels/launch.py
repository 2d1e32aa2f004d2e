"""The host side of the Triton kernels: the twin of `arch.kernels.blockwise`, for CUDA tensors.

Under TRITON_INTERPRET=1 the same functions take CPU tensors.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from arch.kernels import layout, table
from arch.kernels.toeplitz import diagonal_sums, strip
from arch.kernels.triton_outer import add_parts_kernel, outer_kernel
from arch.kernels.triton_product import product_kernel
from arch.kernels.triton_transposed import transposed_kernel

# What one program of the last sum of `outer` holds: entries of a block, and parts of the batch.
_ENTRIES, _AT_ONCE = 256, 16


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
    tile = _tile(kernel if gelu else "product", x, width)
    matrix = _matrix(weight, x.dtype, tile.rows, tile.rows)
    tiles = heads * _ceil(width, tile.columns) * _ceil(length, tile.rows)
    run(
        product_kernel,
        tiles * batch * len(y),
        *(x, matrix.start, bias, residual, y, z),
        *(length, width, heads, batch),
        *_strides(x),
        *matrix.strides,
        *_strides(y),
        0 if z is None else z.stride(0),
        *((0, 0) if residual is None else residual.stride()[:2]),
        JOINED=joined,
        GELU=gelu,
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **_constants(tile, x.dtype),
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
    tile = _tile("transposed" if z is None else "transposed_gelu", g, width)
    matrix = _matrix(weight, g.dtype, tile.rows, tile.depth)
    across = _ceil(width, tile.columns)
    partial = None
    if sums:
        partial = g.new_empty(len(g), batch, heads, across, length, dtype=torch.float32)
    run(
        transposed_kernel,
        heads * across * _ceil(length, tile.rows) * batch * len(y),
        *(g, matrix.start, z, y, partial),
        *(length, width, heads, batch, len(g)),
        *_strides(g),
        *matrix.strides,
        *_strides(y),
        JOINED=joined,
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **_constants(tile, g.dtype),
    )
    return y, layout.nothing(g) if partial is None else partial.sum((1, 3))


def outer(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of weight, tril(sum_b g_r x_r^T), in weight's shape and dtype."""
    branches, heads, length = weight.shape[:3]
    g, x = layout.rows(g), layout.rows(x)
    batch, width = x.shape[1], x.shape[3] // heads
    tile = _tile("outer", x, width)
    blocks, triangles = _ceil(length, tile.rows), branches * heads
    lower = blocks * (blocks + 1) // 2
    together = _ceil(batch, max(1, min(batch, tile.programs // (lower * triangles))))
    splits = _ceil(batch, together)
    parts = x.new_empty(splits, triangles, lower, tile.rows, tile.rows, dtype=torch.float32)
    run(
        outer_kernel,
        lower * triangles * splits,
        *(g, x, parts),
        *(length, width, heads, branches, batch, together),
        *_strides(g),
        *_strides(x),
        WHOLE=width % tile.depth == 0,
        BLOCK=tile.rows,
        **_constants(tile, x.dtype),
    )
    taps = weight.dim() == 3
    dtype = torch.float32 if taps else weight.dtype
    gradient = weight.new_empty(branches, heads, length, length, dtype=dtype)
    run(
        add_parts_kernel,
        tile.rows**2 // _ENTRIES * blocks**2 * triangles,
        *(parts, gradient, length, lower, triangles, splits),
        BLOCK=tile.rows,
        ENTRIES=_ENTRIES,
        AT_ONCE=_AT_ONCE,
    )
    return diagonal_sums(gradient)[..., -length:].to(weight.dtype) if taps else gradient


def architecture(x: Tensor) -> str:
    """Return what x's device is called in the table, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)
    return f"sm_{major}{minor}"


def run(kernel: Any, programs: int, first: Tensor, *others: Any, **constants: Any) -> None:
    """Start a kernel on the first tensor's device."""
    with torch.cuda.device_of(first):
        kernel[(programs,)](first, *others, **constants)


class _Matrix(NamedTuple):
    """A weight as the kernels read it: W[r + a, j] is at start + r block + a row + j."""

    start: Tensor
    strides: tuple[int, ...]  # branch, head, row, block


def _matrix(weight: Tensor, dtype: torch.dtype, rows: int, height: int) -> _Matrix:
    """Return weight in whole tiles of `rows`, read in blocks of `height`, copied only if it must.

    The copy is a cast and a margin of zeros. Without the margin the kernels would need a mask along
    W's rows, and with a row stride that 16 does not divide they would load two bytes at a time.
    """
    length = weight.shape[2]
    padded = _ceil(length, rows) * rows
    if weight.dim() == 3:
        before = padded - height
        start = strip(weight.to(dtype), height, before, rows)[..., before:]
        return _Matrix(start, (*start.stride()[:3], -1))
    aligned = weight.data_ptr() % 16 == 0 and all(s % 16 == 0 for s in weight.stride()[:3])
    if weight.dtype != dtype or padded != length or weight.stride(3) != 1 or not aligned:
        shape = (*weight.shape[:2], padded, padded)
        copy = (weight.new_empty if padded == length else weight.new_zeros)(shape, dtype=dtype)
        copy[..., :length, :length] = weight
        weight = copy
    branch, head, row, _ = weight.stride()
    return _Matrix(weight, (branch, head, row, row))


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Return x's strides over branches, batch and positions; a single branch serves for all."""
    branch, batch, row, _ = x.stride()
    return branch if len(x) > 1 else 0, batch, row


def _tile(kernel: str, x: Tensor, width: int) -> table.Tile:
    return table.tile(kernel, architecture(x), x.dtype, x.shape[2], width)


def _constants(tile: table.Tile, dtype: torch.dtype) -> dict[str, Any]:
    exact = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return {
        "DEPTH": tile.depth,
        "PRECISION": "ieee" if exact else "tf32",
        "WIDEN": knobs.runtime.interpret and dtype == torch.bfloat16,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _ceil(length: int, step: int) -> int:
    """Return how many steps cover a length."""
    return -(-length // step)
