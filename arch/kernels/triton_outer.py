"""Triton kernels: the gradient of W, tril(sum over batch and features of g x^T).

The batch is split into a fixed number of parts, so that a small triangle still fills the device.
Each program sums one block of the lower triangle over one part; a second kernel adds the parts in
order. No atomics: the same bits on every run.
"""

import triton
import triton.language as tl

from arch.kernels.triton_product import multiply


@triton.jit
def lower_block(index, blocks):
    """Return (i, j), j <= i: the index-th of the blocks (blocks + 1) / 2 blocks of a triangle.

    Row p of the triangle and its row blocks - 1 - p make one line of blocks + 1 together, so that
    the triangle folds to a rectangle; an odd one folds from its second row.
    """
    even = 1 - blocks % 2
    line = index // (blocks + even)
    place = index % (blocks + even)
    upper = line + even
    i = tl.where(place < upper, upper - 1, blocks - 1 - line)
    j = tl.where(place < upper, place, place - upper)
    return i, j


@triton.jit(do_not_specialize=["length", "branches", "batches", "batches_per_part"])
def outer_kernel(
    g,
    x,
    parts,  # (splits, R, H, lower blocks, BLOCK, BLOCK), float32
    length,
    width,  # features of a head
    heads,
    branches,
    batches,
    batches_per_part,
    g_branch,
    g_batch,
    g_row,
    x_branch,
    x_batch,
    x_row,
    WHOLE: tl.constexpr,  # width is a multiple of DEPTH
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write one block of one part; programs that read the same part of g and x stand together."""
    blocks = tl.cdiv(length, BLOCK)
    lower = blocks * (blocks + 1) // 2
    program = tl.program_id(0)
    i, j = lower_block(program % lower, blocks)
    program //= lower
    place = program.to(tl.int64) * lower + i * (i + 1) // 2 + j
    head = program % heads
    program //= heads
    branch = (program % branches).to(tl.int64)
    part = program // branches

    local = tl.arange(0, BLOCK)
    deep = tl.arange(0, DEPTH)
    # Rows beyond the last one are read from it and dropped by the sum: no mask in the loop.
    row = tl.minimum(local, length - 1 - i * BLOCK)
    column = tl.minimum(local, length - 1 - j * BLOCK)
    left = g + branch * g_branch + (i * BLOCK).to(tl.int64) * g_row + head * width
    left += row[:, None] * g_row + deep[None, :]
    right = x + branch * x_branch + (j * BLOCK).to(tl.int64) * x_row + head * width
    right += column[:, None] * x_row + deep[None, :]
    steps = tl.cdiv(width, DEPTH)
    start = part * batches_per_part
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.minimum(batches_per_part, batches - start) * steps):
        batch = (start + step // steps).to(tl.int64)
        depth = (step % steps) * DEPTH
        here = left + (batch * g_batch + depth)
        there = right + (batch * x_batch + depth)
        if WHOLE:
            a = tl.load(here)
            b = tl.load(there)
        else:
            a = tl.load(here, mask=depth + deep[None, :] < width, other=0.0)
            b = tl.load(there, mask=depth + deep[None, :] < width, other=0.0)
        total = multiply(a, tl.trans(b), total, PRECISION, WIDEN)
    tl.store(parts + place * BLOCK * BLOCK + local[:, None] * BLOCK + local[None, :], total)


@triton.jit(do_not_specialize=["lower", "triangles", "splits"])
def add_parts_kernel(
    parts,
    gradient,  # (R, H, T, T)
    length,
    lower,
    triangles,  # R H
    splits,
    BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,  # of a block, that one program adds
    AT_ONCE: tl.constexpr,  # parts that it loads together
):
    """Write a stretch of one block of the gradient, zeros above the diagonal included."""
    blocks = tl.cdiv(length, BLOCK)
    program = tl.program_id(0)
    entry = (program % (BLOCK * BLOCK // ENTRIES)) * ENTRIES + tl.arange(0, ENTRIES)
    program //= BLOCK * BLOCK // ENTRIES
    j = program % blocks
    program //= blocks
    i = program % blocks
    triangle = (program // blocks).to(tl.int64)

    row = i * BLOCK + entry // BLOCK
    column = j * BLOCK + entry % BLOCK
    total = tl.zeros((ENTRIES,), tl.float32)
    if j <= i:
        place = triangle * lower + i * (i + 1) // 2 + j
        for start in range(0, splits, AT_ONCE):
            part = start + tl.arange(0, AT_ONCE)[:, None]
            source = parts + (part * triangles * lower + place) * (BLOCK * BLOCK) + entry[None, :]
            total += tl.sum(tl.load(source, mask=part < splits, other=0.0), 0)
        total = tl.where(column <= row, total, 0.0)
    target = gradient + triangle * length * length + row.to(tl.int64) * length + column
    inside = (row < length) & (column < length)
    tl.store(target, total.to(gradient.dtype.element_ty), mask=inside)
