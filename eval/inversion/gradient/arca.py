"""ARCA: position by position, a gradient averaged over random tokens says which tokens to try."""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.candidates import TokenSolver, gradient_at
from eval.inversion.gradient.solver import Chance, drive, random_tokens
from eval.inversion.objective import objective as by_name


def arca(
    batch: Batch,
    chance: Chance,
    *,
    sweeps: int = 6,
    samples: int = 16,
    top: int = 128,
    objective: str = "relative",
    start: Tensor | None = None,
) -> list[Answer]:
    """Autoregressive randomized coordinate ascent (Jones et al., 2303.04381).

    Args:
        batch: any slices.
        chance: the source of each row's start and samples.
        sweeps: times that every position is visited, left to right; solved rows leave after each.
        samples: random tokens at the position over which the gradient is averaged.
        top: tokens tried exactly at the position.
        objective: by its name.
        start: tokens to start from instead of random ones, `(B, T)`.
    """
    solver = _Arca(batch, chance, samples, top, objective, start)
    return drive(solver, sweeps * batch.length, check=batch.length)


class _Arca(TokenSolver):
    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        samples: int,
        top: int,
        objective: str,
        start: Tensor | None,
    ) -> None:
        super().__init__(batch, chance)
        self.samples, self.objective = samples, by_name(objective)
        W = batch.circuit.vocabulary
        self.top = min(top, len(W))
        self.begin(random_tokens(chance, (batch.length,), W) if start is None else start)

    def step(self, i: int) -> int:
        B, T = self.tokens.shape
        t, W = i % T, self.batch.circuit.vocabulary
        guesses = self.tokens[:, None].repeat(1, self.samples, 1)
        guesses[:, :, t] = random_tokens(self.chance, (self.samples,), W)
        rows = torch.arange(B, device=W.device).repeat_interleave(self.samples)
        gradient = gradient_at(self.batch.of(rows), guesses.flatten(0, 1), self.objective)
        average = gradient[:, t].view(B, self.samples, -1).mean(dim=1)
        self.estimates[:, t] = -average @ W.T
        guesses = self.tokens[:, None].repeat(1, self.top, 1)
        guesses[:, :, t] = self.estimates[:, t].topk(self.top, dim=-1).indices
        self.try_all(guesses)
        return (3 * self.samples + self.top) * T
