"""The published protocol: plain descent from N(0, 1) at a falling rate, for all rows at once."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.decode import by_pseudo_inverse
from eval.inversion.gradient.solver import (
    Chance,
    PerRow,
    Solver,
    drive,
    normal,
    per_row,
    with_gradient,
)
from eval.inversion.gradient.variable import embeddings, width
from eval.inversion.objective import objective as by_name
from eval.inversion.slices import Slice
from eval.results import finite_or_none

SHIFT = 0.05  # the criterion compares with an input shifted by this much noise


def descent(
    batch: Batch,
    chance: Chance,
    truth: Tensor,
    *,
    steps: int = 500,
    rate: PerRow = 0.02,
    objective: str = "l1",
    variable: str = "embedding",
    sequential: bool = False,
) -> list[Answer]:
    """The reference's protocol to the letter (Badger, 2409.01482, and its published code).

    Start N(0, 1); loss the L1 distance summed over the slice; plain gradient steps at a rate that
    falls linearly to a tenth; tokens by the embedding's pseudo-inverse, or by the largest entry of
    a vector over the vocabulary. Converged means nearer to the target than the outputs of the true
    embeddings shifted by 0.05 N(0, 1): recorded, not used. Every row takes every step.

    Args:
        batch: any slices.
        chance: the source of each row's start, and then of its shift.
        truth: the tokens, `(B, T)`, which only that criterion looks at.
        steps: N; 500 in the reference.
        rate: the first rate, of all rows or of each; 0.02 in the reference's mixer code.
        objective: by its name.
        variable: one of `VARIABLES`.
        sequential: token by token, left to right, each in N steps from its own output alone, the
            tokens before it as they were found; a hidden token stays at its start.
    """
    solver = _Descent(batch, chance, truth, steps, rate, objective, variable, sequential)
    total = steps * (batch.length if sequential else 1)
    answers = drive(solver, total, check=total)
    losses = solver.losses()
    passed = (losses < solver.bar).tolist()
    for answer, loss, met in zip(answers, losses.tolist(), passed, strict=True):
        answer.criterion, answer.steps = met, None
        answer.notes["loss"] = finite_or_none(loss)
        answer.diverged |= not math.isfinite(loss)
    return answers


class _Descent(Solver):
    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        truth: Tensor,
        steps: int,
        rate: PerRow,
        objective: str,
        variable: str,
        sequential: bool,
    ) -> None:
        super().__init__(batch, chance)
        self.steps, self.sequential = steps, sequential
        self.variable, self.objective = variable, by_name(objective)
        W = batch.circuit.vocabulary
        self.x = normal(chance, (batch.length, width(variable, W)), W)
        true = batch.circuit.embed(truth)
        with torch.no_grad():
            shifted = true + SHIFT * normal(chance, true.shape[1:], true)
            self.bar = batch.losses(shifted, self.objective)
        self.rate = per_row(rate, self.x)

    def step(self, i: int) -> int:
        turn, i = divmod(i, self.steps) if self.sequential else (None, i)
        falling = (self.rate * (self.steps - i) + self.rate / 10 * i) / self.steps
        if turn is None:
            self.x = self.x - falling * self._gradient(self.batch, self.x)
            return 3 * self.batch.length
        if i == 0:
            self.turn = _only(self.batch, turn)
        if self.turn is None:
            return 0
        rows, part = self.turn
        gradient = self._gradient(part, self.x[rows, : part.length])
        self.x[rows, turn] -= falling[rows, 0] * gradient[:, turn]
        return 3 * part.length

    def scores(self) -> Tensor:
        if self.variable == "embedding":
            return by_pseudo_inverse(self.batch.circuit, self.x)
        return self.x

    @torch.no_grad()
    def losses(self) -> Tensor:
        """How far each row has come, `(B,)`."""
        return self.batch.losses(self._read(self.x), self.objective)

    def _gradient(self, batch: Batch, x: Tensor) -> Tensor:
        return with_gradient(lambda x: batch.losses(self._read(x), self.objective), x)[1]

    def _read(self, x: Tensor) -> Tensor:
        return embeddings(self.variable, x, self.batch.circuit.vocabulary)


def _only(batch: Batch, t: int) -> tuple[Tensor, Batch] | None:
    """The rows that show position t, and they with nothing else shown; None if none does."""
    causal = all(problem.circuit.causal for problem in batch.problems)
    rows, problems, start = [], [], 0
    for problem in batch.problems:
        end = start + len(problem.target)
        shown = problem.slice.positions(problem.length)
        if t in shown:
            at = slice(shown.index(t), shown.index(t) + 1)
            rows.extend(range(start, end))
            problems.append(
                replace(
                    problem,
                    slice=Slice(t, t + 1, problem.slice.low, problem.slice.high),
                    length=t + 1 if causal else problem.length,
                    target=problem.target[:, at],
                    floor=problem.floor[:, at],
                    limit=problem.limit[:, at],
                    noise=problem.noise[:, at],
                )
            )
        start = end
    if not problems:
        return None
    return torch.tensor(rows, device=batch.circuit.vocabulary.device), Batch(tuple(problems))
