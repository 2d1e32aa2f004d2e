"""Gumbel-softmax: a distribution over tokens at each position, sampled with gradients through."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.loop import Rows, drive, moments, normal, with_gradient
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, title="Gumbel-softmax", short="gumbel")
def gumbel(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 500,
    rate: float = 0.3,
    samples: int = 4,
    warm: float = 4.0,
    cold: float = 0.5,
    spread: float = 0.1,
    hard: bool = False,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """A distribution over tokens at each position, sampled so that gradients pass through.

    Jang et al., 1611.01144; GBDA, Guo et al., 2104.13733.

    Args:
        batch: any slices.
        chance: the source of each row's start and samples.
        tools: not used.
        steps: the most that a row takes.
        rate: Adam's on the logits.
        samples: drawn in a step, their losses averaged.
        warm: temperature of the first step's samples.
        cold: of the last one's, by the same factor each step.
        spread: standard deviation of the logits' start.
        hard: whether a sample is one token, the gradient passed straight through.
        objective: what is lowered.
        check: rows that are solved leave after every so many steps.
    """
    loss, W, T = by_name(objective), batch.circuit.vocabulary, batch.length

    def losses(logits: Tensor, batch: Batch, noise: Tensor, temperature: float) -> Tensor:
        repeated = torch.arange(len(logits), device=W.device).repeat_interleave(samples)
        drawn = ((logits[repeated] + noise) / temperature).softmax(dim=-1)
        if hard:
            token = torch.nn.functional.one_hot(drawn.argmax(dim=-1), len(W)).to(drawn)
            drawn = token + drawn - drawn.detach()
        return batch.of(repeated).losses(drawn @ W, loss).view(-1, samples).mean(dim=1)

    def descend(rows: Rows) -> Iterator[None]:
        logits = spread * normal(chance, (T, len(W)), W)
        rows.scores = lambda: logits
        step, state = W.new_tensor(rate), moments(logits)
        for i in range(steps):
            noise = _noise(rows.chance, (samples, T, len(W))).to(W)
            temperature = warm * (cold / warm) ** (i / steps)
            sampled = partial(losses, batch=rows.batch, noise=noise, temperature=temperature)
            _, gradient = with_gradient(sampled, logits)
            logits = logits - step * state.direction(gradient)
            rows.spent += 3 * samples * T
            yield
            logits, state = rows.kept(logits, state)

    return drive(batch, chance, descend, steps, check)


def _noise(chance: Chance, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise, `(B * shape[0], *shape[1:])`."""
    return torch.cat([-torch.empty(shape).exponential_(generator=each).log() for each in chance])
