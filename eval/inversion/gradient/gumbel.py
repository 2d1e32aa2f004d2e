"""Gumbel-softmax: a distribution over tokens at each position, sampled with gradients through."""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.moments import AdamSolver
from eval.inversion.gradient.solver import Chance, PerRow, drive, normal, per_row, with_gradient
from eval.inversion.objective import objective as by_name


def gumbel(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 500,
    rate: PerRow = 0.3,
    samples: int = 4,
    warm: float = 4.0,
    cold: float = 0.5,
    spread: float = 0.1,
    hard: bool = False,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """Gumbel-softmax descent (Jang et al., 1611.01144; GBDA, Guo et al., 2104.13733).

    Args:
        batch: any slices.
        chance: the source of each row's start and samples.
        steps: the most that a row takes.
        rate: Adam's on the logits, of all rows or of each.
        samples: drawn in a step, their losses averaged.
        warm: temperature of the first step's samples.
        cold: of the last one's, by the same factor each step.
        spread: standard deviation of the logits' start.
        hard: whether a sample is one token, the gradient passed straight through.
        objective: by its name.
        check: rows that are solved leave after every so many steps.
    """
    solver = _Gumbel(batch, chance, rate, samples, spread, hard, objective)
    solver.temperatures = [warm * (cold / warm) ** (i / steps) for i in range(steps)]
    return drive(solver, steps, check)


class _Gumbel(AdamSolver):
    temperatures: list[float]

    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        rate: PerRow,
        samples: int,
        spread: float,
        hard: bool,
        objective: str,
    ) -> None:
        super().__init__(batch, chance)
        self.samples, self.hard, self.objective = samples, hard, by_name(objective)
        W = batch.circuit.vocabulary
        self.logits = spread * normal(chance, (batch.length, len(W)), W)
        self.rate = per_row(rate, self.logits)
        self.forget(self.logits)

    def step(self, i: int) -> int:
        B, T, V = self.logits.shape
        rows = torch.arange(B, device=self.logits.device).repeat_interleave(self.samples)
        many = self.batch.of(rows)
        noise = torch.stack([_gumbel(each, (self.samples, T, V)) for each in self.chance])
        noise = noise.flatten(0, 1).to(self.logits)

        def losses(logits: Tensor) -> Tensor:
            drawn = ((logits[rows] + noise) / self.temperatures[i]).softmax(dim=-1)
            if self.hard:
                token = torch.nn.functional.one_hot(drawn.argmax(dim=-1), V).to(drawn)
                drawn = token + drawn - drawn.detach()
            found = many.losses(drawn @ self.batch.circuit.vocabulary, self.objective)
            return found.view(B, self.samples).mean(dim=1)

        _, gradient = with_gradient(losses, self.logits)
        self.logits = self.logits - self.rate * self.direction(gradient)
        return 3 * self.samples * T

    def scores(self) -> Tensor:
        return self.logits


def _gumbel(chance: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return -torch.empty(shape).exponential_(generator=chance).log()
