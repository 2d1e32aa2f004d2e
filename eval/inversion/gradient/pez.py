"""PEZ: continuous vectors, moved by the gradient at the tokens nearest to them."""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.decode import by_distance
from eval.inversion.gradient.moments import AdamSolver
from eval.inversion.gradient.solver import (
    Chance,
    PerRow,
    drive,
    per_row,
    random_tokens,
    with_gradient,
)
from eval.inversion.objective import objective as by_name


def pez(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 1000,
    rate: PerRow = 0.1,
    decay: float = 0.0,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by AdamW.

    The best guess on the way is the answer.

    Args:
        batch: any slices.
        chance: the source of each row's start, which is random tokens.
        steps: the most that a row takes.
        rate: in standard deviations of the embedding, of all rows or of each.
        decay: AdamW's decay of the weights.
        objective: by its name.
        check: rows that are solved leave after every so many steps.
    """
    return drive(_Pez(batch, chance, rate, decay, objective), steps, check)


class _Pez(AdamSolver):
    def __init__(
        self, batch: Batch, chance: Chance, rate: PerRow, decay: float, objective: str
    ) -> None:
        super().__init__(batch, chance)
        self.decay, self.objective = decay, by_name(objective)
        W = batch.circuit.vocabulary
        self.x = W[random_tokens(chance, (batch.length,), W)]
        self.rate = per_row(rate, self.x) * batch.circuit.scale
        self.best, self.least = self.x, torch.full_like(self.x[:, 0, 0], torch.inf)
        self.forget(self.x)

    def step(self, i: int) -> int:
        circuit = self.batch.circuit
        tokens = by_distance(circuit, self.x).argmax(dim=-1)
        losses, gradient = with_gradient(
            lambda x: self.batch.losses(x, self.objective), circuit.vocabulary[tokens]
        )
        better = losses < self.least
        self.least = torch.where(better, losses, self.least)
        self.best = torch.where(better[:, None, None], self.x, self.best)
        self.x = self.x * (1 - self.rate * self.decay) - self.rate * self.direction(gradient)
        return 3 * self.batch.length

    def scores(self) -> Tensor:
        return by_distance(self.batch.circuit, self.best)
