"""What every launch of a Triton kernel needs: tiles, strides, and W as the kernels read it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from arch.kernels import table
from arch.kernels.toeplitz import strip
from arch.kernels.triton_outer import add_parts_kernel

# What one program of the last sum of a gradient of W holds: entries of a block, and parts of it.
_ENTRIES, _AT_ONCE = 256, 16


def parts_of(x: Tensor, length: int, triangles: int, tile: table.Tile) -> tuple[Tensor, int]:
    """Return the empty parts of a gradient, (splits, R H, lower blocks, ...), and their batches."""
    batch, blocks = x.shape[-3], ceil(length, tile.rows)
    lower = blocks * (blocks + 1) // 2
    together = ceil(batch, max(1, min(batch, tile.programs // (lower * triangles))))
    shape = (ceil(batch, together), triangles, lower, tile.rows, tile.rows)
    return x.new_empty(shape, dtype=torch.float32), together


def add_parts(parts: Tensor, gradient: Tensor) -> Tensor:
    """Fill gradient (R, H, T, T) with the sums of its blocks' parts, and zeros above them."""
    splits, triangles, lower, rows, _ = parts.shape
    run(
        add_parts_kernel,
        rows**2 // _ENTRIES * ceil(gradient.shape[-1], rows) ** 2 * triangles,
        *(parts, gradient, gradient.shape[-1], lower, triangles, splits),
        BLOCK=rows,
        ENTRIES=_ENTRIES,
        AT_ONCE=_AT_ONCE,
    )
    return gradient


def architecture(x: Tensor) -> str:
    """Return what x's device is called in the table, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)
    return f"sm_{major}{minor}"


def run(kernel: Any, programs: int, first: Tensor, *others: Any, **constants: Any) -> None:
    """Start a kernel on the first tensor's device."""
    with torch.cuda.device_of(first):
        kernel[(programs,)](first, *others, **constants)


class Matrix(NamedTuple):
    """A weight as the kernels read it: W[r + a, j] is at start + r block + a row + j."""

    start: Tensor
    strides: tuple[int, ...]  # branch, head, row, block


def matrix_of(weight: Tensor, dtype: torch.dtype, rows: int, height: int) -> Matrix:
    """Return weight in whole tiles of `rows`, read in blocks of `height`, copied only if it must.

    The copy is a cast and a margin of zeros. Without the margin the kernels would need a mask along
    W's rows, and with a row stride that 16 does not divide they would load two bytes at a time.
    """
    length = weight.shape[2]
    padded = ceil(length, rows) * rows
    if weight.dim() == 3:
        before = padded - height
        start = strip(weight.to(dtype), height, before, rows)[..., before:]
        return Matrix(start, (*start.stride()[:3], -1))
    aligned = weight.data_ptr() % 16 == 0 and all(s % 16 == 0 for s in weight.stride()[:3])
    if weight.dtype != dtype or padded != length or weight.stride(3) != 1 or not aligned:
        shape = (*weight.shape[:2], padded, padded)
        copy = (weight.new_empty if padded == length else weight.new_zeros)(shape, dtype=dtype)
        copy[..., :length, :length] = weight
        weight = copy
    branch, head, row, _ = weight.stride()
    return Matrix(weight, (branch, head, row, row))


def strides(x: Tensor) -> tuple[int, int, int]:
    """Return x's strides over branches, batch and positions; a single branch serves for all."""
    branch, batch, row, _ = x.stride()
    return branch if len(x) > 1 else 0, batch, row


def tile_of(kernel: str, x: Tensor, width: int) -> table.Tile:
    """Return the table's tile for x (..., T, D) and heads of `width` features."""
    return table.tile(kernel, architecture(x), x.dtype, x.shape[-2], width)


def constants(tile: table.Tile, dtype: torch.dtype) -> dict[str, Any]:
    """Return what all the kernels with a product in them are told at compile time."""
    exact = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return {
        "DEPTH": tile.depth,
        "PRECISION": "ieee" if exact else "tf32",
        "WIDEN": knobs.runtime.interpret and dtype == torch.bfloat16,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def ceil(length: int, step: int) -> int:
    """Return how many steps cover a length."""
    return -(-length // step)
