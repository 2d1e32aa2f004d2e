"""What a trained decoder finds of the bits that one output has about earlier tokens.

In windows of held-out text the tokens at some distances before one position are replaced by
candidates drawn uniformly, so that the prior of each is known. A decoder is trained to name them,
and its bits, log2(candidates) less its cross entropy, are a lower bound on the mutual information
of the vector and the token: the exact posterior gives that, with all other tokens given.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.sites.circuit import Circuit
from scripts.experiments.shared import add_noise

WIDTH, BLOCKS = 256, 2
LOOKS = 6
"""How often a decoder is judged in its training; the best by one half of the examples counts."""


class Examples(NamedTuple):
    """The tokens drawn in windows, and what the encoder makes of their last positions."""

    labels: Tensor
    """`(N, R)`, the number of the candidate at each distance."""
    vectors: Tensor
    """`(N, D)`."""
    neutral: Tensor
    """`(N, R, D)`: the vector that the first candidate would give at a distance."""

    def first(self, count: int) -> "Examples":
        """The first so many."""
        return Examples(*(field[:count] for field in self))


def draw_examples(
    tokens: Tensor, length: int, count: int, places: Sequence[int], candidates: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Windows of a text `(tokens,)` at random, with drawn tokens at some places, and their numbers.

    Returns:
        `(count, length)` tokens and `(count, R)` labels.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - length + 1, (count,), generator=generator)
    windows = tokens[starts[:, None] + torch.arange(length)]
    labels = torch.randint(len(candidates), (count, len(places)), generator=generator)
    windows[:, list(places)] = candidates[labels]
    return windows, labels


@torch.no_grad()
def encode(
    circuit: Circuit, tokens: Tensor, places: Sequence[int], neutral: int, batch: int = 128
) -> tuple[Tensor, Tensor]:
    """The last position's output, and what it would be with another token at each place.

    Args:
        circuit: the site.
        tokens: `(N, T)`.
        places: R of them, in any order, before the last position; none where the vectors alone are
            wanted, which costs half as much.
        neutral: the other token.
        batch: windows at once.

    Returns:
        `(N, D)`, and `(N, R, D)` in the order of `places`.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    stops = [0, *(places[i] for i in order)]
    vectors, neutrals = [], []
    for rows in tokens.split(batch):
        state, found = None, {}
        for number, (start, stop) in zip(order, pairwise(stops), strict=True):
            if stop > start:
                state = circuit.prefix(rows[:, start:stop], state)
            other = rows[:, stop:].clone()
            other[:, 0] = neutral
            found[number] = circuit.step(circuit.embed(other), state)[:, -1]
        vector = circuit.step(circuit.embed(rows[:, stops[-1] :]), state)[:, -1]
        vectors.append(vector)
        others = [found[i] for i in range(len(places))]
        neutrals.append(torch.stack(others, 1) if others else vector.new_empty(len(vector), 0, 0))
    return torch.cat(vectors), torch.cat(neutrals)


def make_examples(
    circuit: Circuit, tokens: Tensor, labels: Tensor, places: Sequence[int], neutral: int
) -> Examples:
    """What a decoder is trained on; see `encode`."""
    return Examples(labels, *encode(circuit, tokens, places, neutral))


class Block(nn.Module):
    """x + W2 gelu(W1 norm(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        layers = nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` to the same."""
        return x + self.layers(x)


class Decoder(nn.Module):
    """Standardised features to logits of the candidates at each distance.

    A blind decoder reads `(N, D)`, the vector alone, an informed one `(N, R, 2 D)`: for each
    distance what the vector differs by from the neutral one, and the latter.
    """

    def __init__(self, features: Tensor, distances: int, candidates: int) -> None:
        super().__init__()
        self.mean, self.deviation = features.mean(0), features.std(0).clamp(min=1e-12)
        self.read = nn.Linear(features.shape[-1], WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, 2 * WIDTH) for _ in range(BLOCKS)))
        self.heads = nn.Parameter(torch.randn(distances, WIDTH, candidates) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`(N, R, candidates)`."""
        x = self.blocks(self.read((x - self.mean) / self.deviation))
        if x.dim() == 2:
            return torch.einsum("nw,rwv->nrv", x, self.heads)
        return torch.einsum("nrw,rwv->nrv", x, self.heads)


def features_of(examples: Examples, kind: str) -> Tensor:
    """What a decoder reads: `blind`, the vectors; `informed`, for each distance two of them."""
    if kind == "blind":
        return examples.vectors
    difference = examples.vectors[:, None] - examples.neutral
    return torch.cat([difference, examples.neutral], dim=-1)


def train_decoder(
    train: Examples, judged: Examples, kind: str, noise: float, candidates: int,
    training: dict[str, Any], seed: int,
) -> list[float]:  # fmt: skip
    """Trains a decoder, and gives its bits at each distance.

    Args:
        train: to train on.
        judged: half of them choose the step that counts, the other half gives the figure.
        kind: `blind` or `informed`.
        noise: standard deviation in the root mean square of each vector, drawn anew in each step;
            of a blind decoder alone.
        candidates: how many a token is one of.
        training: `batch`, `steps`, `rate` and `decay` of AdamW; the rate falls linearly to zero.
        seed: of weights, batches and noise.
    """
    torch.manual_seed(seed)
    x, known = features_of(train, kind), features_of(judged, kind)
    generator = torch.Generator().manual_seed(seed)
    known = add_noise(known, noise, generator)
    decoder = Decoder(add_noise(x, noise, generator), train.labels.shape[1], candidates)
    rate, steps, half = training["rate"], training["steps"], len(known) // 2
    optimizer = torch.optim.AdamW(decoder.parameters(), rate, weight_decay=training["decay"])
    best = math.inf, [0.0] * train.labels.shape[1]
    for step in range(1, steps + 1):
        rows = torch.randint(len(x), (training["batch"],), generator=generator)
        logits = decoder(add_noise(x[rows], noise, generator))
        F.cross_entropy(logits.flatten(0, 1), train.labels[rows].flatten()).backward()
        optimizer.param_groups[0]["lr"] = rate * (1 - (step - 1) / steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // LOOKS) == 0:
            nats = _nats(decoder, known, judged.labels)
            best = min(best, (float(nats[:half].mean()), nats[half:].mean(0).tolist()))
    return [(math.log(candidates) - nats) / math.log(2) for nats in best[1]]


@torch.no_grad()
def _nats(decoder: Decoder, features: Tensor, labels: Tensor) -> Tensor:
    """Cross entropies `(N, R)`."""
    logits = torch.cat([decoder(part) for part in features.split(512)])
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
