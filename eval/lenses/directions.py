"""Directions of words in a model's stream, learnt from stories that differ in one word."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses.contrast import Story, attribute_words, contexts, story
from eval.lenses.trace import streams_of

PLACES = ("word", "last")
"""Where a word's direction is read: where the word stands, and at the cue that asks for it."""
CONTEXTS = 8  # stories of each word


@dataclass(frozen=True)
class StoryBatch:
    """Stories side by side, the shorter ones filled up at their ends.

    Attributes:
        tokens: `(B, T)`.
        last: `(B,)`, the last position of each.
        places: where each attribute's word stands, `(B,)`.
    """

    tokens: Tensor
    last: Tensor
    places: dict[str, Tensor]

    def at_last(self, values: Tensor) -> Tensor:
        """`(B, T, ...)` at each story's last position, `(B, ...)`."""
        return values[torch.arange(len(values), device=values.device), self.last]


@dataclass(frozen=True)
class Directions:
    """Mean streams by attribute and place, each `(words, layers, D)`, layer 0 the first.

    The difference of two words' means is the direction from one to the other.
    """

    means: dict[tuple[str, str], Tensor]


def batch_stories(checkpoint: Checkpoint, stories: list[Story]) -> StoryBatch:
    """Stories as one batch on the model's device.

    Raises:
        RequestError: one that is longer than the model's context.
    """
    context = checkpoint.config.context
    length = max(len(one.tokens) for one in stories)
    if length > context:
        raise RequestError(
            f"the built-in stories have up to {length} tokens, more than the model's context of "
            f"{context}; use a model with a longer context"
        )
    device = checkpoint.model.embedding.weight.device
    rows = [list(one.tokens) + [0] * (length - len(one.tokens)) for one in stories]
    return StoryBatch(
        torch.tensor(rows, device=device),
        torch.tensor([len(one.tokens) - 1 for one in stories], device=device),
        {a: torch.tensor([s.places[a] for s in stories], device=device) for a in stories[0].places},
    )


@torch.no_grad()
def learn(checkpoint: Checkpoint, seed: int = 0, count: int = CONTEXTS) -> Directions:
    """Means over the same contexts for every word of an attribute, so that only the word differs.

    Raises:
        RequestError: stories longer than the model's context.
    """
    tokenizer, means = checkpoint.tokenizer, {}
    given = contexts(tokenizer, count, held_out=False, seed=seed)
    for attribute, words in attribute_words(tokenizer).items():
        stories = [
            story(tokenizer, frame, attribute, chosen | {attribute: word})
            for word in words
            for frame, chosen in given
        ]
        batch = batch_stories(checkpoint, stories)
        streams = streams_of(checkpoint.model, batch.tokens)
        rows = torch.arange(len(stories), device=batch.tokens.device)
        for place, position in (("word", batch.places[attribute]), ("last", batch.last)):
            read = streams[:, rows, position].unflatten(1, (len(words), len(given)))
            means[attribute, place] = read.mean(2).transpose(0, 1)
    return Directions(means)
