"""Pairs of prompts that a prediction is told apart by: what activations are patched between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.checkpoints import Checkpoint
from eval.lenses.contrast import attribute_words, contexts, story
from eval.lenses.lens import Request
from eval.lenses.trace import gather
from eval.lenses.words import word_tokens

SWAPS = 2  # built-in stories for each attribute


@dataclass(frozen=True)
class Answers:
    """The tokens that two prompts are told apart by: the source's and the target's."""

    source: int
    target: int

    def difference(self, logits: Tensor) -> Tensor:
        """By how much the source's answer is above the target's, `(..., V)` to `(...)`."""
        return logits[..., self.source] - logits[..., self.target]


def telling_answers(source: Tensor, target: Tensor) -> Answers:
    """From logits `(V,)` of both: each one's likeliest token, or if that is one and the same, the
    tokens whose log-probabilities differ most.
    """
    own, other = int(source.argmax()), int(target.argmax())
    if own == other:
        difference = source.log_softmax(-1) - target.log_softmax(-1)
        own, other = int(difference.argmax()), int(difference.argmin())
    return Answers(own, other)


@dataclass(frozen=True)
class Pair:
    """Two prompts of equal length, and where they come from.

    Attributes:
        label: of the target.
        kind: `prompts`, `swapped` (one prompt and itself with a name, animal or mood swapped), or
            the attribute that differs in a built-in story.
        source: `(T,)` tokens whose activations are taken.
        target: `(T,)` tokens.
        answers: what tells them apart, if that is known.
    """

    label: str
    kind: str
    source: Tensor
    target: Tensor
    answers: Answers | None = None


def prompt_pairs(checkpoint: Checkpoint, request: Request) -> list[Pair]:
    """Each two consecutive prompts of equal length; or each alone, with one word swapped in it.

    Raises:
        RequestError: a prompt too long, a word of several tokens.
    """
    batch = gather(checkpoint, request.prompts)
    rows = [tokens[: last + 1] for tokens, last in zip(batch.tokens, batch.last, strict=True)]
    words = list(word_tokens(checkpoint, request.words).values())
    answers = Answers(words[0], words[1]) if len(words) > 1 else None
    couples = list(zip(rows[::2], rows[1::2], strict=False))
    equal = bool(couples) and all(len(a) == len(b) for a, b in couples)
    found = []
    if equal:
        for i in range(0, len(rows) - 1, 2):
            label = f"{batch.labels[i + 1]} in {batch.labels[i]}"
            found.append(Pair(label, "prompts", rows[i + 1], rows[i], answers))
    for label, tokens in [] if equal else zip(batch.labels, rows, strict=True):
        if (other := swapped(checkpoint, tokens)) is not None:
            found.append(Pair(label, "swapped", other, tokens, answers))
    return [pair for pair in found if not torch.equal(pair.source, pair.target)]


def swapped(checkpoint: Checkpoint, tokens: Tensor) -> Tensor | None:
    """A prompt with the first name, animal or mood in it swapped for another, wherever it stands.

    None where there is no such word, or no two of them are single tokens.
    """
    groups = [list(words.values()) for words in attribute_words(checkpoint.tokenizer).values()]
    for token in tokens.tolist():
        for group in groups:
            if token in group:
                other = group[(group.index(token) + 1) % len(group)]
                return torch.where(tokens == token, other, tokens)
    return None


def story_pairs(checkpoint: Checkpoint, seed: int = 0, count: int = SWAPS) -> list[Pair]:
    """Built-in stories that differ in one word, each up to the cue where it comes next."""
    tokenizer, pairs = checkpoint.tokenizer, []
    device = checkpoint.model.embedding.weight.device
    for attribute, words in attribute_words(tokenizer).items():
        for number, (frame, chosen) in enumerate(contexts(tokenizer, count, True, seed)):
            names = list(words)
            other = names[(names.index(chosen[attribute]) + 1) % len(names)]
            told = [
                story(tokenizer, frame, attribute, chosen | {attribute: word})
                for word in (other, chosen[attribute])
            ]
            source, target = (torch.tensor(one.tokens, device=device) for one in told)
            answers = Answers(*(one.words[attribute] for one in told))
            pairs.append(Pair(f"{attribute} {number}", attribute, source, target, answers))
    context = checkpoint.config.context
    return [p for p in pairs if len(p.source) == len(p.target) <= context]
