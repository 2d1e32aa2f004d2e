"""A prompt's way through a model: the stream at every layer and what every sublayer wrote to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.text import Prompt

SUBLAYERS = ("token mixer", "channel mixer")


@dataclass(frozen=True)
class Batch:
    """Prompts side by side, the shorter ones filled up at their ends.

    A causal model's outputs up to a prompt's end do not know of what fills it up.

    Attributes:
        tokens: `(B, T)`.
        real: `(B, T)`, whether a position belongs to the prompt.
        labels: a name for each prompt.
    """

    tokens: Tensor
    real: Tensor
    labels: list[str]

    @property
    def last(self) -> Tensor:
        """The last real position of each prompt, `(B,)`."""
        return self.real.sum(dim=1) - 1

    @property
    def positions(self) -> range:
        """Labels of the axis of positions."""
        return range(self.tokens.shape[1])

    def mean(self, values: Tensor) -> Tensor:
        """Mean over real positions of values `(..., B, T)`."""
        weight = self.real.to(values.dtype)
        return (values * weight).sum((-2, -1)) / weight.sum()

    def masked(self, values: Tensor) -> Tensor:
        """Values `(..., B, T)`, those past a prompt's end no number."""
        return values.masked_fill(~self.real, torch.nan)


@dataclass(frozen=True)
class Trace:
    """The streams and the writes of one forward pass: each stream is the sum of all writes before.

    Attributes:
        start: what the stream begins with, by name, each `(B, T, D)`: the embedding, and a wrapped
            model's learnt positions.
        streams: the stream at layers 0 ... n, `(n + 1, B, T, D)`; layer 0 is what the first block
            reads.
        writes: what each block's token mixer and channel mixer added, `(n, 2, B, T, D)`.
    """

    start: dict[str, Tensor]
    streams: Tensor
    writes: Tensor

    @property
    def labels(self) -> list[str]:
        """A name for every part, in the order of `parts`."""
        depth = range(1, len(self.writes) + 1)
        return [*self.start, *(f"{layer} {name}" for layer in depth for name in SUBLAYERS)]

    @property
    def parts(self) -> Tensor:
        """Everything that was ever written, `(P, B, T, D)`; its sum is the last stream."""
        return torch.cat([torch.stack([*self.start.values()]), self.writes.flatten(0, 1)])


def gather(checkpoint: Checkpoint, prompts: Sequence[Prompt]) -> Batch:
    """Prompts as one batch on the model's device.

    Raises:
        RequestError: a prompt that is longer than the model's context.
    """
    context = checkpoint.config.context
    length = max(prompt.real for prompt in prompts)
    tokens = torch.zeros(len(prompts), length, dtype=torch.long)
    real = torch.zeros(len(prompts), length, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        if prompt.real > context:
            raise RequestError(
                f"prompt {prompt.kind} {prompt.index} has {prompt.real} tokens; the context of "
                f"{checkpoint.path} is {context}: give a shorter --text or --length"
            )
        tokens[row, : prompt.real] = torch.tensor(prompt.tokens[: prompt.real])
        real[row, : prompt.real] = True
    device = checkpoint.model.embedding.weight.device
    labels = [f"{prompt.kind} {prompt.index}" for prompt in prompts]
    return Batch(tokens.to(device), real.to(device), labels)


@torch.no_grad()
def trace(model: LanguageModel, tokens: Tensor) -> Trace:
    """Runs `(B, T)` tokens through a model and keeps everything that is written to the stream.

    A channel mixer's write is what the block's output has beyond its input and its token mixer's,
    so that the parts add up however the block puts them together.
    """
    embedding = model.embed(tokens)
    x = model.with_positions(embedding)
    start = {"embedding": embedding}
    if x is not embedding:
        start["positions"] = x - embedding
    streams, writes = [x], []
    for block in blocks_of(model):
        mixed = block.token_mixer(block.norm_token(x))
        after = block.combine(x, mixed)
        writes.append(torch.stack([mixed, after - x - mixed]))
        x = after
        streams.append(x)
    return Trace(start, torch.stack(streams), torch.stack(writes))


@torch.no_grad()
def streams_of(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The streams of `(B, T)` tokens alone, as `Trace.streams` has them."""
    found = [model.with_positions(model.embed(tokens))]
    for block in blocks_of(model):
        found.append(block(found[-1]))
    return torch.stack(found)


def blocks_of(model: LanguageModel) -> list[Any]:
    """The blocks, in order."""
    return list(model.blocks)
