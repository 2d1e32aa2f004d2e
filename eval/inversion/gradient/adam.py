"""Adam at the model's own scale: start and rate in units of its embedding."""

import math
from collections.abc import Iterator

from torch import Tensor

from eval.inversion.batch import Batch
from eval.inversion.gradient.loop import Rows, gradient, moments, normal, with_gradient
from eval.inversion.solvers import Chance
from eval.inversion.spaces import decode as decoded
from eval.inversion.spaces import embeddings, width

SPREAD = 2.0  # of a softmax's start: a flatter mixture is short, and lost where norms divide by it


@gradient(steps=300, random=True, title="Adam at the model's scale", short="Adam", word="Adam")
def adam(
    rows: Rows,
    start: Tensor | None = None,
    free: Tensor | None = None,
    *,
    rate: float = 0.2,
    variable: str = "embedding",
    decode: str = "euclid",
) -> Iterator[None]:
    """Gradient descent by Adam, its start and step size scaled to the model's own embedding.

    Kingma & Ba, 1412.6980, with the rate falling along a half cosine. The start is N(mean, std) of
    the embedding's entries, the rate in units of their standard deviation; for a vector over the
    vocabulary both are such that the embeddings move alike.

    Args:
        rows: of any slices.
        start: embeddings to start from instead, `(B, T, D)`; for the variable "embedding" alone.
        free: which positions are descended on, `(B, T)`; the others stay as they start.
        rate: the first rate, in standard deviations of the embedding.
        variable: what is descended on.
        decode: how tokens are read from the embeddings.
    """
    assert start is None or variable == "embedding"

    def read(x: Tensor) -> Tensor:
        return embeddings(variable, x, rows.vocabulary)

    x = scaled_start(rows.batch, rows.chance, variable) if start is None else start
    moving = x.new_ones(len(x), 1, 1) if free is None else free[..., None]
    first, state = scaled_rate(rows.batch, rate, variable), moments(x)
    rows.scores = lambda: decoded(rows.circuit, read(x), decode)
    for i in range(rows.steps):
        _, slope = with_gradient(lambda x: rows.losses(read(x)), x)
        falling = (1 + math.cos(math.pi * i / rows.steps)) / 2 * first
        x = x - falling * state.direction(slope) * moving
        rows.spent += 3 * rows.length
        yield
        x, moving, state = rows.kept(x, moving, state)


def scaled_start(batch: Batch, chance: Chance, variable: str = "embedding") -> Tensor:
    """Noise whose embeddings are spread like the model's own, `(B, T, D)` or `(B, T, V)`."""
    circuit, W = batch.circuit, batch.circuit.vocabulary
    noise = normal(chance, (batch.length, width(variable, W)), W)
    if variable == "embedding":
        return noise * circuit.scale + W.mean(dim=0)
    if variable == "vocabulary":
        return noise / len(W) ** 0.5 + 1 / len(W)
    return SPREAD * noise


def scaled_rate(batch: Batch, rate: float, variable: str = "embedding") -> Tensor:
    """A rate in standard deviations of the embedding, in the variable's own unit."""
    V, D = batch.circuit.vocabulary.shape
    unit = {"embedding": batch.circuit.scale, "vocabulary": D**0.5 / V, "softmax": 1.0}
    return batch.circuit.vocabulary.new_tensor(rate) * unit[variable]
