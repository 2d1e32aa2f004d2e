"""ARCA: position by position, a gradient averaged over random tokens says which tokens to try."""

from collections.abc import Iterator
from itertools import cycle

import torch

from eval.inversion.gradient.guess import gradient_at, random_guess
from eval.inversion.gradient.loop import Rows, gradient, random_tokens


@gradient(sweeps=6, random=True, cost=lambda V, T, k: 4096 * T, title="ARCA")
def arca(rows: Rows, *, samples: int = 16, top: int = 128) -> Iterator[None]:
    """Position by position, a gradient averaged over random tokens says which to try.

    Autoregressive randomized coordinate ascent (Jones et al., 2303.04381).

    Args:
        rows: of any slices.
        samples: random tokens at the position over which the gradient is averaged.
        top: tokens tried exactly at the position.
    """
    W, T = rows.vocabulary, rows.length
    tried, guess = min(top, len(W)), random_guess(rows)
    rows.scores = lambda: guess.scores
    for t in cycle(range(T)):
        B = len(guess.tokens)
        guesses = guess.tokens[:, None].repeat(1, samples, 1)
        guesses[:, :, t] = random_tokens(rows.chance, (samples,), W)
        repeated = torch.arange(B, device=W.device).repeat_interleave(samples)
        slope = gradient_at(rows.batch.of(repeated), guesses.flatten(0, 1), rows.objective)
        average = slope[:, t].view(B, samples, -1).mean(dim=1)
        guess.estimates[:, t] = -average @ W.T
        guesses = guess.tokens[:, None].repeat(1, tried, 1)
        guesses[:, :, t] = guess.estimates[:, t].topk(tried, dim=-1).indices
        guess.try_all(rows, guesses)
        rows.spent += (3 * samples + tried) * T
        yield
        (guess,) = rows.kept(guess)
