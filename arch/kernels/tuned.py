"""Measured tiles, written by `python scripts/tune_kernels.py`; empty until a GPU has been measured.

(kernel, architecture, dtype, T, D/H): (rows, columns, depth, warps, stages, programs)
"""

TUNED: dict[tuple[str, str, str, int, int], tuple[int, int, int, int, int, int]] = {}
