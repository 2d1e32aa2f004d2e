"""Toeplitz matrices W[i, j] = taps[i - j], and their gradients, without the matrix.

A block of rows of such a matrix is a window that slides along one strip, and the zeros above the
diagonal are part of the strip.
"""

from torch import Tensor
from torch.nn import functional


def strip(taps: Tensor, height: int, before: int, after: int) -> Tensor:
    """Return S[a, c] = taps[a + before - c], zero where that is no tap.

    Rows r to r + height of the matrix are then S[:, before - r :].

    Args:
        taps: (..., T).
        height: the rows of S.
        before: the last row that a window may start at; before + height >= T.
        after: the columns that a window may reach beyond its first row's diagonal.

    Returns:
        A contiguous tensor (..., height, before + after).
    """
    lags = functional.pad(taps, (after - 1, before + height - taps.shape[-1])).flip(-1)
    return lags.unfold(-1, before + after, 1).flip(-2).contiguous()


def diagonal_sums(matrix: Tensor) -> Tensor:
    """Return the sums over the diagonals of matrix (..., n, m): (..., n + m - 1), last lag last."""
    n, m = matrix.shape[-2:]
    # Read as rows that are one shorter, each row begins one place further to the right.
    skewed = functional.pad(matrix.flip(-1), (0, n)).flatten(-2)[..., : n * (n + m - 1)]
    return skewed.unflatten(-1, (n, n + m - 1)).sum(-2)
