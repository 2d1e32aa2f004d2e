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
from eval.checkpoints import Checkpoint
from eval.lenses import markup
from eval.lenses.contrast import Story, attribute_words, contexts, require_words, story
from eval.lenses.directions import PLACES, Directions, StoryBatch, batch_stories, learn
from eval.lenses.documents import Document, model_name, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.means import mean_record
from eval.lenses.named import Named
from eval.lenses.trace import blocks_of, streams_of
from tokenizer import END_OF_TEXT

LAYERS = 3  # at most so many, evenly spaced
TOKENS = 2500  # of the request for each held-out story
NEW = 40  # tokens of a sample
EFFECTS = ("steered", "random")


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
    found = copy.copy(model)
    found._modules = dict(model._modules)
    found.blocks = nn.ModuleList(blocks)
    return found


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
        rows = torch.arange(len(self.stories), device=before.device)
        own = torch.tensor([s.words[s.cue] for s in self.stories], device=before.device)
        new = torch.tensor([following(words[s.cue], s.words[s.cue]) for s in self.stories])
        new, moved = new.to(before.device), after - before
        return moved[rows, new] - moved[rows, own]


def following(words: dict[str, int], token: int) -> int:
    """The next word of an attribute, after the last the first."""
    tokens = list(words.values())
    return tokens[(tokens.index(token) + 1) % len(tokens)]


def swaps(checkpoint: Checkpoint, count: int, seed: int = 0) -> Iterator[Swap]:
    """For each attribute, held-out stories in `count` contexts, each up to every known cue."""
    tokenizer = checkpoint.tokenizer
    words = attribute_words(tokenizer)
    for attribute, known in words.items():
        found = Swap(attribute, [], [], [])
        names = {token: word for word, token in known.items()}
        for number, (frame, chosen) in enumerate(contexts(tokenizer, count, True, seed)):
            other = names[following(known, known[chosen[attribute]])]
            for cue in words:
                found.stories.append(story(tokenizer, frame, cue, chosen))
                found.swapped.append(story(tokenizer, frame, cue, chosen | {attribute: other}))
                found.number.append(number)
        yield found


def swap_vectors(
    directions: Directions, swap: Swap, words: dict[str, int], place: str, layer: int
) -> Tensor:
    """What each story's stream gets, `(B, 1, D)`: the new word's direction less the old's."""
    means = directions.means[swap.attribute, place][:, layer]
    tokens = list(words.values())
    old = [tokens.index(s.words[swap.attribute]) for s in swap.stories]
    new = [(i + 1) % len(tokens) for i in old]
    return (means[new] - means[old])[:, None]


@torch.no_grad()
def logits_after(
    model: LanguageModel,
    batch: StoryBatch,
    streams: Tensor,
    layer: int,
    vectors: Tensor,
    start: Tensor,
) -> Tensor:
    """Logits after each story `(B, V)`, a vector added to its stream at `layer` from `start` on.

    Args:
        model: any language model.
        batch: the stories.
        streams: `(B, T, D)` at that layer.
        layer: of the streams.
        vectors: `(B, 1, D)`.
        start: `(B,)`.
    """
    positions = torch.arange(streams.shape[1], device=streams.device)
    x = streams + vectors * (positions >= start[:, None])[..., None]
    for block in blocks_of(model)[layer:]:
        x = block(x)
    rows = torch.arange(len(x), device=x.device)
    return model.logits(x[rows, batch.last][:, None])[:, 0]


def spaced_layers(depth: int, most: int = LAYERS) -> list[int]:
    """At most so many layers of 1 ... depth, evenly spaced, the last among them."""
    count = min(depth, most)
    return [round(depth * (i + 1) / count) for i in range(count)]


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """What a direction changes, and what it leaves."""
    found = [r for r in records(documents, "swap") if r["place"] == "word"]
    chart = plots.lines(found, "layer", "change of log-odds, nats", "measured", "by")
    return [
        plots.Figure(
            "steering-swap",
            "Does a swapped feature change what is said, and only that?",
            "One attribute's direction subtracted and another's added at the word: the swapped "
            "part ought to follow, the others to stay; a random direction of equal length beside.",
            plots.chosen(chart, found, "model", "attribute"),
        )
    ]


def sample_table(documents: Sequence[Document]) -> list[Markup]:
    """Text written by steered models."""
    rows = [
        (model_name(document), sample["swapped"], sample["text"])
        for document in documents
        for sample in document["notes"].get("samples", [])
    ]
    told = markup.table(("checkpoint", "swapped", "goes on with"), rows)
    return [markup.folded("text written with features swapped", told)] if rows else []


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
    require_words(checkpoint.tokenizer)
    model, words = checkpoint.model, attribute_words(checkpoint.tokenizer)
    directions = learn(checkpoint, request.seed)
    layers = spaced_layers(len(model.blocks))
    count = max(4, request.tokens // TOKENS)
    generator = torch.Generator().manual_seed(request.seed)
    values = torch.full((len(words), len(PLACES), len(layers), len(EFFECTS), 2), torch.nan)
    figures: list[dict[str, Any]] = []
    for a, swap in enumerate(swaps(checkpoint, count, request.seed)):
        batch = batch_stories(checkpoint, swap.stories)
        streams = streams_of(model, batch.tokens)
        before = batch.at_last(model.logits(streams[-1]))
        told = batch_stories(checkpoint, swap.swapped)
        text = swap.change(words, before, told.at_last(model(told.tokens)))
        figures += _figures(swap, text, {"by": "text"})
        for p, place in enumerate(PLACES):
            start = batch.last if place == "last" else batch.places[swap.attribute]
            for column, layer in enumerate(layers):
                real = swap_vectors(directions, swap, words[swap.attribute], place, layer)
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
        "place": list(PLACES),
        "layer": layers,
        "by": list(EFFECTS),
        "measured": ["swapped", "others"],
    }
    best = layers[int(values[:, 0, :, 0, 0].mean(0).argmax())]
    notes = {"samples": samples(checkpoint, directions, best), "sample_layer": best}
    return Finding({"swap": Named(values, axes)}, figures, notes)


def _figures(swap: Swap, moved: Tensor, place: dict[str, Any]) -> list[dict[str, Any]]:
    """Change of log-odds in the swapped attribute, and its size in the others."""
    own = [s.cue == swap.attribute for s in swap.stories]
    place = {"attribute": swap.attribute, **place}
    rows = []
    for measured, wanted in (("swapped", True), ("others", False)):
        picked = [i for i, mine in enumerate(own) if mine == wanted]
        each = moved[picked].tolist()
        each = each if wanted else [abs(value) for value in each]
        numbers = [swap.number[i] for i in picked]
        record = mean_record(each, numbers) if each else {"value": float("nan"), "n": 0}
        rows.append({"figure": "swap effect", "measured": measured, **place} | record)
    return rows


def samples(
    checkpoint: Checkpoint, directions: Directions, layer: int, coefficient: float = 1.0
) -> list[dict[str, str]]:
    """One held-out story told on as it is, and with each attribute swapped at every position."""
    words = attribute_words(checkpoint.tokenizer)
    ((frame, chosen),) = contexts(checkpoint.tokenizer, 1, True)
    told = story(checkpoint.tokenizer, frame, "name", chosen)
    labels, vectors = ["nothing"], [torch.zeros_like(next(iter(directions.means.values()))[0, 0])]
    for attribute, known in words.items():
        names, means = list(known), directions.means[attribute, "word"][:, layer]
        old = names.index(chosen[attribute])
        new = (old + 1) % len(names)
        labels.append(f"{attribute}: {names[old]} to {names[new]}")
        vectors.append(means[new] - means[old])
    model = steered(checkpoint.model, layer, coefficient * torch.stack(vectors)[:, None])
    prompt = torch.tensor([told.tokens] * len(labels), device=vectors[0].device)
    end = checkpoint.tokenizer.token_to_id(END_OF_TEXT)
    texts = generate(model, prompt, NEW, temperature=0, stop=end)[:, len(told.tokens) :]
    return [
        {"swapped": label, "prompt": told.text, "text": checkpoint.tokenizer.decode(row)}
        for label, row in zip(labels, texts.tolist(), strict=True)
    ]
