"""Triton kernel: y_r = act(tril(W_r) x_r + b_r), or the sum of the branches plus a residual.

A program makes one tile of y, ROWS positions by COLUMNS features of one sequence. Its row of blocks
ends at the diagonal; the block on the diagonal is peeled off the loop, because a mask inside the
loop would take W through registers and leave nothing to overlap with the tensor cores. Programs
with the longest rows start first, and those of one sequence stand together to share x in L2.
"""

import triton
import triton.language as tl


@triton.jit
def gelu(z):
    """Return the exact GELU."""
    return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))


@triton.jit
def gelu_slope(z):
    """Return the derivative of the exact GELU."""
    density = 0.3989422804014327 * tl.exp(-0.5 * z * z)
    return 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * density


@triton.jit
def multiply(a, b, total, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """Return total + a b. WIDEN is for the interpreter, which cannot multiply bfloat16."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=["length", "batches"])
def product_kernel(
    x,
    weight,  # zero or anything finite beyond length, up to whole tiles
    bias,  # or None, as residual and z
    residual,
    y,
    z,  # what GELU is given, laid out as y
    length,
    width,  # features of a head
    heads,
    batches,
    x_branch,
    x_batch,
    x_row,
    w_branch,
    w_head,
    w_row,  # from a row to the next one within a block
    w_block,  # from a block's first row to the next block's, divided by the rows between them
    y_branch,
    y_batch,
    y_row,
    z_branch,
    residual_batch,
    residual_row,
    JOINED: tl.constexpr,  # branches that one program sums
    GELU: tl.constexpr,
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
    column_tile = program % (heads * across)
    program //= heads * across
    row_tile = down - 1 - program % down
    program //= down
    batch = (program % batches).to(tl.int64)
    first = (program // batches).to(tl.int64)
    head = column_tile // across

    local = tl.arange(0, ROWS)
    deep = tl.arange(0, DEPTH)
    feature = (column_tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    column = head * width + feature
    top = row_tile * ROWS

    x += batch * x_batch
    weight += head.to(tl.int64) * w_head + top.to(tl.int64) * w_block
    y += first * y_branch + batch * y_batch + top.to(tl.int64) * y_row
    result = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for joined in range(JOINED):
        # Bases move and offsets stay: a tile of moving pointers would cost two registers an entry.
        left = weight + (first + joined) * w_branch
        right = x + (first + joined) * x_branch
        left_offsets = local[:, None] * w_row + deep[None, :]
        right_offsets = deep[:, None] * x_row + column[None, :]
        for _ in range(0, top, DEPTH):
            a = tl.load(left + left_offsets)
            if WHOLE:
                b = tl.load(right + right_offsets)
            else:
                b = tl.load(right + right_offsets, mask=feature[None, :] < width, other=0.0)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH
            right += DEPTH * x_row
        for start in tl.static_range(0, ROWS, DEPTH):
            a = tl.load(left + left_offsets)
            a = tl.where(start + deep[None, :] <= local[:, None], a, 0.0)
            present = top + start + deep[:, None] < length
            if not WHOLE:
                present = present & (feature[None, :] < width)
            b = tl.load(right + right_offsets, mask=present, other=0.0)
            total = multiply(a, b, total, PRECISION, WIDEN)
            left += DEPTH
            right += DEPTH * x_row
        if GELU:
            row = top + local
            if bias is not None:
                offset = bias + ((first + joined) * heads + head) * length + row
                total += tl.load(offset, mask=row < length, other=0.0).to(tl.float32)[:, None]
            if z is not None:
                there = z + (first + joined) * z_branch + batch * y_batch + top.to(tl.int64) * y_row
                inside = (row[:, None] < length) & (feature[None, :] < width)
                there += local[:, None] * y_row + column[None, :]
                tl.store(there, total.to(z.dtype.element_ty), mask=inside)
            result += gelu(total)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)

    row = top + local
    inside = (row[:, None] < length) & (feature[None, :] < width)
    if not GELU:
        result = total
        if bias is not None:
            offset = bias + (first * heads + head) * length + row
            result += tl.load(offset, mask=row < length, other=0.0).to(tl.float32)[:, None]
    if residual is not None:
        residual += batch * residual_batch + top.to(tl.int64) * residual_row
        added = residual + (local[:, None] * residual_row + column[None, :])
        result += tl.load(added, mask=inside, other=0.0).to(tl.float32)
    here = y + (local[:, None] * y_row + column[None, :])
    tl.store(here, result.to(y.dtype.element_ty), mask=inside)
