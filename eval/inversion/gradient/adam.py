"""Solvers that descend by Adam: on vectors, through the nearest tokens, on softmaxes."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from eval.inversion.gradient.loop import (
    Rows,
    gradient,
    moments,
    normal,
    random_tokens,
    with_gradient,
)
from eval.inversion.problem import Batch
from eval.inversion.solvers import Chance
from eval.inversion.spaces import (
    OBJECTIVES,
    by_distance,
    by_normed_direction,
    huber,
    model_input,
    width,
)

RATE, PEZ_RATE = 0.2, 0.1  # the first one, in standard deviations of the embedding
SODA_RATE = 0.065  # of Adam on z
KEEP = 0.9  # the share of z that is kept at every step of SODA
TEMPERATURE = 0.05  # of SODA's softmax
NOISE = 0.1  # standard deviation of SODA's start, which is zeros in the paper
FORGET = 50  # steps after which SODA's moments start anew
SPREAD = 2.0  # of a softmax's start: a flatter mixture is short, and lost where norms divide by it


@gradient(steps=300, random=True, title="Adam at the model's scale")
def adam(
    rows: Rows,
    start: Tensor | None = None,
    free: Tensor | None = None,
    normed: bool = False,
    *,
    objective: str = "relative",
    variable: str = "embedding",
) -> Iterator[None]:
    """Gradient descent by Adam, its start and step size scaled to the model's own embedding.

    Kingma & Ba, 1412.6980, with the rate falling along a half cosine. The start is N(mean, std) of
    the embedding's entries, the rate in units of their standard deviation; for a vector over the
    vocabulary both are such that the embeddings move alike.

    Args:
        rows: of any slices.
        start: embeddings to start from instead, `(B, T, D)`; for the variable "embedding" alone.
        free: which positions are descended on, `(B, T)`; the others stay as they start.
        normed: whether tokens are read by their direction behind the first norm, not by distance.
        objective: that is lowered.
        variable: that is descended on.
    """
    rows.objective = OBJECTIVES[objective]
    assert start is None or variable == "embedding"

    def read(x: Tensor) -> Tensor:
        return model_input(variable, x, rows.vocabulary)

    x = scaled_start(rows.batch, rows.chance, variable) if start is None else start
    moving = x.new_ones(len(x), 1, 1) if free is None else free[..., None]
    first, state = scaled_rate(rows.batch, RATE, variable), moments(x)
    decode = by_normed_direction if normed else by_distance
    rows.scores = lambda: decode(rows.circuit, read(x))
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


@gradient(steps=1000, random=True, title="PEZ")
def pez(rows: Rows) -> Iterator[None]:
    """Vectors moved by the gradient at the tokens nearest to them.

    Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by Adam. The best guess
    on the way is the answer.

    Args:
        rows: of any slices, each from random tokens.
    """
    W = rows.vocabulary
    x = best = W[random_tokens(rows.chance, (rows.length,), W)]
    least = torch.full_like(x[:, 0, 0], torch.inf)
    step, state = scaled_rate(rows.batch, PEZ_RATE), moments(x)
    rows.scores = lambda: by_distance(rows.circuit, best)
    while True:
        tokens = by_distance(rows.circuit, x).argmax(dim=-1)
        losses, slope = with_gradient(rows.losses, W[tokens])
        better = losses < least
        least = torch.where(better, losses, least)
        best = torch.where(better[:, None, None], x, best)
        x = x - step * state.direction(slope)
        rows.spent += 3 * rows.length
        yield
        x, best, least, state = rows.kept(x, best, least, state)


@gradient(steps=1000, random=True, title="SODA")
def soda(rows: Rows) -> Iterator[None]:
    """A softmax over the vocabulary at each position that decays, by an Adam that forgets.

    Sparse one-hot discrete Adam (Skapars et al., 2507.01693). The model reads
    softmax(z / temperature) W. Adam does not correct for its moments' start; z decays at every
    step, and the moments start anew now and then.

    Args:
        rows: of any slices.
    """
    W, rows.objective = rows.vocabulary, huber

    def read(z: Tensor) -> Tensor:
        return model_input("softmax", z / TEMPERATURE, W)

    z = NOISE * normal(rows.chance, (rows.length, len(W)), W)
    step, settings = W.new_tensor(SODA_RATE), {"second": 0.995, "corrected": False}
    state = moments(z, **settings)
    rows.scores = lambda: z
    for i in range(rows.steps):
        if i and i % FORGET == 0:
            state = moments(z, **settings)
        _, slope = with_gradient(lambda z: rows.losses(read(z)), z)
        z = KEEP * (z - step * state.direction(slope))
        rows.spent += 3 * rows.length
        yield
        z, state = rows.kept(z, state)
