"""Gumbel-softmax: a distribution over tokens at each position, sampled with gradients through."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from eval.inversion.batch import Batch
from eval.inversion.gradient.loop import Rows, gradient, moments, normal, with_gradient
from eval.inversion.solvers import Chance


@gradient(steps=500, random=True, title="Gumbel-softmax", short="gumbel")
def gumbel(
    rows: Rows,
    *,
    rate: float = 0.3,
    samples: int = 4,
    warm: float = 4.0,
    cold: float = 0.5,
    spread: float = 0.1,
    hard: bool = False,
) -> Iterator[None]:
    """A distribution over tokens at each position, sampled so that gradients pass through.

    Jang et al., 1611.01144; GBDA, Guo et al., 2104.13733.

    Args:
        rows: of any slices.
        rate: Adam's on the logits.
        samples: drawn in a step, their losses averaged.
        warm: temperature of the first step's samples.
        cold: of the last one's, by the same factor each step.
        spread: standard deviation of the logits' start.
        hard: whether a sample is one token, the gradient passed straight through.
    """
    W, T = rows.vocabulary, rows.length

    def losses(logits: Tensor, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        repeated = torch.arange(len(logits), device=W.device).repeat_interleave(samples)
        drawn = ((logits[repeated] + noise) / temperature).softmax(dim=-1)
        if hard:
            token = torch.nn.functional.one_hot(drawn.argmax(dim=-1), len(W)).to(drawn)
            drawn = token + drawn - drawn.detach()
        return batch.of(repeated).losses(drawn @ W, rows.objective).view(-1, samples).mean(dim=1)

    logits = spread * normal(rows.chance, (T, len(W)), W)
    rows.scores = lambda: logits
    step, state = W.new_tensor(rate), moments(logits)
    for i in range(rows.steps):
        noise = _noise(rows.chance, (samples, T, len(W))).to(W)
        temperature = warm * (cold / warm) ** (i / rows.steps)
        sampled = partial(losses, batch=rows.batch, noise=noise, temperature=temperature)
        _, slope = with_gradient(sampled, logits)
        logits = logits - step * state.direction(slope)
        rows.spent += 3 * samples * T
        yield
        logits, state = rows.kept(logits, state)


def _noise(chance: Chance, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise, `(B * shape[0], *shape[1:])`."""
    return torch.cat([-torch.empty(shape).exponential_(generator=each).log() for each in chance])
