"""PIA: vectors drawn towards tokens, then tokens picked left to right among those nearest."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch, Objective
from eval.inversion.decode import by_distance
from eval.inversion.gradient.adam import scaled_rate, scaled_start
from eval.inversion.gradient.candidates import losses_of
from eval.inversion.gradient.moments import AdamSolver
from eval.inversion.gradient.solver import Chance, PerRow, drive, per_row, with_gradient
from eval.inversion.objective import objective as by_name


def pia(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 1000,
    rate: PerRow = 0.3,
    pull: float = 0.1,
    nearest: int = 10,
    proposals: int = 10,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """Prompt inversion attack (Qu et al., 2503.09022).

    First Adam on the outputs' distance and on each vector's distance from its nearest token, kept
    within the embedding's range. Then, left to right, the token of least loss among the nearest to
    the vector and those that the language model itself expects next.

    Args:
        batch: any slices.
        chance: the source of each row's start.
        steps: the most that a row takes in the first stage.
        rate: in standard deviations of the embedding, of all rows or of each.
        pull: weight of the distance from the nearest token, in units of an embedding's length.
        nearest: tokens near the vector tried at a position.
        proposals: tokens that the model expects tried at a position.
        objective: by its name.
        check: rows that are solved leave after every so many steps.
    """
    solver = _Pia(batch.keeping_scores(), chance, rate, pull, objective)
    answers = drive(solver, steps, check)
    open_rows = [row for row, answer in enumerate(answers) if answer.certificate is None]
    if open_rows:
        started = time.perf_counter()
        device = batch.circuit.vocabulary.device
        part = batch.of(torch.tensor(open_rows, device=device))
        scores = torch.stack([answers[row].scores for row in open_rows])
        picked = _pick(part, scores, _Lists(nearest, proposals), by_name(objective))
        share = (time.perf_counter() - started) / len(open_rows)
        solved = part.solved(picked).tolist()
        for i, (row, tokens, done) in enumerate(zip(open_rows, picked, solved, strict=True)):
            answer = answers[row]
            answer.scores = _first(scores[i], tokens)
            answer.tokens, answer.certificate = tokens, "residual" if done else None
            answer.steps = steps if done else None
            tried = batch.length * (1 + nearest + proposals) + 1
            answer.evaluations += tried * batch.length
            answer.seconds += share
    return [batch.ranked(row, answer) for row, answer in enumerate(answers)]


@dataclass(frozen=True)
class _Lists:
    """How many tokens are tried at a position, of either kind."""

    nearest: int
    proposals: int


class _Pia(AdamSolver):
    def __init__(
        self, batch: Batch, chance: Chance, rate: PerRow, pull: float, objective: str
    ) -> None:
        super().__init__(batch, chance)
        self.objective = by_name(objective)
        W = batch.circuit.vocabulary
        self.x = scaled_start(batch, chance)
        self.rate = scaled_rate(batch, per_row(rate, self.x), "embedding")
        self.pull = pull / (batch.circuit.scale**2 * W.shape[1])
        self.range = (W.amin(dim=0), W.amax(dim=0))
        self.forget(self.x)

    def step(self, i: int) -> int:
        _, gradient = with_gradient(lambda x: self.batch.losses(x, self.objective), self.x)
        circuit = self.batch.circuit
        near = circuit.vocabulary[by_distance(circuit, self.x).argmax(dim=-1)]
        gradient = gradient + 2 * self.pull * (self.x - near)
        self.x = self.x - self.rate * self.direction(gradient)
        self.x = self.x.clamp(*self.range)
        return 3 * self.batch.length

    def scores(self) -> Tensor:
        return by_distance(self.batch.circuit, self.x)


@torch.no_grad()
def _pick(batch: Batch, scores: Tensor, lists: _Lists, objective: Objective) -> Tensor:
    """The tokens picked left to right, those after a position as they stand, `(B, T)`."""
    tokens = scores.argmax(dim=-1)
    for t in range(batch.length):
        candidates = scores[:, t].topk(lists.nearest, dim=-1).indices
        if t and lists.proposals:
            expected = batch.circuit.model(tokens[:, :t])[:, -1]
            likely = expected.topk(lists.proposals, dim=-1).indices
            candidates = torch.cat([candidates, likely], dim=1)
        guesses = tokens[:, None].repeat(1, candidates.shape[1], 1)
        guesses[:, :, t] = candidates
        best = losses_of(batch, guesses, objective).argmin(dim=1, keepdim=True)
        tokens[:, t] = candidates.gather(1, best)[:, 0]
    return tokens


def _first(scores: Tensor, tokens: Tensor) -> Tensor:
    """Scores `(T, V)` with the given tokens first."""
    return scores.scatter(1, tokens[:, None], scores.amax(dim=1, keepdim=True) + 1)
