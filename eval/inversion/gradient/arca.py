"""ARCA: position by position, a gradient averaged over random tokens says which tokens to try."""

from collections.abc import Iterator
from itertools import cycle

import torch

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.guess import gradient_at, random_guess
from eval.inversion.gradient.loop import Rows, drive, random_tokens
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, cost=lambda V, T, k: 4096 * T, title="ARCA")
def arca(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    sweeps: int = 6,
    samples: int = 16,
    top: int = 128,
    objective: str = "relative",
) -> list[Answer]:
    """Position by position, a gradient averaged over random tokens says which to try.

    Autoregressive randomized coordinate ascent (Jones et al., 2303.04381).

    Args:
        batch: any slices.
        chance: the source of each row's start and samples.
        tools: not used.
        sweeps: times that every position is visited, left to right; solved rows leave after each.
        samples: random tokens at the position over which the gradient is averaged.
        top: tokens tried exactly at the position.
        objective: what is lowered.
    """
    loss, W, T = by_name(objective), batch.circuit.vocabulary, batch.length
    tried = min(top, len(W))

    def search(rows: Rows) -> Iterator[None]:
        guess = random_guess(rows, loss)
        rows.scores = lambda: guess.scores
        for t in cycle(range(T)):
            B = len(guess.tokens)
            guesses = guess.tokens[:, None].repeat(1, samples, 1)
            guesses[:, :, t] = random_tokens(rows.chance, (samples,), W)
            repeated = torch.arange(B, device=W.device).repeat_interleave(samples)
            gradient = gradient_at(rows.batch.of(repeated), guesses.flatten(0, 1), loss)
            average = gradient[:, t].view(B, samples, -1).mean(dim=1)
            guess.estimates[:, t] = -average @ W.T
            guesses = guess.tokens[:, None].repeat(1, tried, 1)
            guesses[:, :, t] = guess.estimates[:, t].topk(tried, dim=-1).indices
            guess.try_all(rows.batch, guesses, loss)
            rows.spent += (3 * samples + tried) * T
            yield
            (guess,) = rows.kept(guess)

    return drive(batch, chance, search, sweeps * T, check=T)
