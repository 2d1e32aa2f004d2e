"""Triton kernels: y = x + tril(W) norm(x) + b and its gradients, without norm(x) ever in memory.

norm(x) = (x - m) n scale + shift, with two numbers m and n for each position. Positions are what
W's columns stand for: n scales these columns, m costs a sum along each row, scale and shift wait
for the end. In the gradient of W, norm(x) is made again a tile at a time. The gradient of x needs
sums over all features of a position, so there one program holds all of them.

The order of tiles and the peeled diagonal are those of `triton_product` and its twins.
"""

import triton
import triton.language as tl

from arch.kernels.triton_outer import lower_block
from arch.kernels.triton_product import multiply


@triton.jit(do_not_specialize=["length"])
def statistics_kernel(
    x,
    mean,  # (B, T), or None for a mean of zero
    rate,  # (B, T)
    length,
    width,
    x_batch,
    x_row,
    epsilon,
    COLUMNS: tl.constexpr,
):
    """Write one position's mean and the reciprocal of its deviation."""
    place = tl.program_id(0)
    feature = tl.arange(0, COLUMNS)
    x += (place // length).to(tl.int64) * x_batch + (place % length).to(tl.int64) * x_row
    values = tl.load(x + feature, mask=feature < width, other=0.0).to(tl.float32)
    if mean is not None:
        centre = tl.sum(values, 0) / width
        tl.store(mean + place, centre)
        values = tl.where(feature < width, values - centre, 0.0)
    tl.store(rate + place, tl.rsqrt(tl.sum(values * values, 0) / width + epsilon))


@triton.jit
def scaled(a, rate, mean, place, present, lost, WIDEN: tl.constexpr):
    """Return a's columns times their positions' rates, and lost plus what m takes from each row."""
    wide = a.to(tl.float32) * tl.load(rate + place, mask=present, other=0.0)[None, :]
    product = wide if WIDEN else wide.to(a.dtype)
    if mean is not None:
        centre = tl.load(mean + place, mask=present, other=0.0)
        lost += tl.sum(product.to(tl.float32) * centre[None, :], 1)
    return product, lost


@triton.jit(do_not_specialize=["length", "batches"])
def normed_product_kernel(
    x,
    weight,  # zero beyond length, up to whole tiles
    bias,  # or None, as mean and shift
    scale,
    shift,
    mean,
    rate,
    y,
    length,
    width,
    batches,
    x_batch,
    x_row,
    w_row,
    y_batch,
    y_row,
    WHOLE: tl.constexpr,  # width is a multiple of COLUMNS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write one tile of y."""
    across = tl.cdiv(width, COLUMNS)
    down = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    top = (down - 1 - program // across % down) * ROWS
    batch = (program // across // down).to(tl.int64)

    local = tl.arange(0, ROWS)
    deep = tl.arange(0, DEPTH)
    feature = program % across * COLUMNS + tl.arange(0, COLUMNS)
    row = top + local
    x += batch * x_batch
    rate += batch * length
    if mean is not None:
        mean += batch * length
    left = weight + top.to(tl.int64) * w_row
    right = x
    left_offsets = local[:, None] * w_row + deep[None, :]
    right_offsets = deep[:, None] * x_row + feature[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    lost = tl.zeros((ROWS,), tl.float32)
    whole = tl.zeros((ROWS,), tl.float32)
    for start in range(0, top, DEPTH):
        a = tl.load(left + left_offsets)
        if WHOLE:
            b = tl.load(right + right_offsets)
        else:
            b = tl.load(right + right_offsets, mask=feature[None, :] < width, other=0.0)
        if shift is not None:
            whole += tl.sum(a.to(tl.float32), 1)
        place = start + deep
        a, lost = scaled(a, rate, mean, place, place < length, lost, WIDEN)
        total = multiply(a, b, total, PRECISION, WIDEN)
        left += DEPTH
        right += DEPTH * x_row
    for start in tl.static_range(0, ROWS, DEPTH):
        place = top + start + deep
        present = place[:, None] < length
        if not WHOLE:
            present = present & (feature[None, :] < width)
        a = tl.load(left + left_offsets)
        a = tl.where(start + deep[None, :] <= local[:, None], a, 0.0)
        b = tl.load(right + right_offsets, mask=present, other=0.0)
        if shift is not None:
            whole += tl.sum(a.to(tl.float32), 1)
        a, lost = scaled(a, rate, mean, place, place < length, lost, WIDEN)
        total = multiply(a, b, total, PRECISION, WIDEN)
        left += DEPTH
        right += DEPTH * x_row

    within = feature < width
    inside = (row[:, None] < length) & within[None, :]
    total = (total - lost[:, None]) * tl.load(scale + feature, mask=within).to(tl.float32)[None, :]
    if shift is not None:
        total += whole[:, None] * tl.load(shift + feature, mask=within).to(tl.float32)[None, :]
    if bias is not None:
        total += tl.load(bias + row, mask=row < length, other=0.0).to(tl.float32)[:, None]
    x += top.to(tl.int64) * x_row
    y += batch * y_batch + top.to(tl.int64) * y_row
    total += tl.load(x + local[:, None] * x_row + feature[None, :], mask=inside, other=0.0)
    here = y + local[:, None] * y_row + feature[None, :]
    tl.store(here, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["length", "batches"])
def normed_transposed_kernel(
    g,
    x,
    weight,  # zero beyond length, up to whole tiles
    scale,
    mean,  # or None
    rate,
    y,
    bias_sums,  # (B, T): g over the features
    scale_sums,  # (B, tiles, D): tril(W)^T g times (x - m) n, over a tile's positions
    shift_sums,  # (B, tiles, D): tril(W)^T g, over a tile's positions
    length,
    width,
    batches,
    g_batch,
    g_row,
    x_batch,
    x_row,
    w_row,
    y_batch,
    y_row,
    WHOLE: tl.constexpr,  # width is a multiple of COLUMNS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write ROWS positions of the gradient of x, and their part of the other gradients.

    A program goes through all features twice. First come the products, which it leaves in y while
    it gathers the two sums that the norm's gradient takes of a position; then y gets its values.
    """
    down = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    top = program % down * ROWS
    batch = (program // down).to(tl.int64)

    local = tl.arange(0, ROWS)
    deep = tl.arange(0, DEPTH)
    row = top + local
    g += batch * g_batch + top.to(tl.int64) * g_row
    x += batch * x_batch + top.to(tl.int64) * x_row
    y += batch * y_batch + top.to(tl.int64) * y_row
    weight += top.to(tl.int64) * w_row + top
    place = batch * length + row
    speed = tl.load(rate + place, mask=row < length, other=0.0)
    centre = tl.zeros((ROWS,), tl.float32)
    if mean is not None:
        centre = tl.load(mean + place, mask=row < length, other=0.0)
    left_offsets = local[:, None] + deep[None, :] * w_row
    sum_of_g = tl.zeros((ROWS,), tl.float32)
    along = tl.zeros((ROWS,), tl.float32)  # of the product with (x - m) n, over features
    plain = tl.zeros((ROWS,), tl.float32)  # of the product, over features
    for across in range(0, width, COLUMNS):
        feature = across + tl.arange(0, COLUMNS)
        within = feature < width
        inside = (row[:, None] < length) & within[None, :]
        right_offsets = deep[:, None] * g_row + feature[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        left = weight + ROWS * w_row
        right = g + ROWS * g_row
        for start in range(top + ROWS, length, DEPTH):
            a = tl.load(left + left_offsets)
            present = start + deep[:, None] < length
            if not WHOLE:
                present = present & within[None, :]
            b = tl.load(right + right_offsets, mask=present, other=0.0)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH * w_row
            right += DEPTH * g_row
        left = weight
        right = g
        for start in tl.static_range(0, ROWS, DEPTH):
            a = tl.load(left + left_offsets)
            a = tl.where(local[:, None] <= start + deep[None, :], a, 0.0)
            present = (top + start + deep[:, None] < length) & within[None, :]
            b = tl.load(right + right_offsets, mask=present, other=0.0)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH * w_row
            right += DEPTH * g_row
        normed = tl.load(x + local[:, None] * x_row + feature[None, :], mask=inside, other=0.0)
        normed = (normed.to(tl.float32) - centre[:, None]) * speed[:, None]
        tile = program.to(tl.int64) * width + feature
        tl.store(scale_sums + tile, tl.sum(total * normed, 0), mask=within)
        tl.store(shift_sums + tile, tl.sum(total, 0), mask=within)
        total *= tl.load(scale + feature, mask=within, other=0.0).to(tl.float32)[None, :]
        along += tl.sum(total * normed, 1)
        plain += tl.sum(total, 1)
        here = y + local[:, None] * y_row + feature[None, :]
        tl.store(here, total.to(y.dtype.element_ty), mask=inside)

    # Other threads of this program wrote some of what this one reads now.
    tl.debug_barrier()
    along /= width
    plain /= width
    for across in range(0, width, COLUMNS):
        feature = across + tl.arange(0, COLUMNS)
        inside = (row[:, None] < length) & (feature[None, :] < width)
        here = y + local[:, None] * y_row + feature[None, :]
        total = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        normed = tl.load(x + local[:, None] * x_row + feature[None, :], mask=inside, other=0.0)
        normed = (normed.to(tl.float32) - centre[:, None]) * speed[:, None]
        total -= normed * along[:, None]
        if mean is not None:
            total -= plain[:, None]
        slope = tl.load(g + local[:, None] * g_row + feature[None, :], mask=inside, other=0.0)
        slope = slope.to(tl.float32)
        sum_of_g += tl.sum(slope, 1)
        total = total * speed[:, None] + slope
        tl.store(here, total.to(y.dtype.element_ty), mask=inside)
    tl.store(bias_sums + place, sum_of_g, mask=row < length)


@triton.jit(do_not_specialize=["length", "batches", "batches_per_part"])
def normed_outer_kernel(
    g,
    x,
    scale,
    shift,  # or None, as mean
    mean,
    rate,
    parts,  # (splits, 1, lower blocks, BLOCK, BLOCK), float32
    length,
    width,
    batches,
    batches_per_part,
    g_batch,
    g_row,
    x_batch,
    x_row,
    WHOLE: tl.constexpr,  # width is a multiple of DEPTH
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write one block of one part of the gradient of W, see `triton_outer`.

    The block is made transposed: norm(x) passes through registers, where a product's first factor
    may stay, and g goes from shared memory into the tensor cores as it is.
    """
    blocks = tl.cdiv(length, BLOCK)
    lower = blocks * (blocks + 1) // 2
    program = tl.program_id(0)
    i, j = lower_block(program % lower, blocks)
    part = program // lower

    local = tl.arange(0, BLOCK)
    deep = tl.arange(0, DEPTH)
    row = tl.minimum(local, length - 1 - i * BLOCK)
    column = tl.minimum(local, length - 1 - j * BLOCK)
    right = g + (i * BLOCK).to(tl.int64) * g_row
    left = x + (j * BLOCK).to(tl.int64) * x_row
    right_offsets = deep[:, None] + row[None, :] * g_row
    left_offsets = column[:, None] * x_row + deep[None, :]
    steps = tl.cdiv(width, DEPTH)
    first = part * batches_per_part
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.minimum(batches_per_part, batches - first) * steps):
        batch = (first + step // steps).to(tl.int64)
        depth = (step % steps) * DEPTH
        feature = depth + deep
        within = feature < width
        if WHOLE:
            a = tl.load(left + (batch * x_batch + depth) + left_offsets)
            b = tl.load(right + (batch * g_batch + depth) + right_offsets)
        else:
            a = tl.load(left + (batch * x_batch + depth) + left_offsets, mask=within[None, :])
            b = tl.load(
                right + (batch * g_batch + depth) + right_offsets, mask=within[:, None], other=0.0
            )
        place = batch * length + j * BLOCK + column
        normed = a.to(tl.float32)
        if mean is not None:
            normed -= tl.load(mean + place)[:, None]
        normed *= tl.load(rate + place)[:, None]
        normed *= tl.load(scale + feature, mask=within, other=0.0).to(tl.float32)[None, :]
        if shift is not None:
            normed += tl.load(shift + feature, mask=within, other=0.0).to(tl.float32)[None, :]
        if not WHOLE:
            normed = tl.where(within[None, :], normed, 0.0)
        if not WIDEN:
            normed = normed.to(x.dtype.element_ty)
        total = multiply(normed, b, total, PRECISION, WIDEN)
    place = part.to(tl.int64) * lower + i * (i + 1) // 2 + j
    here = parts + place * BLOCK * BLOCK + local[:, None] + local[None, :] * BLOCK
    tl.store(here, total)
