"""Steering: a direction added to the stream of every position, while a model reads and writes.

    model = steered(model, layer=3, vector=coefficient * direction)
    generate(model, tokens, 40)

The lens learns directions from stories that differ in one word, and swaps a name, an animal or a
mood: one word's direction is subtracted, another's added. What is asked is whether the answer
follows in that attribute, and stays in the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor, nn

from arch import LanguageModel, generate
from eval import plots
from eval.errors import RequestError
from eval.lenses.lens import (
    Document,
    Finding,
    Named,
    Record,
    Request,
    lens,
    mean_record,
    note_table,
    records,
)
from eval.lenses.stories import (
    Story,
    attribute_words,
    contexts,
    following,
    require_words,
    story,
)
from eval.lenses.trace import Batch, blocks_of, side_by_side, spaced_layers, streams_of
from eval.models import Checkpoint
from tokenizer import END_OF_TEXT

PLACES = ("word", "last")
"""Where a word's direction is read: where the word stands, and at the cue that asks for it."""
CONTEXTS = 8  # stories of each word
LAYERS = 3  # at most so many, evenly spaced
TOKENS = 2500  # of the request for each held-out story
NEW = 40  # tokens of a sample
EFFECTS = ("steered", "random")

Directions = dict[tuple[str, str], Tensor]
"""Mean streams by attribute and place, each `(words, layers, D)`, layer 0 the first.

The difference of two words' means is the direction from one to the other.
"""


def batch_stories(checkpoint: Checkpoint, stories: list[Story]) -> Batch:
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
    return side_by_side(checkpoint, [one.tokens for one in stories], [one.text for one in stories])


@torch.no_grad()
def learn(checkpoint: Checkpoint, seed: int = 0, count: int = CONTEXTS) -> Directions:
    """Means over the same contexts for every word of an attribute, so that only the word differs.

    Raises:
        RequestError: stories longer than the model's context.
    """
    tokenizer, means = checkpoint.tokenizer, {}
    frames = contexts(tokenizer, count, held_out=False, seed=seed)
    for attribute, words in attribute_words(tokenizer).items():
        stories = [
            story(tokenizer, frame, attribute, chosen | {attribute: word})
            for word in words
            for frame, chosen in frames
        ]
        batch = batch_stories(checkpoint, stories)
        streams = streams_of(checkpoint.model, batch.tokens)
        rows, places = range(len(stories)), [one.places[attribute] for one in stories]
        for place, position in (("word", places), ("last", batch.last)):
            read = streams[:, rows, position].unflatten(1, (len(words), len(frames)))
            means[attribute, place] = read.mean(2).transpose(0, 1)
    return means


class SteeredBlock(nn.Module):
    """A block with a vector added to what it puts out: all that a model asks of a block.

    Args:
        block: as it was.
        vector: `(D,)`, or one for each row, `(B, 1, D)`.
        start: the first position that gets it; within the first piece that is read.
    """

    def __init__(self, block: nn.Module, vector: Tensor, start: int = 0) -> None:
        super().__init__()
        self.block, self.vector, self.start = block, vector, start

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._add(self.block(x), self.start)

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """As `Block.prefix`."""
        y, after = self.block.prefix(x, state)  # pyright: ignore[reportCallIssue]
        return self._add(y, self.start if state is None else 0), after

    def step(self, x: Tensor, state: Any) -> Tensor:
        """As `Block.step`."""
        return self._add(self.block.step(x, state), 0)  # pyright: ignore[reportCallIssue]

    def _add(self, y: Tensor, start: int) -> Tensor:
        return torch.cat([y[:, :start], y[:, start:] + self.vector], dim=1)


def steered(model: LanguageModel, layer: int, vector: Tensor, start: int = 0) -> LanguageModel:
    """The same model, the same weights, with a vector added after block `layer` (1 or more).

    Args as `SteeredBlock`. It reads, predicts and generates like any other.
    """
    blocks = blocks_of(model)
    blocks[layer - 1] = SteeredBlock(blocks[layer - 1], vector, start)
    changed = copy.copy(model)
    changed._modules = dict(model._modules)
    changed.blocks = nn.ModuleList(blocks)
    return changed


@dataclass(frozen=True)
class Swap:
    """One attribute's word swapped for another, in stories told up to every attribute's cue.

    Attributes:
        attribute: which.
        stories: as they are.
        swapped: the same with the other word in the text.
        number: of the context that each story is told in.
    """

    attribute: str
    stories: list[Story]
    swapped: list[Story]
    number: list[int]

    def change(self, words: dict[str, dict[str, int]], before: Tensor, after: Tensor) -> Tensor:
        """By how much log-odds move from a word to the next one of the cue's attribute, `(B,)`.

        Where the cue asks for the swapped attribute, that is from the old word to the new.

        Args:
            words: of each attribute.
            before: logits `(B, V)`.
            after: logits `(B, V)`.
        """
        rows, moved = range(len(self.stories)), after - before
        old = [s.words[s.cue] for s in self.stories]
        new = [following(words[s.cue], s.words[s.cue]) for s in self.stories]
        return moved[rows, new] - moved[rows, old]


def swaps(checkpoint: Checkpoint, count: int, seed: int = 0) -> Iterator[Swap]:
    """For each attribute, held-out stories in `count` contexts, each up to every known cue."""
    tokenizer = checkpoint.tokenizer
    words = attribute_words(tokenizer)
    for attribute, known in words.items():
        swap, names = Swap(attribute, [], [], []), {token: word for word, token in known.items()}
        for number, (frame, chosen) in enumerate(contexts(tokenizer, count, True, seed)):
            other = names[following(known, known[chosen[attribute]])]
            for cue in words:
                swap.stories.append(story(tokenizer, frame, cue, chosen))
                swap.swapped.append(story(tokenizer, frame, cue, chosen | {attribute: other}))
                swap.number.append(number)
        yield swap


def swap_vectors(means: Tensor, words: dict[str, int], old: Sequence[int]) -> Tensor:
    """What turns words into those that follow them, `(B, 1, D)`: the new direction less the old.

    Args:
        means: of the attribute's words, `(words, D)`.
        words: with their tokens.
        old: B tokens of them.
    """
    tokens = list(words.values())
    places = [tokens.index(token) for token in old]
    return (means[[(i + 1) % len(tokens) for i in places]] - means[places])[:, None]


@torch.no_grad()
def logits_after(
    model: LanguageModel, batch: Batch, stream: Tensor, layer: int, vectors: Tensor, start: Tensor
) -> Tensor:
    """Logits after each story `(B, V)`, a vector added to its stream at a layer from `start` on.

    Args:
        model: any language model.
        batch: the stories.
        stream: `(B, T, D)` at that layer.
        layer: which.
        vectors: `(B, 1, D)`.
        start: `(B,)`.
    """
    positions = torch.arange(stream.shape[1], device=stream.device)
    x = stream + vectors * (positions >= start[:, None])[..., None]
    for block in blocks_of(model)[layer:]:
        x = block(x)
    return model.logits(batch.at_last(x)[:, None])[:, 0]


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """What a direction changes, and what it leaves."""
    rows = [r for r in records(documents, "swap") if r["place"] == "word"]
    chart = plots.lines(rows, "layer", "change of log-odds, nats", "measured", "by")
    return [
        plots.Figure(
            "steering-swap",
            "Does a swapped feature change what is said, and only that?",
            "One attribute's direction subtracted and another's added at the word: the swapped "
            "part ought to follow, the others to stay; a random direction of equal length beside.",
            plots.chosen(chart, rows, "model", "attribute"),
        )
    ]


def sample_table(documents: Sequence[Document]) -> list[Markup]:
    """Text written by steered models."""
    return note_table(
        documents,
        "samples",
        "text written with features swapped",
        ("swapped", "goes on with"),
        lambda sample: (sample["swapped"], sample["text"]),
    )


@lens(
    name="steering",
    title="Swapped features",
    about="whether swapping a name, animal or mood inside changes what is said, and only it",
    figures=draw,
    texts=sample_table,
    order=13,
)
@torch.no_grad()
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Swaps names, animals and moods in built-in stories, at several layers.

    Raises:
        RequestError: no two of them are single tokens, or the stories do not fit the context.
    """
    model, words = checkpoint.model, require_words(checkpoint.tokenizer)
    directions = learn(checkpoint, request.seed)
    layers = spaced_layers(len(model.blocks), LAYERS)
    count = max(4, request.tokens // TOKENS)
    generator = torch.Generator().manual_seed(request.seed)
    values = torch.full((len(words), len(PLACES), len(layers), len(EFFECTS), 2), torch.nan)
    figures: list[Record] = []
    for a, swap in enumerate(swaps(checkpoint, count, request.seed)):
        batch = batch_stories(checkpoint, swap.stories)
        streams = streams_of(model, batch.tokens)
        before = batch.at_last(model.logits(streams[-1]))
        other = batch_stories(checkpoint, swap.swapped)
        text = swap.change(words, before, other.at_last(model(other.tokens)))
        figures += _figures(swap, text, {"by": "text"})
        old = [one.words[swap.attribute] for one in swap.stories]
        at_word = [one.places[swap.attribute] for one in swap.stories]
        starts = (torch.tensor(at_word, device=batch.last.device), batch.last)
        for p, (place, start) in enumerate(zip(PLACES, starts, strict=True)):
            means = directions[swap.attribute, place]
            for column, layer in enumerate(layers):
                real = swap_vectors(means[:, layer], words[swap.attribute], old)
                noise = torch.randn(real.shape, generator=generator).to(real)
                noise *= real.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
                for e, (by, vectors) in enumerate(zip(EFFECTS, (real, noise), strict=True)):
                    after = logits_after(model, batch, streams[layer], layer, vectors, start)
                    moved = swap.change(words, before, after)
                    rows = _figures(swap, moved, {"by": by, "place": place, "layer": layer})
                    figures += rows
                    values[a, p, column, e] = torch.tensor([row["value"] for row in rows])
    axes = {
        "attribute": list(words),
        "place": PLACES,
        "layer": layers,
        "by": EFFECTS,
        "measured": ("swapped", "others"),
    }
    best = layers[int(values[:, 0, :, 0, 0].mean(0).argmax())]
    notes = {"samples": samples(checkpoint, directions, best), "sample_layer": best}
    return Finding({"swap": Named(values, axes)}, figures, notes)


def _figures(swap: Swap, moved: Tensor, place: Record) -> list[Record]:
    """Change of log-odds in the swapped attribute, and its size in the others."""
    rows = []
    for measured, changes in (("swapped", moved), ("others", moved.abs())):
        wanted = [(s.cue == swap.attribute) == (measured == "swapped") for s in swap.stories]
        each = changes[wanted].tolist()
        numbers = [number for number, yes in zip(swap.number, wanted, strict=True) if yes]
        record = mean_record(each, numbers) if each else {"value": float("nan"), "n": 0}
        about = {"figure": "swap effect", "measured": measured, "attribute": swap.attribute}
        rows.append(about | place | record)
    return rows


def samples(checkpoint: Checkpoint, directions: Directions, layer: int) -> list[dict[str, str]]:
    """One held-out story told on as it is, and with each attribute swapped at every position."""
    tokenizer, words = checkpoint.tokenizer, attribute_words(checkpoint.tokenizer)
    ((frame, chosen),) = contexts(tokenizer, 1, True)
    start = story(tokenizer, frame, "name", chosen)
    labels, vectors = ["nothing"], [torch.zeros_like(next(iter(directions.values()))[:1, :1])]
    for attribute, known in words.items():
        old = known[chosen[attribute]]
        names = {token: word for word, token in known.items()}
        labels.append(f"{attribute}: {names[old]} to {names[following(known, old)]}")
        vectors.append(swap_vectors(directions[attribute, "word"][:, layer], known, [old]))
    model = steered(checkpoint.model, layer, torch.cat(vectors))
    prompt = torch.tensor([start.tokens] * len(labels), device=vectors[0].device)
    end = tokenizer.token_to_id(END_OF_TEXT)
    texts = generate(model, prompt, NEW, temperature=0, stop=end)[:, len(start.tokens) :]
    return [
        {"swapped": label, "prompt": start.text, "text": tokenizer.decode(row)}
        for label, row in zip(labels, texts.tolist(), strict=True)
    ]
