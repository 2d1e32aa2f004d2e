"""Solvers that descend by Adam: on vectors, through the nearest tokens, on softmaxes."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from eval.inversion.gradient.loop import (
    Rows,
    gradient,
    moments,
    normal,
    random_tokens,
    with_gradient,
)
from eval.inversion.gradient.tokens import losses_of
from eval.inversion.problem import Batch
from eval.inversion.solvers import Chance
from eval.inversion.spaces import by_distance, model_input, width
from eval.inversion.spaces import decode as decoded

SPREAD = 2.0  # of a softmax's start: a flatter mixture is short, and lost where norms divide by it


@gradient(steps=300, random=True, title="Adam at the model's scale", short="Adam", word="Adam")
def adam(
    rows: Rows,
    start: Tensor | None = None,
    free: Tensor | None = None,
    *,
    rate: float = 0.2,
    variable: str = "embedding",
    decode: str = "euclid",
) -> Iterator[None]:
    """Gradient descent by Adam, its start and step size scaled to the model's own embedding.

    Kingma & Ba, 1412.6980, with the rate falling along a half cosine. The start is N(mean, std) of
    the embedding's entries, the rate in units of their standard deviation; for a vector over the
    vocabulary both are such that the embeddings move alike.

    Args:
        rows: of any slices.
        start: embeddings to start from instead, `(B, T, D)`; for the variable "embedding" alone.
        free: which positions are descended on, `(B, T)`; the others stay as they start.
        rate: the first rate, in standard deviations of the embedding.
        variable: that is descended on.
        decode: how tokens are read from the embeddings.
    """
    assert start is None or variable == "embedding"

    def read(x: Tensor) -> Tensor:
        return model_input(variable, x, rows.vocabulary)

    x = scaled_start(rows.batch, rows.chance, variable) if start is None else start
    moving = x.new_ones(len(x), 1, 1) if free is None else free[..., None]
    first, state = scaled_rate(rows.batch, rate, variable), moments(x)
    rows.scores = lambda: decoded(rows.circuit, read(x), decode)
    for i in range(rows.steps):
        _, slope = with_gradient(lambda x: rows.losses(read(x)), x)
        falling = (1 + math.cos(math.pi * i / rows.steps)) / 2 * first
        x = x - falling * state.direction(slope) * moving
        rows.spent += 3 * rows.length
        yield
        x, moving, state = rows.kept(x, moving, state)


def scaled_start(batch: Batch, chance: Chance, variable: str = "embedding") -> Tensor:
    """Noise whose embeddings are spread like the model's own, `(B, T, D)` or `(B, T, V)`."""
    circuit, W = batch.circuit, batch.circuit.vocabulary
    noise = normal(chance, (batch.length, width(variable, W)), W)
    if variable == "embedding":
        return noise * circuit.scale + W.mean(dim=0)
    if variable == "vocabulary":
        return noise / len(W) ** 0.5 + 1 / len(W)
    return SPREAD * noise


def scaled_rate(batch: Batch, rate: float, variable: str = "embedding") -> Tensor:
    """A rate in standard deviations of the embedding, in the variable's own unit."""
    V, D = batch.circuit.vocabulary.shape
    unit = {"embedding": batch.circuit.scale, "vocabulary": D**0.5 / V, "softmax": 1.0}
    return batch.circuit.vocabulary.new_tensor(rate) * unit[variable]


@gradient(steps=1000, random=True, title="PEZ")
def pez(rows: Rows, *, rate: float = 0.1, decay: float = 0.0) -> Iterator[None]:
    """Vectors moved by the gradient at the tokens nearest to them.

    Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by AdamW. The best guess
    on the way is the answer.

    Args:
        rows: of any slices, each from random tokens.
        rate: in standard deviations of the embedding.
        decay: AdamW's decay of the weights.
    """
    W = rows.vocabulary
    x = best = W[random_tokens(rows.chance, (rows.length,), W)]
    least = torch.full_like(x[:, 0, 0], torch.inf)
    step, state = scaled_rate(rows.batch, rate), moments(x)
    rows.scores = lambda: by_distance(rows.circuit, best)
    while True:
        tokens = by_distance(rows.circuit, x).argmax(dim=-1)
        losses, slope = with_gradient(rows.losses, W[tokens])
        better = losses < least
        least = torch.where(better, losses, least)
        best = torch.where(better[:, None, None], x, best)
        x = x * (1 - step * decay) - step * state.direction(slope)
        rows.spent += 3 * rows.length
        yield
        x, best, least, state = rows.kept(x, best, least, state)


@gradient(steps=1000, random=True, title="PIA")
def pia(
    rows: Rows, *, rate: float = 0.3, pull: float = 0.1, nearest: int = 10, proposals: int = 10
) -> Iterator[None]:
    """Vectors drawn towards tokens, then tokens picked left to right among those nearest.

    Prompt inversion attack (Qu et al., 2503.09022). First Adam on the outputs' distance and on each
    vector's distance from its nearest token, kept within the embedding's range. Then, left to
    right, the token of least loss among the nearest to the vector and those that the language model
    itself expects next.

    Args:
        rows: of any slices.
        rate: in standard deviations of the embedding.
        pull: weight of the distance from the nearest token, in units of an embedding's length.
        nearest: tokens near the vector tried at a position.
        proposals: tokens that the model expects tried at a position.
    """
    circuit, W, T = rows.circuit, rows.vocabulary, rows.length
    x = scaled_start(rows.batch, rows.chance)
    step, state = scaled_rate(rows.batch, rate), moments(x)
    weight = pull / (circuit.scale**2 * W.shape[1])
    picked = None
    rows.scores = lambda: by_distance(circuit, x) if picked is None else picked
    for i in range(rows.steps):
        _, slope = with_gradient(rows.losses, x)
        near = W[by_distance(circuit, x).argmax(dim=-1)]
        slope = slope + 2 * weight * (x - near)
        x = (x - step * state.direction(slope)).clamp(W.amin(dim=0), W.amax(dim=0))
        rows.spent += 3 * T
        if i + 1 == rows.steps:
            picked = _picked(rows, by_distance(circuit, x), nearest, proposals)
        yield
        x, state = rows.kept(x, state)


def _picked(rows: Rows, scores: Tensor, nearest: int, proposals: int) -> Tensor:
    """Scores `(B, T, V)` with the picked tokens first, in the rows that the scores do not solve."""
    tokens = scores.argmax(dim=-1)
    pending = (~rows.batch.solved(tokens)).nonzero()[:, 0]
    rows.spent += rows.length
    if not len(pending):
        return scores
    rows.spent += rows.length**2 * (1 + nearest + proposals)
    tokens = _pick(rows, pending, scores[pending], nearest, proposals)[..., None]
    first = scores[pending].amax(dim=2, keepdim=True) + 1
    scores[pending] = scores[pending].scatter(2, tokens, first)
    return scores


def _pick(rows: Rows, pending: Tensor, scores: Tensor, nearest: int, proposals: int) -> Tensor:
    """The tokens picked left to right, those after a position as they stand, `(B, T)`."""
    batch, tokens = rows.batch.of(pending), scores.argmax(dim=-1)
    for t in range(batch.length):
        candidates = scores[:, t].topk(nearest, dim=-1).indices
        if t and proposals:
            expected = batch.circuit.model(tokens[:, :t])[:, -1]
            likely = expected.topk(proposals, dim=-1).indices
            candidates = torch.cat([candidates, likely], dim=1)
        guesses = tokens[:, None].repeat(1, candidates.shape[1], 1)
        guesses[:, :, t] = candidates
        best = losses_of(batch, guesses, rows.objective).argmin(dim=1, keepdim=True)
        tokens[:, t] = candidates.gather(1, best)[:, 0]
    return tokens


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
        noise = _gumbel_noise(rows.chance, (samples, T, len(W))).to(W)
        temperature = warm * (cold / warm) ** (i / rows.steps)
        sampled = partial(losses, batch=rows.batch, noise=noise, temperature=temperature)
        _, slope = with_gradient(sampled, logits)
        logits = logits - step * state.direction(slope)
        rows.spent += 3 * samples * T
        yield
        logits, state = rows.kept(logits, state)


def _gumbel_noise(chance: Chance, shape: tuple[int, ...]) -> Tensor:
    """`(B * shape[0], *shape[1:])`."""
    return torch.cat([-torch.empty(shape).exponential_(generator=each).log() for each in chance])


@gradient(steps=1000, objective="huber", random=True, title="SODA")
def soda(
    rows: Rows,
    *,
    rate: float = 0.065,
    keep: float = 0.9,
    temperature: float = 0.05,
    spread: float = 0.1,
    forget: int = 50,
    restart: int = 1500,
) -> Iterator[None]:
    """A softmax over the vocabulary at each position that decays, by an Adam that forgets.

    Sparse one-hot discrete Adam (Skapars et al., 2507.01693). The model reads
    softmax(z / temperature) W. Adam does not correct for its moments' start; z decays at every
    step, the moments start anew now and then, and z itself from noise.

    Args:
        rows: of any slices.
        rate: of Adam on z.
        keep: the share of z that is kept at every step.
        temperature: of the softmax.
        spread: standard deviation of z at the start, which is zeros in the paper, and each time it
            starts anew.
        forget: the moments start anew after so many steps.
        restart: z starts anew after so many steps.
    """
    W = rows.vocabulary

    def read(z: Tensor) -> Tensor:
        return model_input("softmax", z / temperature, W)

    def noise() -> Tensor:
        return spread * normal(rows.chance, (rows.length, len(W)), W)

    z, step, settings = noise(), W.new_tensor(rate), {"second": 0.995, "corrected": False}
    state = moments(z, **settings)
    rows.scores = lambda: z
    for i in range(rows.steps):
        if i and i % restart == 0:
            z = noise()
        if i and i % forget == 0:
            state = moments(z, **settings)
        _, slope = with_gradient(lambda z: rows.losses(read(z)), z)
        z = keep * (z - step * state.direction(slope))
        rows.spent += 3 * rows.length
        yield
        z, state = rows.kept(z, state)
