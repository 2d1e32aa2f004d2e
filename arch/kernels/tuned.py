"""Measured tiles, written by `python -m scripts.tune_kernels`.

(kernel, architecture, dtype, T, D/H): (rows, columns, depth, warps, stages, programs)
"""

TUNED: dict[tuple[str, str, str, int, int], tuple[int, int, int, int, int, int]] = {}
