"""Triton kernels of the masked convolution's three products in half precision.

A program of `product_kernel` makes one tile of y: forward or dx, which reads W the other way. Its
row of W's blocks ends, or begins, at the diagonal. W comes masked, so that the loop needs no mask
along it, which would take W through registers and leave nothing to overlap with the tensor cores.
Programs with the most work start first, and those of one sequence are neighbours, which share x in
L2. `dw_kernel` sums one block of the lower triangle over a part of the batch, so that a small
triangle still fills the device; `add_parts_kernel` adds the parts in order. Sums are in float32. No
atomics: the same bits on every run.

`torch.compile` sees each launch (`wrap_triton`) and what is copied before it. Under
TRITON_INTERPRET=1 the same functions take CPU tensors.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton
from torch.nn import functional as F

ENTRIES, UNROLL = 256, 16
"""What one program of `add_parts_kernel` adds: entries of a block, and parts at a time."""
WAVES = 2
"""Programs for each multiprocessor, at least, where the shape has so many."""
H100 = ("sm_90", 132)  # the device that tensors of a CPU are taken to be on


@triton.jit(do_not_specialize=["length"])
def product_kernel(
    x_ptr,
    w_ptr,  # zero above the diagonal, and beyond length up to whole tiles
    bias_ptr,  # (H, T), if HAS_BIAS
    y_ptr,
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
    TRANSPOSED: tl.constexpr,  # tril(W)^T instead of tril(W)
    HAS_BIAS: tl.constexpr,
    EVEN_N: tl.constexpr,  # width is a multiple of BLOCK_N
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write one tile of y = tril(W) x + bias, or of tril(W)^T x."""
    num_m = tl.cdiv(length, BLOCK_M)
    num_n = tl.cdiv(width, BLOCK_N)
    program = tl.program_id(0)
    column_tile = program % (heads * num_n)
    program //= heads * num_n
    batch = (program // num_m).to(tl.int64)
    head = column_tile // num_n
    top = (program % num_m) * BLOCK_M
    first = top
    last = length
    if not TRANSPOSED:
        top = (num_m - 1) * BLOCK_M - top
        first = 0
        last = top + BLOCK_M

    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    feature = (column_tile % num_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = head * width + feature
    # Bases move and offsets stay: a tile of moving pointers would cost two registers an entry.
    a_ptr = w_ptr + head.to(tl.int64) * w_head + top.to(tl.int64) * w_out
    b_ptr = x_ptr + batch * x_batch
    if TRANSPOSED:
        a_ptr += top.to(tl.int64) * w_in
        b_ptr += top.to(tl.int64) * x_row
    a_offsets = m[:, None] * w_out + k[None, :] * w_in
    b_offsets = k[:, None] * x_row + column[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(first, last, BLOCK_K):
        a = tl.load(a_ptr + a_offsets)
        present = start + k[:, None] < length  # whole rows of x: loads stay 16 bytes long
        if not EVEN_N:
            present = present & (feature[None, :] < width)
        b = tl.load(b_ptr + b_offsets, mask=present, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptr += BLOCK_K * w_in
        b_ptr += BLOCK_K * x_row

    row = top + m
    if HAS_BIAS:
        bias = tl.load(bias_ptr + head * length + row, mask=row < length, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    inside = (row[:, None] < length) & (feature[None, :] < width)
    y_ptr += batch * y_batch + top.to(tl.int64) * y_row
    y_offsets = m[:, None] * y_row + column[None, :]
    tl.store(y_ptr + y_offsets, acc.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def lower_block(index, blocks):
    """Return (i, j), j <= i: the index-th of the blocks (blocks + 1) / 2 blocks of a triangle.

    Row p of the triangle and its row blocks - 1 - p make one line of blocks + 1 together, so that
    the triangle folds to a rectangle; an odd one folds from its second row.
    """
    even = 1 - blocks % 2
    line = index // (blocks + even)
    slot = index % (blocks + even)
    upper = line + even
    i = tl.where(slot < upper, upper - 1, blocks - 1 - line)
    j = tl.where(slot < upper, slot, slot - upper)
    return i, j


@triton.jit(do_not_specialize=["length", "batches", "batches_per_split"])
def dw_kernel(
    g_ptr,
    x_ptr,
    parts_ptr,  # (splits, H, lower blocks, BLOCK, BLOCK), float32
    length,
    width,  # features of a head
    heads,
    batches,
    batches_per_split,
    g_batch,
    g_row,
    x_batch,
    x_row,
    STEPS: tl.constexpr,  # along the width
    EVEN_K: tl.constexpr,  # width is a multiple of BLOCK_K
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write one block of one split; neighbours read the same part of g and x."""
    blocks = tl.cdiv(length, BLOCK)
    lower = blocks * (blocks + 1) // 2
    program = tl.program_id(0)
    i, j = lower_block(program % lower, blocks)
    program //= lower
    slot = program.to(tl.int64) * lower + i * (i + 1) // 2 + j
    head = program % heads
    split = program // heads

    m = tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK_K)
    # Rows beyond the last one are read from it and dropped by the sum: no mask in the loop.
    row = tl.minimum(m, length - 1 - i * BLOCK)
    column = tl.minimum(m, length - 1 - j * BLOCK)
    a_ptr = g_ptr + (i * BLOCK).to(tl.int64) * g_row + head * width
    a_offsets = row[:, None] * g_row + k[None, :]
    b_ptr = x_ptr + (j * BLOCK).to(tl.int64) * x_row + head * width
    b_offsets = column[:, None] * x_row + k[None, :]
    start = split * batches_per_split
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.minimum(batches_per_split, batches - start) * STEPS):
        batch = (start + step // STEPS).to(tl.int64)
        depth = (step % STEPS) * BLOCK_K
        a_tile = a_ptr + (batch * g_batch + depth) + a_offsets
        b_tile = b_ptr + (batch * x_batch + depth) + b_offsets
        if EVEN_K:
            a = tl.load(a_tile)
            b = tl.load(b_tile)
        else:
            a = tl.load(a_tile, mask=depth + k[None, :] < width, other=0.0)
            b = tl.load(b_tile, mask=depth + k[None, :] < width, other=0.0)
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(parts_ptr + slot * BLOCK * BLOCK + m[:, None] * BLOCK + m[None, :], acc)


@triton.jit(do_not_specialize=["lower", "heads", "splits"])
def add_parts_kernel(
    parts_ptr,
    gradient_ptr,  # (H, T, T), zeros
    length,
    lower,
    heads,
    splits,
    BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,  # of a block, that one program adds
    UNROLL: tl.constexpr,  # splits that it loads at a time
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
    acc = tl.zeros((ENTRIES,), tl.float32)
    slot = head * lower + i * (i + 1) // 2 + j
    for start in range(0, splits, UNROLL):
        split = start + tl.arange(0, UNROLL)[:, None]
        source = parts_ptr + (split * heads * lower + slot) * (BLOCK * BLOCK) + entry[None, :]
        acc += tl.sum(tl.load(source, mask=split < splits, other=0.0), 0)
    target = gradient_ptr + head * length * length + row.to(tl.int64) * length + column
    inside = (row < length) & (column <= row)
    tl.store(target, acc.to(gradient_ptr.dtype.element_ty), mask=inside)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns tril(W) x + bias: x `(B, T, D)`, weight `(H, T, T)`, bias `(H, T)`."""
    return _product("forward", x, weight, bias)


def dx(g: Tensor, weight: Tensor) -> Tensor:
    """Returns tril(W)^T g: g `(B, T, D)`, weight `(H, T, T)`."""
    return _product("dx", g, weight, None)


def dw(g: Tensor, x: Tensor, gradient: Tensor) -> Tensor:
    """Fills gradient `(H, T, T)`, which is zero, with tril(sum_b g x^T), and returns it."""
    heads, length = gradient.shape[:2]
    g, x = _rows(g), _rows(x)
    batch, width = len(x), x.shape[2] // heads
    tile = choose_tile("dw", *device_of(x), batch, length, width, heads)
    blocks = _ceil(length, tile.rows)
    lower = blocks * (blocks + 1) // 2
    together = _ceil(batch, tile.splits)
    splits = _ceil(batch, together)
    parts = x.new_empty(splits, heads, lower, tile.rows, tile.rows, dtype=torch.float32)
    run(
        dw_kernel,
        splits * heads * lower,
        *(g, x, parts),
        *(length, width, heads, batch, together),
        *(*g.stride()[:2], *x.stride()[:2]),
        STEPS=_ceil(width, tile.depth),
        EVEN_K=width % tile.depth == 0,
        BLOCK=tile.rows,
        BLOCK_K=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    run(
        add_parts_kernel,
        tile.rows**2 // ENTRIES * lower * heads,
        *(parts, gradient, length, lower, heads, splits),
        BLOCK=tile.rows,
        ENTRIES=ENTRIES,
        UNROLL=UNROLL,
    )
    return gradient


class Tile(NamedTuple):
    """What one program computes at a time: `rows` positions by `columns` features.

    For "dw", columns are positions too, as many as rows, and the batch is split into `splits`.
    `depth` is the length of one step of the sum, and divides rows; `stages` are the steps in
    flight.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int = 3
    splits: int = 1


def choose_tile(
    kernel: str, architecture: str, processors: int, batch: int, length: int, width: int, heads: int
) -> Tile:
    """Returns the tile for a launch of "forward", "dx" or "dw", by a fixed rule.

    So every process computes the same bits. The rule follows from the roofline of an H100-class
    device, from how many programs fill the device `WAVES` times, and from what compiles without
    spilling registers; it was not timed.

    Args:
        kernel: of the three.
        architecture: such as "sm_90".
        processors: multiprocessors of the device.
        batch: sequences.
        length: positions.
        width: features of a head.
        heads: number of triangles.
    """
    # The least a tensor core takes is 16.
    M, N = (max(16, 1 << (n - 1).bit_length()) for n in (length, width))
    # By how much memory a multiprocessor shares among its threads: 160 KB or more, or 100 KB.
    large = architecture in ("sm_80", "sm_90", "sm_100", "sm_103")
    wide = large or architecture in ("sm_86", "sm_89", "sm_120")
    depth = 64 if large else 32
    wanted = WAVES * processors
    if kernel == "dw":
        side = min(M, 128 if wide and M > 256 else 64)
        blocks = _ceil(length, side)
        splits = min(batch, _ceil(wanted, heads * blocks * (blocks + 1) // 2))
        return Tile(side, side, min(N, depth if wide else 64), _warps(side, side), splits=splits)
    rows, columns = (min(M, 128), 128) if wide else (min(M, 64), 64)
    if architecture == "sm_90" and M >= 1024:
        columns = 256
    columns = min(columns, N)

    def programs() -> int:
        return heads * batch * _ceil(width, columns) * _ceil(length, rows)

    while columns > 32 and programs() < wanted:
        columns //= 2
    if rows > 64 and programs() < wanted:
        rows = 64
    # The depth, by which sums are ordered, does not follow from the batch.
    return Tile(rows, columns, min(depth, M), _warps(rows, columns))


def _warps(rows: int, columns: int) -> int:
    """One for each 1,024 entries of a tile, up to eight."""
    return max(1, min(8, rows * columns // 1024))


def device_of(x: Tensor) -> tuple[str, int]:
    """Returns what the rule of tiles asks of a device: "sm_90", and how many multiprocessors."""
    if not x.is_cuda:
        return H100
    about = torch.cuda.get_device_properties(x.device)
    return f"sm_{about.major}{about.minor}", about.multi_processor_count


def run(kernel: Any, programs: int, first: Tensor, *others: Any, **constants: Any) -> None:
    """Starts a kernel on the first tensor's device."""
    launcher = wrap_triton(kernel) if isinstance(kernel, triton.JITFunction) else kernel
    if type(first) is not Tensor:  # traced by the compiler, which chooses the device itself
        launcher[(programs,)](first, *others, **constants)
        return
    with torch.cuda.device_of(first):
        launcher[(programs,)](first, *others, **constants)


def _product(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    heads, length = weight.shape[:2]
    width = x.shape[2] // heads
    tile = choose_tile(name, *device_of(x), len(x), length, width, heads)
    y = x.new_empty(x.shape)
    x, weight = _rows(x), _padded(weight, x.dtype, tile.rows)
    head, row, column = weight.stride()
    run(
        product_kernel,
        heads * _ceil(width, tile.columns) * _ceil(length, tile.rows) * len(x),
        *(x, weight, weight if bias is None else bias.contiguous(), y),
        *(length, width, heads),
        *x.stride()[:2],
        *((head, column, row) if name == "dx" else (head, row, column)),
        *y.stride()[:2],
        TRANSPOSED=name == "dx",
        HAS_BIAS=bias is not None,
        EVEN_N=width % tile.columns == 0,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.columns,
        BLOCK_K=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def _padded(weight: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
    """Returns tril(W) in whole tiles of `rows`, cast, with a margin of zeros.

    What W holds above the diagonal, NaN included, is left behind here. Without the margin the
    kernels would need a mask along W's rows, and with a row stride that 16 does not divide they
    would load two bytes at a time.
    """
    margin = -weight.shape[1] % rows
    lower = weight.to(dtype).tril()
    return F.pad(lower, (0, margin, 0, margin)) if margin else lower


def _rows(x: Tensor) -> Tensor:
    """Returns x with the features of a position side by side, where 16 bytes load at a time.

    They do where x begins on 16 bytes and 16 divides its strides, counted in entries, which is what
    Triton knows of an integer. Else x is copied, as features that a `kernel` mixer shifts: the
    kernels would load two bytes at a time. A width that 16 does not divide gains nothing and stays.
    """
    if x.stride(2) != 1:
        return x.contiguous()
    shifted = x.storage_offset() * x.element_size() % 16 != 0
    odd = shifted or any(stride % 16 for stride in x.stride()[:2])
    whole = x.shape[2] % 16 == 0
    return x.clone(memory_format=torch.contiguous_format) if odd and whole else x


def _ceil(length: int, step: int) -> int:
    return -(-length // step)
