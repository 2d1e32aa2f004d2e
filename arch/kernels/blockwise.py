"""The triangular products in plain PyTorch: any device, any floating dtype.

Blocks of rows end at the diagonal, so nearly half of tril(W) @ X is never computed, and no masked
copy of W is made. Half precision accumulates inside each matrix product and rounds between them.
The shapes are those of `arch.kernels.layout`.
"""

from collections.abc import Iterator
from itertools import product as pairs

import torch
from torch import Tensor
from torch.nn import functional

from arch.kernels import layout
from arch.kernels.toeplitz import diagonal_sums, strip

# Measured on one x86 core in float32: 64 rows beat 128 by up to 10 % for T <= 512 and tie above.
BLOCK = 64


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
    """Return y_r = act(tril(W_r) x_r + b_r), or their sum plus residual, and what act was given.

    Args:
        x: (S, B, T, D).
        weight: (R, H, T, T) or (R, H, T).
        bias: (R, H, T), or (1, H, T) where the branches are joined without an activation.
        residual: (B, T, D), only with join.
        join: sum over the branches: y is (1, B, T, D) instead of (R, B, T, D).
        gelu: act is the exact GELU instead of the identity.
        keep: return z (R, B, T, D), the argument of act, instead of an empty tensor.
    """
    branches, heads = weight.shape[:2]
    y = layout.output(x, 1 if join else branches, residual)
    z = layout.output(x, branches) if keep else layout.nothing(x)
    x = layout.rows(x)
    for r, h in pairs(range(branches), range(heads)):
        features = _group(h, heads, x)
        summed = join and r > 0
        in_place = not gelu and not summed and y.dtype == x.dtype
        for rows, triangle in _row_blocks(weight[r, h], x.dtype):
            here = (..., rows, features)
            target = y[0 if join else r][here]
            block = target if in_place else x.new_empty(target.shape)
            _multiply(triangle, x[r % len(x), :, : rows.stop, features], out=block)
            if bias is not None and r < len(bias):
                block += bias[r, h, rows, None]
            if keep:
                z[r][here] = block
            if gelu:
                block = functional.gelu(block)
            if not in_place:
                target.copy_(target + block if summed else block)
            if residual is not None and r == 0:
                target += residual[here]
    return y, z


def transposed(
    g: Tensor, weight: Tensor, z: Tensor | None, *, like: Tensor, join: bool, sums: bool
) -> tuple[Tensor, Tensor]:
    """Return tril(W_r)^T g_r, or their sum, and the sums of g that are a bias's gradient.

    Args:
        g: (S, B, T, D).
        weight: (R, H, T, T) or (R, H, T).
        z: (R, B, T, D): multiply by the derivative of GELU there.
        like: a tensor in whose order the result is laid out.
        join: sum over the branches: the result is (1, B, T, D) instead of (R, B, T, D).
        sums: also return g summed over batch and features, (S, H, T), instead of an empty tensor.
    """
    branches, heads = weight.shape[:2]
    y = layout.output(like, 1 if join else branches)
    g = layout.rows(g)
    for r, h in pairs(range(branches), range(heads)):
        features = _group(h, heads, g)
        for rows, triangle in _column_blocks(weight[r, h], g.dtype):
            here = (..., rows, features)
            target = y[0 if join else r][here]
            summed = join and r > 0
            block = g.new_empty(target.shape) if summed else target
            _multiply(triangle.T, g[r % len(g), :, rows.start :, features], out=block)
            if summed:
                target += block
            if z is not None:
                target.copy_(torch.ops.aten.gelu_backward(target, z[r][here]))
    return y, position_sums(g, weight) if sums else layout.nothing(g)


def outer(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of weight, tril(sum_b g_r x_r^T), in weight's shape and dtype.

    Args:
        g: (S, B, T, D), the gradient at the product's output.
        x: (S, B, T, D), the product's input.
        weight: (R, H, T, T) or (R, H, T); only its shape and dtype are read.
    """
    branches, heads, length = weight.shape[:3]
    gradient = layout.weight_gradient(weight).zero_()
    for r, h in pairs(range(branches), range(heads)):
        left, right = (t[r % len(t), ..., _group(h, heads, t)] for t in (g, x))
        if x.dtype.itemsize < 4:
            # One product over batch and features together rounds once instead of for each sequence.
            left, right = (t.transpose(0, 1).flatten(1)[None] for t in (left, right))
        zero = left.new_zeros(1, 1)
        for rows in _blocks(length):
            block = torch.addbmm(zero, left[:, rows], right[:, : rows.stop].mT, beta=0)
            if weight.dim() == 4:
                gradient[r, h, rows, : rows.stop] = block.tril_(rows.start)
            else:
                gradient[r, h, : rows.stop] += diagonal_sums(block)[-rows.stop :]
    return gradient


def position_sums(g: Tensor, weight: Tensor) -> Tensor:
    """Return g summed over batch and the features of each head, (S, H, T), at least float32."""
    groups = g.unflatten(-1, (weight.shape[1], -1))
    return groups.sum((1, 4), dtype=layout.accumulator(g.dtype)).transpose(1, 2).contiguous()


def _row_blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and these rows of tril(W), or of its taps' matrix, to the diagonal."""
    length = len(weight)
    sliding = strip(weight.to(dtype), BLOCK, length, BLOCK) if weight.dim() == 1 else None
    for rows in _blocks(length):
        if sliding is None:
            yield rows, weight[rows, : rows.stop].to(dtype).tril(rows.start)
        else:
            first = length - rows.start
            yield rows, sliding[: rows.stop - rows.start, first : first + rows.stop]


def _column_blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of columns and these columns of tril(W) from the diagonal down."""
    length = len(weight)
    corner = strip(weight.to(dtype), length, 0, BLOCK) if weight.dim() == 1 else None
    for columns in _blocks(length):
        if corner is None:
            yield columns, weight[columns.start :, columns].to(dtype).tril()
        else:
            yield columns, corner[: length - columns.start, : columns.stop - columns.start]


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def _group(head: int, heads: int, x: Tensor) -> slice:
    width = x.shape[-1] // heads
    return slice(head * width, (head + 1) * width)


def _multiply(matrix: Tensor, batch: Tensor, *, out: Tensor) -> None:
    torch.baddbmm(out, matrix.expand(len(batch), -1, -1), batch, beta=0, out=out)
