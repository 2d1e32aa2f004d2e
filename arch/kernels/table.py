"""Tile sizes of the Triton kernels, by kernel, architecture, dtype, length and features.

A static rule, so that the same shapes give the same bits in every process: nothing is tuned while
a program runs. It follows from the roofline of an H100-class device and from what compiles without
spilling registers, and was not timed.
"""

from dataclasses import dataclass, replace

import torch

KERNELS = (
    "product",
    "product_gelu",
    "parallel",  # branches through GELU and summed: two accumulators
    "transposed",
    "transposed_gelu",
    "outer",
)

# Compute capabilities whose multiprocessors share at least 160 KB of memory among their threads.
_LARGE = ("sm_80", "sm_90", "sm_100", "sm_103")


@dataclass(frozen=True)
class Tile:
    """What one program computes at a time.

    Attributes:
        rows: positions.
        columns: features; for "outer", positions too, as many as rows.
        depth: the length of one step of the sum; divides rows.
        warps: of the program.
        stages: steps of the sum in flight.
        programs: for "outer", how many to aim for in splitting the batch.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int = 0


def tile(kernel: str, architecture: str, dtype: torch.dtype, length: int, width: int) -> Tile:
    """Return the tile for a launch; T and the features of a head count as the next power of two.

    Args:
        kernel: one of KERNELS.
        architecture: such as "sm_90".
        dtype: of the products.
        length: T.
        width: the features of a head.
    """
    length, width = _power_of_two(length), _power_of_two(width)
    # The least a tensor core takes is 16.
    length, width = max(length, 16), max(width, 16)
    large, single = architecture in _LARGE, dtype == torch.float32
    if kernel.endswith("outer"):
        side = min(length, 128 if large and not single and length > 256 else 64)
        depth = min(width, 32 if single else 64)
        programs = 108 if architecture == "sm_80" else 132
        return Tile(side, side, depth, max(4, side // 16), 3, programs)
    if single:
        chosen = Tile(64, 64, 32, 8, 3)
    elif not large:
        chosen = Tile(64, 64, 32, 4, 3)
    elif kernel in ("product", "transposed"):
        wide = architecture == "sm_90" and length >= 1024
        chosen = Tile(128, 256 if wide else 128, 64, 8, 3)
    else:
        chosen = Tile(64, 128, 64, 8, 3)
    rows = min(chosen.rows, length)
    return replace(
        chosen, rows=rows, columns=min(chosen.columns, width), depth=min(chosen.depth, rows)
    )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
