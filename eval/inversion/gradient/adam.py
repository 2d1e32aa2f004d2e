"""Adam at the model's own scale: start and rate in units of its embedding."""

import math

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.decode import decode as decoded
from eval.inversion.gradient.moments import AdamSolver
from eval.inversion.gradient.solver import Chance, PerRow, drive, normal, per_row, with_gradient
from eval.inversion.gradient.variable import embeddings, width
from eval.inversion.objective import objective as by_name

SPREAD = 2.0  # of a softmax's start: a flatter mixture is short, and lost where norms divide by it


def adam(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 300,
    rate: PerRow = 0.2,
    objective: str = "relative",
    variable: str = "embedding",
    decode: str = "euclid",
    check: int = 25,
    start: Tensor | None = None,
    free: Tensor | None = None,
) -> list[Answer]:
    """Adam (Kingma & Ba, 1412.6980) with the rate falling along a half cosine.

    The start is N(mean, std) of the embedding's entries, the rate in units of their standard
    deviation; for a vector over the vocabulary both are such that the embeddings move alike.

    Args:
        batch: any slices.
        chance: the source of each row's start.
        steps: the most that a row takes.
        rate: the first rate, of all rows or of each.
        objective: by its name.
        variable: one of `VARIABLES`.
        decode: how tokens are read from the embeddings, one of `DECODERS`.
        check: rows that are solved leave after every so many steps.
        start: embeddings to start from instead, `(B, T, D)`; for the variable "embedding" alone.
        free: which positions are descended on, `(B, T)`; the others stay as they start.
    """
    solver = _Adam(batch, chance, steps, rate, objective, variable, decode)
    if start is not None:
        assert variable == "embedding"
        solver.x = start.clone()
    if free is not None:
        solver.free = free[..., None]
    return drive(solver, steps, check)


def scaled_start(batch: Batch, chance: Chance, variable: str = "embedding") -> Tensor:
    """Noise whose embeddings are spread like the model's own, `(B, T, D)` or `(B, T, V)`."""
    circuit, W = batch.circuit, batch.circuit.vocabulary
    noise = normal(chance, (batch.length, width(variable, W)), W)
    if variable == "embedding":
        return noise * circuit.scale + W.mean(dim=0)
    if variable == "vocabulary":
        return noise / len(W) ** 0.5 + 1 / len(W)
    return SPREAD * noise


def scaled_rate(batch: Batch, rate: Tensor, variable: str) -> Tensor:
    """A rate in standard deviations of the embedding, in the variable's own unit."""
    V, D = batch.circuit.vocabulary.shape
    unit = {"embedding": batch.circuit.scale, "vocabulary": D**0.5 / V, "softmax": 1.0}
    return rate * unit[variable]


class _Adam(AdamSolver):
    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        steps: int,
        rate: PerRow,
        objective: str,
        variable: str,
        decode: str,
    ) -> None:
        super().__init__(batch, chance)
        self.steps, self.variable, self.decode = steps, variable, decode
        self.objective = by_name(objective)
        self.x = scaled_start(batch, chance, variable)
        self.rate = scaled_rate(batch, per_row(rate, self.x), variable)
        self.free: Tensor | None = None
        self.forget(self.x)

    def step(self, i: int) -> int:
        _, gradient = with_gradient(
            lambda x: self.batch.losses(self._read(x), self.objective), self.x
        )
        move = (1 + math.cos(math.pi * i / self.steps)) / 2 * self.rate * self.direction(gradient)
        self.x = self.x - (move if self.free is None else move * self.free)
        return 3 * self.batch.length

    @torch.no_grad()
    def scores(self) -> Tensor:
        return decoded(self.batch.circuit, self._read(self.x), self.decode)

    def _read(self, x: Tensor) -> Tensor:
        return embeddings(self.variable, x, self.batch.circuit.vocabulary)
