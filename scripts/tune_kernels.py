"""Time the tiles of the Triton kernels and write the best of them down.

    python -m scripts.tune_kernels                  # on the GPU the table is for
    python -m scripts.tune_kernels --kernels product_gelu parallel transposed_gelu

Every tile that fits is compiled first, by many processes into Triton's cache. Then, for each kernel
and shape, it is checked against the rule's tile and timed once in a CUDA graph; the best few and
the rule's take turns. Entries of other devices, dtypes and shapes are kept.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from itertools import product as grid
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from arch.kernels import table
from arch.kernels.table import Tile
from eval.commands.options import positive
from scripts.kernel_timing import DTYPES, Timer, graph_timer, in_turns, misfits, reason
from scripts.pages import write_page

FINALISTS = 4
Work = Callable[[int], list[Tensor]]  # launches one kernel on the operands of that number
HEADER = '''"""Measured tiles, written by `python -m scripts.tune_kernels`.

(kernel, architecture, dtype, T, D/H): (rows, columns, depth, warps, stages, programs)
"""

TUNED: dict[tuple[str, str, str, int, int], tuple[int, int, int, int, int, int]] = {'''


def main() -> int:
    """Tune what the options name; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernels", nargs="+", choices=table.KERNELS, default=("product", "transposed", "outer")
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--lengths", type=positive, nargs="+", default=(512, 1024, 256, 2048, 128))
    parser.add_argument("--widths", type=positive, nargs="+", default=(512, 256, 1024))
    parser.add_argument("--tokens", type=positive, default=65536, help="B T")
    parser.add_argument("--seconds", type=float, default=3600, help="begin nothing after so long")
    parser.add_argument("--out", type=Path, default=Path("arch/kernels/tuned.py"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: there is no CUDA device here; run this where there is one", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        _tune_all(options)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _tune_all(options: argparse.Namespace) -> None:
    start = time.monotonic()
    compile_all(options.kernels, DTYPES[options.dtype])
    print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    for width, length, kernel in grid(options.widths, options.lengths, options.kernels):
        if time.monotonic() - start > options.seconds:
            print(f"not tuned, for want of time: {kernel} T={length} D={width} and later ones")
            break
        tune(kernel, length, width, max(1, options.tokens // length), DTYPES[options.dtype])
        write_page(options.out, written())


def compile_all(kernels: list[str], dtype: torch.dtype) -> None:
    """Compile the candidates of any shape: the code depends on the tile, not on the sizes."""
    jobs = [(kernel, tile, dtype) for kernel in kernels for tile in candidates(kernel, dtype)]
    processes = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(compile_one, *zip(*jobs, strict=True), chunksize=4))


def compile_one(kernel: str, tile: Tile, dtype: torch.dtype) -> None:
    """Launch a kernel with a tile once; a tile that does not fit is found again when timed."""
    from arch.kernels import operands

    x, g = torch.randn(2, 1, 1, 16, 512, 512, device="cuda", dtype=dtype)
    table.TUNED[table.key(kernel, operands.architecture(x), dtype, 512, 512)] = astuple(tile)
    with suppress(*misfits()):
        _work(kernel, x, g)(0)


def tune(kernel: str, length: int, width: int, batch: int, dtype: torch.dtype) -> None:
    """Put the best tile for one kernel and shape into the table, and print it."""
    from arch.kernels import operands

    sets, about = 3, f"{kernel:15s} T={length:5d} D={width:5d}"
    x, g = torch.randn(2, sets, 1, batch, length, width, device="cuda", dtype=dtype)
    work = _work(kernel, x, g)
    name = table.key(kernel, operands.architecture(x), dtype, length, width)
    table.TUNED.pop(name, None)
    first = table.rule(*name)
    try:
        expected = work(0)
    except misfits() as error:
        print(f"{about} left out, the rule's tile does not run here: {reason(error)}", flush=True)
        return
    found: dict[Tile, Timer] = {}
    fitting = [
        tile
        for tile in candidates(kernel, dtype)
        if tile.rows <= max(length, 64) and tile.columns <= max(width, 64)
    ]
    for tile in dict.fromkeys([first, *fitting]):
        table.TUNED[name] = astuple(tile)
        timer = _timer(work, sets, expected)
        if timer:
            found[tile] = timer
    if not found:
        del table.TUNED[name]
        print(f"{about} left out, no tile could be timed", flush=True)
        return
    best = sorted(found, key=lambda tile: found[tile]())[:FINALISTS]
    readings = in_turns({tile: found[tile] for tile in {first, *best} & set(found)}, 15)
    seconds = {tile: median(times) for tile, times in readings.items()}
    winner = min(seconds, key=lambda tile: seconds[tile])
    table.TUNED[name] = astuple(winner)
    gain = seconds[first] / seconds[winner] if first in seconds else float("nan")
    print(
        f"{about} {astuple(winner)}"
        f" {seconds[winner] * 1e6:8.1f} us, {gain:.2f} of the rule's speed, of {len(found)} tiles",
        flush=True,
    )


def candidates(kernel: str, dtype: torch.dtype) -> Iterator[Tile]:
    """Yield the tiles whose accumulators fit in registers and whose stages fit in shared memory."""
    size = dtype.itemsize
    steps = ((32, 3), (32, 4), (32, 5), (64, 3), (64, 4)) if size == 2 else ((16, 4), (32, 3))
    outer = kernel.endswith("outer")
    programs = (132, 264, 528) if outer else (0,)
    for rows, columns, step, warps, many in grid(
        (64, 128), (64, 128, 256), steps, (4, 8), programs
    ):
        depth, stages = step
        if outer and rows != columns:
            continue
        accumulators = rows * columns // (32 * warps) * (2 if kernel == "parallel" else 1)
        shared = (rows + columns) * depth * size * stages
        if 16 <= accumulators <= 128 and shared <= 220 * 1024:
            yield Tile(rows, columns, depth, warps, stages, many)


def written() -> str:
    """Return the table as a module."""
    lines = [f"    {name}: {tile}," for name, tile in sorted(table.TUNED.items())]
    return "\n".join([HEADER, *lines, "}"]).replace("'", '"') + "\n"


def _work(kernel: str, x: Tensor, g: Tensor) -> Work:
    """Return what launches this kernel and no other."""
    from arch.kernels import launch, launch_normed

    branches = 2 if kernel.endswith("gelu") or kernel == "parallel" else 1
    length = x.shape[-2]
    w = torch.randn(branches, 1, length, length, device="cuda", dtype=x.dtype) / length**0.5
    b = torch.randn(branches, 1, length, device="cuda")
    z = torch.randn(branches, *x.shape[2:], device="cuda", dtype=x.dtype)
    scale, m = torch.randn(x.shape[-1], device="cuda"), torch.rand(x.shape[2:4], device="cuda")

    def call(number: int) -> list[Tensor]:
        source, slope = x[number], g[number]
        if kernel == "normed_product":
            made = launch_normed.forward(source[0], w[0, 0], b[0, 0], scale, scale, True, 1e-5)
            return list(made)
        if kernel.startswith("normed"):
            need = kernel == "normed_outer"
            norm = (source[0], w[0, 0], scale, scale, m, m)
            return list(launch_normed.backward(slope[0], *norm, need))
        if kernel == "outer":
            return [launch.outer(slope, source, w)]
        if kernel == "transposed":
            return list(launch.transposed(slope, w, None, like=source, join=True, sums=True))
        if kernel == "transposed_gelu":
            return list(launch.transposed(slope, w, z, like=source, join=False, sums=True))
        join, gelu = kernel != "product_gelu", kernel != "product"
        residual = slope[0] if join else None
        return list(launch.product(source, w, b, residual, join=join, gelu=gelu, keep=gelu))

    return call


def _timer(work: Work, sets: int, expected: list[Tensor]) -> Timer | None:
    """Return a timer of work as the table stands, or None where it does not fit the device."""
    try:
        for ours, theirs in zip(work(0), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 * _scale(theirs))
        return graph_timer(work, sets)
    except AssertionError as error:
        print("  WRONG:", str(error).splitlines()[0], list(table.TUNED.items())[-1], flush=True)
    except misfits() as error:
        print("  left out:", reason(error), flush=True)
    return None


def _scale(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


if __name__ == "__main__":
    sys.exit(main())
