"""Triton kernels of the masked convolution's three products, and what launches them.

A program of `product_kernel` makes one tile of y: forward or dx, which reads W the other way. Its
row of W's blocks ends, or begins, at the diagonal; the block on the diagonal is peeled off the
loop, because a mask inside the loop would take W through registers and leave nothing to overlap
with the tensor cores. Programs with the most work start first, and those of one sequence stand
together to share x in L2. `dw_kernel` sums one block of the lower triangle over a part of the
batch, so that a small triangle still fills the device; a second kernel adds the parts in order. No
atomics: the same bits on every run.

Under TRITON_INTERPRET=1 the same functions take CPU tensors.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# What one program of the last sum of a gradient of W holds: entries of a block, and parts of it.
ENTRIES, AT_ONCE = 256, 16


@triton.jit(do_not_specialize=["length"])
def product_kernel(
    x,
    weight,  # zero beyond length, up to whole tiles
    bias,  # (H, T), or None
    y,
    length,
    width,  # features of a head
    heads,
    x_batch,
    x_row,
    w_head,
    w_out,  # from a position of y to the next
    w_in,  # from a position of x to the next
    y_batch,
    y_row,
    UPPER: tl.constexpr,  # tril(W)^T instead of tril(W)
    WHOLE: tl.constexpr,  # width is a multiple of COLUMNS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write one tile of y = tril(W) x + bias, or of tril(W)^T x."""
    across = tl.cdiv(width, COLUMNS)
    down = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    column_tile = program % (heads * across)
    program //= heads * across
    batch = (program // down).to(tl.int64)
    head = column_tile // across
    top = (program % down) * ROWS
    first = top + ROWS
    last = length
    if not UPPER:
        top = (down - 1) * ROWS - top
        first = 0
        last = top

    local = tl.arange(0, ROWS)
    deep = tl.arange(0, DEPTH)
    feature = (column_tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    column = head * width + feature
    weight += head.to(tl.int64) * w_head + top.to(tl.int64) * w_out
    x += batch * x_batch
    # Bases move and offsets stay: a tile of moving pointers would cost two registers an entry.
    left = weight + first * w_in
    right = x + first * x_row
    left_offsets = local[:, None] * w_out + deep[None, :] * w_in
    right_offsets = deep[:, None] * x_row + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, last, DEPTH):
        a = tl.load(left + left_offsets)
        if UPPER:
            present = start + deep[:, None] < length
            if not WHOLE:
                present = present & (feature[None, :] < width)
            b = tl.load(right + right_offsets, mask=present, other=0.0)
        elif WHOLE:
            b = tl.load(right + right_offsets)
        else:
            b = tl.load(right + right_offsets, mask=feature[None, :] < width, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += DEPTH * w_in
        right += DEPTH * x_row
    left = weight + top * w_in
    right = x + top.to(tl.int64) * x_row
    for start in tl.static_range(0, ROWS, DEPTH):
        a = tl.load(left + left_offsets)
        if UPPER:
            a = tl.where(local[:, None] <= start + deep[None, :], a, 0.0)
        else:
            a = tl.where(start + deep[None, :] <= local[:, None], a, 0.0)
        present = top + start + deep[:, None] < length
        if not WHOLE:
            present = present & (feature[None, :] < width)
        b = tl.load(right + right_offsets, mask=present, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += DEPTH * w_in
        right += DEPTH * x_row

    row = top + local
    if bias is not None:
        offset = tl.load(bias + head * length + row, mask=row < length, other=0.0)
        total += offset.to(tl.float32)[:, None]
    inside = (row[:, None] < length) & (feature[None, :] < width)
    y += batch * y_batch + top.to(tl.int64) * y_row
    here = y + (local[:, None] * y_row + column[None, :])
    tl.store(here, total.to(y.dtype.element_ty), mask=inside)


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


@triton.jit(do_not_specialize=["length", "batches", "batches_per_part"])
def dw_kernel(
    g,
    x,
    parts,  # (splits, H, lower blocks, BLOCK, BLOCK), float32
    length,
    width,  # features of a head
    heads,
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
):
    """Write one block of one part; programs that read the same part of g and x stand together."""
    blocks = tl.cdiv(length, BLOCK)
    lower = blocks * (blocks + 1) // 2
    program = tl.program_id(0)
    i, j = lower_block(program % lower, blocks)
    program //= lower
    place = program.to(tl.int64) * lower + i * (i + 1) // 2 + j
    head = program % heads
    part = program // heads

    local = tl.arange(0, BLOCK)
    deep = tl.arange(0, DEPTH)
    # Rows beyond the last one are read from it and dropped by the sum: no mask in the loop.
    row = tl.minimum(local, length - 1 - i * BLOCK)
    column = tl.minimum(local, length - 1 - j * BLOCK)
    left = g + (i * BLOCK).to(tl.int64) * g_row + head * width
    left += row[:, None] * g_row + deep[None, :]
    right = x + (j * BLOCK).to(tl.int64) * x_row + head * width
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
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    tl.store(parts + place * BLOCK * BLOCK + local[:, None] * BLOCK + local[None, :], total)


@triton.jit(do_not_specialize=["lower", "heads", "splits"])
def add_parts_kernel(
    parts,
    gradient,  # (H, T, T), zeros
    length,
    lower,
    heads,
    splits,
    BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,  # of a block, that one program adds
    AT_ONCE: tl.constexpr,  # parts that it loads together
):
    """Write a stretch of one lower block of the gradient."""
    blocks = tl.cdiv(length, BLOCK)
    program = tl.program_id(0)
    entry = (program % (BLOCK * BLOCK // ENTRIES)) * ENTRIES + tl.arange(0, ENTRIES)
    program //= BLOCK * BLOCK // ENTRIES
    i, j = lower_block(program % lower, blocks)
    head = (program // lower).to(tl.int64)

    row = i * BLOCK + entry // BLOCK
    column = j * BLOCK + entry % BLOCK
    total = tl.zeros((ENTRIES,), tl.float32)
    place = head * lower + i * (i + 1) // 2 + j
    for start in range(0, splits, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)[:, None]
        source = parts + (part * heads * lower + place) * (BLOCK * BLOCK) + entry[None, :]
        total += tl.sum(tl.load(source, mask=part < splits, other=0.0), 0)
    target = gradient + head * length * length + row.to(tl.int64) * length + column
    inside = (row < length) & (column <= row)
    tl.store(target, total.to(gradient.dtype.element_ty), mask=inside)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(W) x + bias: x `(B, T, D)`, weight `(H, T, T)`, bias `(H, T)`."""
    return _product("forward", x, weight, None if bias is None else bias.contiguous())


def dx(g: Tensor, weight: Tensor) -> Tensor:
    """Returns tril(W)^T g: g `(B, T, D)`, weight `(H, T, T)`."""
    return _product("dx", g, weight, None)


def dw(g: Tensor, x: Tensor, gradient: Tensor) -> Tensor:
    """Fills gradient `(H, T, T)`, which is zero, with tril(sum_b g x^T), and returns it."""
    heads, length = gradient.shape[:2]
    g, x = _rows(g), _rows(x)
    batch, width = len(x), x.shape[2] // heads
    tile = tile_of("dw", x, heads)
    blocks = _ceil(length, tile.rows)
    lower = blocks * (blocks + 1) // 2
    together = _ceil(batch, max(1, min(batch, tile.programs // (lower * heads))))
    splits = _ceil(batch, together)
    parts = x.new_empty(splits, heads, lower, tile.rows, tile.rows, dtype=torch.float32)
    run(
        dw_kernel,
        splits * heads * lower,
        *(g, x, parts),
        *(length, width, heads, batch, together),
        *(*g.stride()[:2], *x.stride()[:2]),
        WHOLE=width % tile.depth == 0,
        BLOCK=tile.rows,
        **_constants(tile, x.dtype),
    )
    run(
        add_parts_kernel,
        tile.rows**2 // ENTRIES * lower * heads,
        *(parts, gradient, length, lower, heads, splits),
        BLOCK=tile.rows,
        ENTRIES=ENTRIES,
        AT_ONCE=AT_ONCE,
    )
    return gradient


class Tile(NamedTuple):
    """What one program computes at a time: `rows` positions by `columns` features.

    For "dw", columns are positions too, as many as rows, and `programs` is how many to aim for in
    splitting the batch. `depth` is the length of one step of the sum, and divides rows; `stages`
    are the steps in flight.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int = 0


def tile(kernel: str, architecture: str, dtype: torch.dtype, length: int, width: int) -> Tile:
    """Returns the tile for a launch of "forward", "dx" or "dw", by a fixed rule.

    So every process computes the same bits. The rule follows from the roofline of an H100-class
    device and from what compiles without spilling registers, and was not timed. `architecture` is
    such as "sm_90", `dtype` that of the products, `width` the features of a head.
    """
    # The least a tensor core takes is 16.
    length, width = (max(16, 1 << (n - 1).bit_length()) for n in (length, width))
    # Whether a multiprocessor shares at least 160 KB of memory among its threads.
    large = architecture in ("sm_80", "sm_90", "sm_100", "sm_103")
    single = dtype == torch.float32
    if kernel == "dw":
        side = min(length, 128 if large and not single and length > 256 else 64)
        programs = 108 if architecture == "sm_80" else 132
        depth = min(width, 32 if single else 64)
        return Tile(side, side, depth, max(4, side // 16), 3, programs)
    rows, columns, depth, warps = 64, 64, 32, 8 if single else 4
    if large and not single:
        rows, columns, depth, warps = 128, 128, 64, 8
        if architecture == "sm_90" and length >= 1024:
            columns = 256
    rows = min(rows, length)
    return Tile(rows, min(columns, width), min(depth, rows), warps, 3)


def tile_of(kernel: str, x: Tensor, heads: int) -> Tile:
    """Returns the tile for x `(B, T, D)`."""
    return tile(kernel, capability(x), x.dtype, x.shape[1], x.shape[2] // heads)


def capability(x: Tensor) -> str:
    """Returns what x's device is called in the rule of tiles, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)
    return f"sm_{major}{minor}"


def run(kernel: Any, programs: int, first: Tensor, *others: Any, **constants: Any) -> None:
    """Starts a kernel on the first tensor's device."""
    with torch.cuda.device_of(first):
        kernel[(programs,)](first, *others, **constants)


def _product(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    heads, length = weight.shape[:2]
    width = x.shape[2] // heads
    tile = tile_of(name, x, heads)
    y = x.new_empty(x.shape)
    x, weight = _rows(x), _padded(weight, x.dtype, tile.rows)
    head, row, column = weight.stride()
    run(
        product_kernel,
        heads * _ceil(width, tile.columns) * _ceil(length, tile.rows) * len(x),
        *(x, weight, bias, y),
        *(length, width, heads),
        *x.stride()[:2],
        *((head, column, row) if name == "dx" else (head, row, column)),
        *y.stride()[:2],
        UPPER=name == "dx",
        WHOLE=width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **_constants(tile, x.dtype),
    )
    return y


def _padded(weight: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
    """Returns weight in whole tiles of `rows`, cast and with a margin of zeros where it must be.

    Without the margin the kernels would need a mask along W's rows, and with a row stride that 16
    does not divide they would load two bytes at a time.
    """
    heads, length = weight.shape[:2]
    padded = _ceil(length, rows) * rows
    aligned = weight.data_ptr() % 16 == 0 and all(s % 16 == 0 for s in weight.stride()[:2])
    if weight.dtype == dtype and padded == length and weight.stride(2) == 1 and aligned:
        return weight
    copy = (weight.new_empty if padded == length else weight.new_zeros)(
        heads, padded, padded, dtype=dtype
    )
    copy[:, :length, :length] = weight
    return copy


def _rows(x: Tensor) -> Tensor:
    """Returns x with the features of a position side by side, copied only where they are not."""
    return x if x.stride(2) == 1 else x.contiguous()


def _constants(tile: Tile, dtype: torch.dtype) -> dict[str, Any]:
    exact = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return {
        "DEPTH": tile.depth,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _ceil(length: int, step: int) -> int:
    return -(-length // step)
