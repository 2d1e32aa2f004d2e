"""Toeplitz matrices W[i, j] = taps[i - j] without the matrix.

A block of rows of such a matrix is a window that slides along one strip: rows `s` to `s + block` of
W are `strip[:, width - block - s :]`, and the zeros above the diagonal are part of the strip.
"""

from torch import Tensor
from torch.nn import functional


def strip(taps: Tensor, block: int) -> Tensor:
    """Return the strip (..., block, width) of taps (..., T), width = T rounded up to whole blocks.

    strip[a, c] = taps[width - block + a - c], and zero where that is no tap.
    """
    length = taps.shape[-1]
    width = -(-length // block) * block
    lags = functional.pad(taps, (0, width - length)).flip(-1)
    rows = functional.pad(lags, (0, block)).unfold(-1, width, 1)
    return rows[..., :block, :].flip(-2)


def window(strip: Tensor, rows: slice) -> Tensor:
    """Return rows of W up to the diagonal; rows starts at a multiple of the strip's height."""
    first = strip.shape[-1] - strip.shape[-2] - rows.start
    return strip[..., : rows.stop - rows.start, first : first + rows.stop]


def diagonal_sums(matrix: Tensor) -> Tensor:
    """Return the sums over the diagonals of matrix (..., n, m): (..., n + m - 1), last lag last."""
    n, m = matrix.shape[-2:]
    # A row one longer than the row it is read as begins one place further to the right.
    skewed = functional.pad(matrix.flip(-1), (0, n)).flatten(-2)[..., : n * (n + m - 1)]
    return skewed.unflatten(-1, (n, n + m - 1)).sum(-2)


def taps_gradient(gradient: Tensor) -> Tensor:
    """Return the gradient (..., T) of the taps from the gradient (..., T, T) of their matrix."""
    return diagonal_sums(gradient)[..., -gradient.shape[-1] :]
