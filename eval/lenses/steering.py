"""Steering: a direction added to the stream of every position, while a model reads and writes.

    model = steered(model, layer=3, vector=coefficient * direction)
    generate(model, tokens, 40)

The lens learns directions from stories that differ in one word, and swaps a name, an animal or a
mood: one word's direction is subtracted, another's added. The figures say whether the answer
follows in that attribute, and stays in the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor, nn

from arch import LanguageModel, generate
from eval import RequestError, plots
from eval.lenses.lens import Documents, Finding, Request, lens
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
from eval.lenses.trace import (
    PromptBatch,
    blocks_of,
    read_on,
    side_by_side,
    spaced_layers,
    states_of,
)
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


def batch_stories(checkpoint: Checkpoint, stories: list[Story]) -> PromptBatch:
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
def learn_directions(checkpoint: Checkpoint, seed: int = 0) -> Directions:
    """Means over the same contexts for every word of an attribute, so that only the word differs.

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
        batch = batch_stories(checkpoint, stories)
        streams = batch.streams
        rows, places = range(len(stories)), [one.places[attribute] for one in stories]
        for place, position in (("word", places), ("last", batch.last)):
            read = streams[:, rows, position].unflatten(1, (len(words), len(frames)))
            means[attribute, place] = read.mean(2).transpose(0, 1)
    return means


class SteeredBlock(nn.Module):
    """A block with a vector added to its outputs, `(D,)` or one for each row, `(B, 1, D)`."""

    def __init__(self, block: nn.Module, vector: Tensor) -> None:
        super().__init__()
        self.block, self.vector = block, vector

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.block(x) + self.vector

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """As `Block.prefix`."""
        y, after = self.block.prefix(x, state)  # pyright: ignore[reportCallIssue]
        return y + self.vector, after

    def step(self, x: Tensor, state: Any) -> Tensor:
        """As `Block.step`."""
        return self.block.step(x, state) + self.vector  # pyright: ignore[reportCallIssue]


def steered(model: LanguageModel, layer: int, vector: Tensor) -> LanguageModel:
    """The same model, the same weights, with a vector added after block `layer` (1 or more).

    The vector is as of `SteeredBlock`. It reads, predicts and generates like any other.
    """
    blocks = blocks_of(model)
    blocks[layer - 1] = SteeredBlock(blocks[layer - 1], vector)
    changed = copy.copy(model)
    changed._modules = dict(model._modules)
    changed.blocks = nn.ModuleList(blocks)
    return changed


def log_odds_change(
    words: dict[str, dict[str, int]], stories: list[Story], before: Tensor, after: Tensor
) -> Tensor:
    """By how much log-odds move from a word to the next one of the cue's attribute, `(B,)`.

    Where the cue asks for a swapped attribute, that is from the old word to the new. Logits after
    the stories are `(B, V)`.
    """
    rows, moved = range(len(stories)), after - before
    old = [s.words[s.cue] for s in stories]
    new = [following(words[s.cue], s.words[s.cue]) for s in stories]
    return moved[rows, new] - moved[rows, old]


def swap_vectors(means: Tensor, words: dict[str, int], old: Sequence[int]) -> Tensor:
    """What turns B old words into those that follow them: the new direction less the old.

    The means are those of the attribute's words, `(words, D)`; the result is `(B, 1, D)`.
    """
    tokens = list(words.values())
    places = [tokens.index(token) for token in old]
    return (means[[(i + 1) % len(tokens) for i in places]] - means[places])[:, None]


@torch.no_grad()
def logits_after(batch: PromptBatch, layer: int, vectors: Tensor, start: Tensor) -> Tensor:
    """Logits after each story, `(B, K, V)`, with each of K vectors `(B, K, D)` added to its stream.

    They are added after block `layer`, from each story's position `start` `(B,)` on; what all
    stories have before is not computed again.
    """
    model, (B, K, _), first = batch.model, vectors.shape, int(start.min())
    states = states_of(model, batch.streams, layer, first) if first else []
    stream = batch.streams[layer, :, None, first:]
    later = torch.arange(stream.shape[2], device=start.device) >= (start - first)[:, None]
    x = stream + vectors[:, :, None] * later[:, None, :, None]
    last = (batch.last - first).repeat_interleave(K)
    return read_on(model, x.flatten(0, 1), layer, states, last).unflatten(0, (B, K))


def _draw(documents: Documents) -> list[plots.Figure]:
    rows = documents.records("swap", place="word")
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


def _sample_table(documents: Documents) -> list[Markup]:
    return documents.table(
        "samples",
        "text written with features swapped",
        ("swapped", "goes on with"),
        lambda sample: (sample["swapped"], sample["text"]),
    )


@lens("steering", "Swapped features", figures=_draw, texts=_sample_table, order=13)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Whether swapping a name, animal or mood inside changes what is said, and only it."""
    model, words, finding = checkpoint.model, require_words(checkpoint.tokenizer), Finding()
    directions = learn_directions(checkpoint, request.seed)
    layers = spaced_layers(len(model.blocks), LAYERS)
    pairs = swaps(checkpoint.tokenizer, max(4, request.tokens // TOKENS), request.seed)
    generator = torch.Generator().manual_seed(request.seed)
    values = torch.full((len(words), len(PLACES), len(layers), len(EFFECTS), 2), torch.nan)
    plain = batch_stories(checkpoint, [p.story for p in pairs if p.attribute == pairs[0].attribute])
    other = batch_stories(checkpoint, [pair.swapped for pair in pairs])
    before = model.logits(plain.at_last(plain.streams[-1])[:, None])[:, 0]
    swapped = read_on(model, model.with_positions(model.embed(other.tokens)), last=other.last)
    for a, attribute in enumerate(words):
        asked = [pair for pair in pairs if pair.attribute == attribute]
        originals = [pair.story for pair in asked]
        after = swapped[a * len(asked) :][: len(asked)]
        _add_effect(finding, asked, log_odds_change(words, originals, before, after), by="text")
        old = [one.words[attribute] for one in originals]
        at_word = torch.tensor([one.places[attribute] for one in originals]).to(plain.last)
        for p, (place, start) in enumerate(zip(PLACES, (at_word, plain.last), strict=True)):
            means = directions[attribute, place]
            for column, layer in enumerate(layers):
                real = swap_vectors(means[:, layer], words[attribute], old)
                noise = torch.randn(real.shape, generator=generator).to(real)
                noise *= real.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
                after = logits_after(plain, layer, torch.cat([real, noise], dim=1), start)
                for e, by in enumerate(EFFECTS):
                    moved = log_odds_change(words, originals, before, after[:, e])
                    _add_effect(finding, asked, moved, by=by, place=place, layer=layer)
                    means_of = [record["value"] for record in finding.figures[-2:]]
                    values[a, p, column, e] = torch.tensor(means_of)
    axes = {
        "attribute": list(words),
        "place": PLACES,
        "layer": layers,
        "by": EFFECTS,
        "measured": ("swapped", "others"),
    }
    finding.array("swap", values, axes)
    best = layers[int(values[:, 0, :, 0, 0].mean(0).argmax())]
    finding.notes["samples"] = samples(checkpoint, directions, best)
    return finding


def _add_effect(finding: Finding, asked: list[Swap], moved: Tensor, **place: Any) -> None:
    """Change of log-odds in the swapped attribute, and its size in the others."""
    for measured, changes in (("swapped", moved), ("others", moved.abs())):
        chosen = [
            (change, pair.number)
            for change, pair in zip(changes.tolist(), asked, strict=True)
            if (pair.story.cue == pair.attribute) == (measured == "swapped")
        ]
        about = {"measured": measured, "attribute": asked[0].attribute, **place}
        finding.mean("swap effect", [c for c, _ in chosen], [n for _, n in chosen], **about)


def samples(checkpoint: Checkpoint, directions: Directions, layer: int) -> list[dict[str, str]]:
    """One held-out story told on as it is, and with each attribute swapped at every position."""
    tokenizer, words = checkpoint.tokenizer, attribute_words(checkpoint.tokenizer)
    ((frame, chosen),) = contexts(tokenizer, 1, True)
    start = tell_story(tokenizer, frame, "name", chosen)
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
