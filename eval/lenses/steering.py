"""Steering: a direction added to the stream of every position, while a model reads and writes.

    with steered(model, layer=3, vector=coefficient * direction):
        generate(model, tokens, 40)

The lens learns directions from stories that differ in one word, and swaps a name, an animal or a
mood: one word's direction is subtracted, another's added. The figures say whether the answer
follows in that attribute, and stays in the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel, generate
from eval.lenses.charts import Lines
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens
from eval.lenses.stories import (
    Story,
    Swap,
    attribute_words,
    contexts,
    following,
    require_words,
    swaps,
    tell_story,
)
from eval.lenses.trace import blocks_of, run_on, side_by_side, spaced_layers
from eval.messages import RequestError

CONTEXTS = 8  # stories of each word
LAYERS = 3  # at most so many, evenly spaced
TOKENS = 2500  # of the request for each held-out story
NEW = 40  # tokens of a sample


def batch_stories(checkpoint: Checkpoint, stories: Sequence[Story]) -> PromptBatch:
    """Stories as one batch on the model's device.

    Raises:
        RequestError: one that is longer than the model's context.
    """
    context = checkpoint.config.context
    length = max(len(story.tokens) for story in stories)
    if length > context:
        raise RequestError(
            f"the built-in stories have up to {length} tokens, more than the model's context of "
            f"{context}; use a model with a longer context"
        )
    return side_by_side(
        checkpoint, [story.tokens for story in stories], [story.text for story in stories]
    )


@torch.no_grad()
def learn_directions(checkpoint: Checkpoint, seed: int = 0) -> dict[str, Tensor]:
    """Mean streams where each word stands, by attribute, `(words, layers, D)`, layer 0 the first.

    Over the same contexts for every word, so that only the word differs: the difference of two
    words' means is the direction from one to the other.

    Raises:
        RequestError: stories longer than the model's context.
    """
    tokenizer, means = checkpoint.tokenizer, {}
    frames = contexts(tokenizer, CONTEXTS, held_out=False, seed=seed)
    for attribute, words in attribute_words(tokenizer).items():
        stories = [
            tell_story(tokenizer, frame, attribute, chosen | {attribute: word})
            for word in words
            for frame, chosen in frames
        ]
        rows, places = range(len(stories)), [story.places[attribute] for story in stories]
        read = batch_stories(checkpoint, stories).streams[:, rows, places]
        means[attribute] = read.unflatten(1, (len(words), len(frames))).mean(2).transpose(0, 1)
    return means


@contextmanager
def steered(model: LanguageModel, layer: int, vector: Tensor) -> Iterator[LanguageModel]:
    """Within the block, the model has a vector added after block `layer` (1 or more).

    The vector is `(D,)`, or one for each row, `(B, 1, D)`. The model reads, predicts and generates
    like any other: whole, in prefixes and step by step.
    """
    block = blocks_of(model)[layer - 1]
    combine = block.combine
    block.combine = lambda x, mixed: combine(x, mixed) + vector
    try:
        yield model
    finally:
        del block.combine


def log_odds_change(
    words: dict[str, dict[str, int]], stories: Sequence[Story], before: Tensor, after: Tensor
) -> Tensor:
    """By how much log-odds move from a word to the next one of the cue's attribute, `(B,)`.

    Where the cue asks for a swapped attribute, that is from the old word to the new. Logits after
    the stories are `(B, V)`.
    """
    rows, moved = range(len(stories)), after - before
    old = [story.words[story.cue] for story in stories]
    new = [following(words[story.cue], token) for story, token in zip(stories, old, strict=True)]
    return moved[rows, new] - moved[rows, old]


def swap_vectors(means: Tensor, words: dict[str, int], old: Sequence[int]) -> Tensor:
    """What turns B old words into those that follow them: the new direction less the old.

    The means are those of the attribute's words, `(words, D)`; the result is `(B, 1, D)`.
    """
    tokens = list(words.values())
    places = [tokens.index(token) for token in old]
    return (means.roll(-1, dims=0) - means)[places, None]


@torch.no_grad()
def logits_after(batch: PromptBatch, layer: int, vectors: Tensor, start: Tensor) -> Tensor:
    """Logits after each story, `(B, K, V)`, with each of K vectors `(B, K, D)` added to its stream.

    They are added after block `layer`, from each story's position `start` `(B,)` on.
    """
    stream, (B, K, _) = batch.streams[layer, :, None], vectors.shape
    later = torch.arange(stream.shape[2], device=start.device) >= start[:, None]
    x = stream + vectors[:, :, None] * later[:, None, :, None]
    last = batch.last.repeat_interleave(K)
    return run_on(batch.model, x.flatten(0, 1), layer, last).unflatten(0, (B, K))


@lens(
    "steering",
    "Swapped features",
    order=10,
    main=(
        ("swap effect", {"by": "steered", "measured": "swapped"}),
        ("swap effect", {"by": "steered", "measured": "others"}),
    ),
    charts=[
        Lines(
            of="swap effect",
            y="change of log-odds, nats",
            colour="measured",
            dash="by",
            name="swap",
            title="Does a swapped feature change what is said, and only that?",
            about="One attribute's direction subtracted and another's added at the word: the "
            "swapped part ought to follow, the others to stay; a random direction of equal length "
            "beside.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Whether swapping a name, animal or mood inside changes what is said, and only it."""
    model, words = checkpoint.model, require_words(checkpoint.tokenizer)
    directions = learn_directions(checkpoint, request.seed)
    layers = spaced_layers(len(model.blocks), LAYERS)
    pairs = swaps(checkpoint.tokenizer, max(4, request.tokens // TOKENS), request.seed)
    generator = torch.Generator().manual_seed(request.seed)
    gained = torch.zeros(len(layers))
    for attribute, known in words.items():
        of_attribute = [pair for pair in pairs if pair.attribute == attribute]
        stories = [pair.story for pair in of_attribute]
        plain = batch_stories(checkpoint, stories)
        other = batch_stories(checkpoint, [pair.swapped for pair in of_attribute])
        moved = log_odds_change(words, stories, plain.logits, other.logits)
        _add_effect(table, "swap effect of the text", of_attribute, moved)
        old = [story.words[attribute] for story in stories]
        start = torch.tensor([story.places[attribute] for story in stories]).to(plain.last)
        own = torch.tensor([pair.story.cue == attribute for pair in of_attribute])
        for column, layer in enumerate(layers):
            real = swap_vectors(directions[attribute][:, layer], known, old)
            noise = torch.randn(real.shape, generator=generator).to(real)
            noise *= real.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
            both = torch.cat([noise, real], dim=1)
            after = logits_after(plain, layer, both, start)
            for by, logits in zip(("random", "steered"), after.unbind(1), strict=True):
                moved = log_odds_change(words, stories, plain.logits, logits)
                _add_effect(table, "swap effect", of_attribute, moved, by=by, layer=layer)
                if by == "steered":
                    gained[column] += float(moved.cpu()[own].mean())
    lines = samples(checkpoint, directions, layers[int(gained.argmax())])
    columns = ("swapped", "goes on with")
    table.say("text written with features swapped", columns, lines)


def _add_effect(table: Table, name: str, swaps: list[Swap], moved: Tensor, **axes: Any) -> None:
    """Changes of log-odds, `(B,)`: in the swapped attribute, and their sizes in the others."""
    own = torch.tensor([pair.story.cue == pair.attribute for pair in swaps])
    numbers = torch.tensor([pair.number for pair in swaps])
    for measured, changes, chosen in (("swapped", moved, own), ("others", moved.abs(), ~own)):
        if chosen.any():
            labels = {**axes, "measured": measured, "attribute": swaps[0].attribute}
            table.add(name, changes.cpu()[chosen], story=numbers[chosen].tolist(), **labels)


def samples(checkpoint: Checkpoint, directions: dict[str, Tensor], layer: int) -> list[list[str]]:
    """One held-out story told on as it is, and with each attribute swapped at every position."""
    tokenizer, words = checkpoint.tokenizer, attribute_words(checkpoint.tokenizer)
    ((frame, chosen),) = contexts(tokenizer, 1, True)
    start = tell_story(tokenizer, frame, "name", chosen)
    labels, vectors = ["nothing"], [torch.zeros_like(next(iter(directions.values()))[:1, :1])]
    for attribute, known in words.items():
        old = known[chosen[attribute]]
        names = {token: word for word, token in known.items()}
        labels.append(f"{attribute}: {names[old]} to {names[following(known, old)]}")
        vectors.append(swap_vectors(directions[attribute][:, layer], known, [old]))
    prompt = torch.tensor([start.tokens] * len(labels), device=vectors[0].device)
    with steered(checkpoint.model, layer, torch.cat(vectors)) as model:
        texts = generate(model, prompt, NEW, temperature=0, stop=checkpoint.stops)[
            :, len(start.tokens) :
        ]
    stories = [tokenizer.decode(row) for row in texts.tolist()]
    return [[label, text] for label, text in zip(labels, stories, strict=True)]
