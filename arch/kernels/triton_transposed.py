"""Triton kernel: tril(W_r)^T g_r, or the sum of the branches, and the sums of g for a bias.

The twin of `triton_product`: a program's blocks begin on the diagonal, which is peeled off the
loop, and go down to the last row. Each entry of g meets the diagonal exactly once, so there its
sum over the tile's features is had for one reduction.
"""

import triton
import triton.language as tl

from arch.kernels.triton_product import gelu_slope, multiply


@triton.jit(do_not_specialize=["length", "batches", "branches"])
def transposed_kernel(
    g,
    weight,  # zero beyond length, up to whole tiles
    z,  # laid out as y: multiply by the derivative of GELU there; or None, as sums
    y,
    sums,  # (S, B, tiles of all heads, T)
    length,
    width,  # features of a head
    heads,
    batches,
    branches,  # of g
    g_branch,
    g_batch,
    g_row,
    w_branch,
    w_head,
    w_row,  # from a row to the next one within a block
    w_block,  # from a block's first row to the next block's, divided by the rows between them
    y_branch,
    y_batch,
    y_row,
    JOINED: tl.constexpr,  # branches that one program sums
    WHOLE: tl.constexpr,  # width is a multiple of COLUMNS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write one tile of y, and the sums of the tile of g at the same place."""
    across = tl.cdiv(width, COLUMNS)
    down = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    column_tile = program % (heads * across)
    program //= heads * across
    row_tile = program % down
    program //= down
    batch = (program % batches).to(tl.int64)
    first = (program // batches).to(tl.int64)
    head = column_tile // across

    local = tl.arange(0, ROWS)
    deep = tl.arange(0, DEPTH)
    feature = (column_tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    column = head * width + feature
    top = row_tile * ROWS

    g += batch * g_batch + top.to(tl.int64) * g_row
    weight += head.to(tl.int64) * w_head + top.to(tl.int64) * w_block + top
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for joined in range(JOINED):
        branch = first + joined
        left_offsets = local[:, None] + deep[None, :] * w_row
        right_offsets = deep[:, None] * g_row + column[None, :]
        left = weight + branch * w_branch + ROWS * w_block
        right = g + branch * g_branch + ROWS * g_row
        for start in range(top + ROWS, length, DEPTH):
            a = tl.load(left + left_offsets)
            present = start + deep[:, None] < length
            if not WHOLE:
                present = present & (feature[None, :] < width)
            b = tl.load(right + right_offsets, mask=present, other=0.0)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH * w_block
            right += DEPTH * g_row
        left = weight + branch * w_branch
        right = g + branch * g_branch
        for start in tl.static_range(0, ROWS, DEPTH):
            a = tl.load(left + left_offsets)
            a = tl.where(local[:, None] <= start + deep[None, :], a, 0.0)
            present = top + start + deep[:, None] < length
            if not WHOLE:
                present = present & (feature[None, :] < width)
            b = tl.load(right + right_offsets, mask=present, other=0.0)
            if sums is not None:
                place = (branch * batches + batch) * heads * across + column_tile
                row = top + start + deep
                wanted = (row < length) & (branch < branches)
                tl.store(sums + place * length + row, tl.sum(b.to(tl.float32), 1), mask=wanted)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH * w_block
            right += DEPTH * g_row

    inside = (top + local[:, None] < length) & (feature[None, :] < width)
    corner = first * y_branch + batch * y_batch + top.to(tl.int64) * y_row
    here = local[:, None] * y_row + column[None, :]
    if z is not None:
        total *= gelu_slope(tl.load(z + corner + here, mask=inside, other=0.0).to(tl.float32))
    tl.store(y + corner + here, total.to(y.dtype.element_ty), mask=inside)
