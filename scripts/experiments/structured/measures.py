"""Measures of outputs and of mixers that E12 needs and `eval` has not."""

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arch.mixers.structured import Structured

POINTS = 65_536
"""Of the unit circle, on which a winding number is counted."""
RANKS = 3, 64
"""Of eigenvalues, from the largest, on which a spectrum's slope is fitted."""


def spectrum_slope(outputs: Tensor) -> float:
    """alpha-ReQ: minus the slope of log eigenvalue on log rank of `(N, D)` outputs' covariance."""
    first, last = RANKS
    eigenvalues = torch.linalg.svdvals(outputs.double()).square()[first - 1 : last]
    ranks = np.arange(first, first + len(eigenvalues))
    slope, _ = np.polyfit(np.log(ranks), eigenvalues.clamp(min=1e-300).log().numpy(), 1)
    return -float(slope)


def winding_number(weights: Tensor) -> int:
    """How many zeros the sum of `(L,)` weights[k] z^k has inside the unit circle.

    It is how often the sum goes round zero while z goes round the circle once.
    """
    padded = np.zeros(POINTS)
    padded[: len(weights)] = weights.double().numpy()
    values = np.fft.ifft(padded)
    turns = np.angle(np.roll(values, -1) / values).sum() / (2 * math.pi)
    return round(turns)


@torch.no_grad()
def toeplitz_figures(mixer: Structured) -> dict[str, Any]:
    """w[0], extreme singular values and winding number of a Toeplitz mixer with one head."""
    ((triangle,),) = copy.deepcopy(mixer).double().maps(mixer.values.shape[-1])  # pyright: ignore
    weights, values = triangle[:, 0], torch.linalg.svdvals(triangle)
    return {
        "w0": float(weights[0]),
        "least": float(values[-1]),
        "largest": float(values[0]),
        "winding": winding_number(weights),
    }


@torch.no_grad()
def read_neighbours(mixer: Structured, outputs: Tensor) -> tuple[Tensor, float]:
    """The inputs `(B, T, D)` of a row, column or mixed mixer, each from two neighbouring outputs.

    The inverse of its triangle has a diagonal and the one below it; only these are used.

    Returns:
        The inputs, and the largest entry of the inverses elsewhere, relative to the largest of its
        row.
    """
    mixer = copy.deepcopy(mixer).double()
    T, heads = outputs.shape[1], mixer.heads
    y = _undo(mixer.o_proj, outputs.double()).unflatten(-1, (heads, -1))
    if mixer.bias is not None:
        y = y - mixer.bias[:, :T].T[..., None]
    (triangles,) = mixer.maps(T)
    eye = torch.eye(T, dtype=triangles.dtype).expand_as(triangles)
    inverse = torch.linalg.solve_triangular(triangles, eye, upper=False)
    two = inverse.tril().triu(-1)
    outside = (inverse - two).abs().amax(-1) / inverse.abs().amax(-1)
    x = torch.einsum("hts,bshf->bthf", two, y).flatten(-2)
    return _undo(mixer.in_proj, x), float(outside.max())


def _undo(projection: nn.Module, outputs: Tensor) -> Tensor:
    """The inputs of a square linear layer, or of none."""
    if not isinstance(projection, nn.Linear):
        return outputs
    return torch.linalg.solve(projection.weight, (outputs - projection.bias).mT).mT
