"""PIA: vectors drawn towards tokens, then tokens picked left to right among those nearest."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import scaled_rate, scaled_start
from eval.inversion.gradient.guess import losses_of
from eval.inversion.gradient.loop import Rows, drive, moments, with_gradient
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import Objective, by_distance
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, title="PIA")
def pia(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 1000,
    rate: float = 0.3,
    pull: float = 0.1,
    nearest: int = 10,
    proposals: int = 10,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """Vectors drawn towards tokens, then tokens picked left to right among those nearest.

    Prompt inversion attack (Qu et al., 2503.09022). First Adam on the outputs' distance and on each
    vector's distance from its nearest token, kept within the embedding's range. Then, left to
    right, the token of least loss among the nearest to the vector and those that the language model
    itself expects next.

    Args:
        batch: any slices.
        chance: the source of each row's start.
        tools: not used.
        steps: the most that a row takes in the first stage.
        rate: in standard deviations of the embedding.
        pull: weight of the distance from the nearest token, in units of an embedding's length.
        nearest: tokens near the vector tried at a position.
        proposals: tokens that the model expects tried at a position.
        objective: what is lowered.
        check: rows that are solved leave after every so many steps.
    """
    loss, circuit, W = by_name(objective), batch.circuit, batch.circuit.vocabulary

    def descend(rows: Rows) -> Iterator[None]:
        x = scaled_start(batch, chance)
        step, state = scaled_rate(batch, rate), moments(x)
        weight = pull / (circuit.scale**2 * W.shape[1])
        rows.scores = lambda: by_distance(circuit, x)
        while True:
            _, slope = with_gradient(rows.losses, x)
            near = W[by_distance(circuit, x).argmax(dim=-1)]
            slope = slope + 2 * weight * (x - near)
            x = (x - step * state.direction(slope)).clamp(W.amin(dim=0), W.amax(dim=0))
            rows.spent += 3 * batch.length
            yield
            x, state = rows.kept(x, state)

    answers = drive(batch.keeping_scores(), chance, descend, steps, check, objective)
    remaining = [row for row, answer in enumerate(answers) if answer.certificate is None]
    if remaining:
        started = time.perf_counter()
        part = batch.of(torch.tensor(remaining, device=W.device))
        scores = torch.stack([answers[row].scores for row in remaining])
        picked = _pick(part, scores, nearest, proposals, loss)
        share = (time.perf_counter() - started) / len(remaining)
        solved = part.solved(picked).tolist()
        for i, (row, tokens, done) in enumerate(zip(remaining, picked, solved, strict=True)):
            answer = answers[row]
            answer.scores = _first(scores[i], tokens)
            answer.tokens, answer.certificate = tokens, "residual" if done else None
            answer.steps = steps if done else None
            tried = batch.length * (1 + nearest + proposals) + 1
            answer.evaluations += tried * batch.length
            answer.seconds += share
    return [batch.ranked(row, answer) for row, answer in enumerate(answers)]


@torch.no_grad()
def _pick(
    batch: Batch, scores: Tensor, nearest: int, proposals: int, objective: Objective
) -> Tensor:
    """The tokens picked left to right, those after a position as they stand, `(B, T)`."""
    tokens = scores.argmax(dim=-1)
    for t in range(batch.length):
        candidates = scores[:, t].topk(nearest, dim=-1).indices
        if t and proposals:
            expected = batch.circuit.model(tokens[:, :t])[:, -1]
            likely = expected.topk(proposals, dim=-1).indices
            candidates = torch.cat([candidates, likely], dim=1)
        guesses = tokens[:, None].repeat(1, candidates.shape[1], 1)
        guesses[:, :, t] = candidates
        best = losses_of(batch, guesses, objective).argmin(dim=1, keepdim=True)
        tokens[:, t] = candidates.gather(1, best)[:, 0]
    return tokens


def _first(scores: Tensor, tokens: Tensor) -> Tensor:
    """Scores `(T, V)` with the given tokens first."""
    return scores.scatter(1, tokens[:, None], scores.amax(dim=1, keepdim=True) + 1)
