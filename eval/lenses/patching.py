"""Patching: a prompt is run with some of its activations taken from another prompt's run.

Mixing between positions happens at the start of a block only. So an activation replaced anywhere in
a block at some position changes the stream after that block at this position, and nothing else in
it; the rest follows from the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel
from eval import RequestError
from eval.lenses.charts import Heat
from eval.lenses.lens import Request, lens, word_tokens
from eval.lenses.stories import swaps
from eval.lenses.table import Table
from eval.lenses.trace import PromptBatch, run_on, streams_of
from eval.models import Checkpoint

SWAPS = 2  # built-in stories for each attribute
ROWS = 16  # variants of a sweep's pass; in longer prompts several positions are patched together
WHERE = ("changed", "between", "last")
"""Positions by what they hold: tokens that differ, the last one, and all others."""


class Answers(NamedTuple):
    """Two tokens whose logits are compared: the answer to the source, and to the target."""

    source: int
    target: int

    def difference(self, logits: Tensor) -> Tensor:
        """By how much the source's answer is above the target's, `(..., V)` to `(...)`."""
        return logits[..., self.source] - logits[..., self.target]


def telling_answers(source: Tensor, target: Tensor) -> Answers:
    """The likeliest token of each, from logits `(V,)`; of equal ones, those that differ most.

    The latter are the two tokens whose log-probabilities differ most between the prompts.
    """
    answer, other = int(source.argmax()), int(target.argmax())
    if answer == other:
        difference = source.log_softmax(-1) - target.log_softmax(-1)
        answer, other = int(difference.argmax()), int(difference.argmin())
    return Answers(answer, other)


class Pair(NamedTuple):
    """Two prompts of equal length, and where they come from.

    The kind is `prompts`, or the attribute that differs in a built-in story.
    """

    label: str  # of the target
    kind: str
    source: Tensor  # (T,) tokens whose activations are taken
    target: Tensor  # (T,) tokens
    answers: Answers | None = None  # if they are known


def prompt_pairs(checkpoint: Checkpoint, batch: PromptBatch, request: Request) -> list[Pair]:
    """Each two consecutive prompts that have as many tokens and differ.

    Raises:
        RequestError: a word of several tokens.
    """
    rows = [tokens[: last + 1] for tokens, last in zip(batch.tokens, batch.last, strict=True)]
    words = list(word_tokens(checkpoint, request.words).values())
    answers = Answers(words[0], words[1]) if len(words) > 1 else None
    named = list(zip(batch.labels, rows, strict=True))
    return [
        Pair(f"{other} in {label}", "prompts", source, target, answers)
        for (label, target), (other, source) in zip(named[::2], named[1::2], strict=False)
        if len(source) == len(target) and not torch.equal(source, target)
    ]


def story_pairs(checkpoint: Checkpoint, seed: int) -> list[Pair]:
    """Built-in stories that differ in one word, each up to the cue where it comes next."""
    device, pairs = checkpoint.model.embedding.weight.device, []
    for attribute, number, target, source in swaps(checkpoint.tokenizer, SWAPS, seed):
        fits = len(source.tokens) == len(target.tokens) <= checkpoint.config.context
        if target.cue == attribute and fits:
            answers = Answers(source.words[attribute], target.words[attribute])
            rows = (torch.tensor(one.tokens, device=device) for one in (source, target))
            pairs.append(Pair(f"{attribute} {number}", attribute, *rows, answers=answers))
    return pairs


def spans(length: int, first: int, rows: int = ROWS) -> list[range]:
    """Positions from `first` on, in at most so many runs of equal length (but for the last)."""
    size = -(-(length - first) // rows)
    return [range(i, min(i + size, length)) for i in range(first, length, size)]


@torch.no_grad()
def causal_trace(
    model: LanguageModel,
    source: Tensor,
    target: Tensor,
    answers: Answers | None = None,
    rows: int = ROWS,
) -> tuple[Answers, list[range], Tensor] | None:
    """How far each site alone moves the target's answer to the source's (Meng et al., 2202.05262).

    The difference of the two answers' logits at the last position, 0 where it stays as in the
    target, 1 where it is as in the source. The prompts `(T,)` differ. All positions of a layer go
    in one batched pass; those before they differ cannot matter and are left out.

    Returns:
        The answers, by default `telling_answers`; at most so many runs of positions, each patched
        together; and effects `(n + 1, runs)`, layer 0 the embedding. None for prompts that are
        answered alike, between which nothing moves.
    """
    streams, others = streams_of(model, torch.stack([target, source])).unbind(1)
    ends = model.logits(torch.stack([streams[-1, -1:], others[-1, -1:]]))[:, 0]
    answers = answers or telling_answers(ends[1], ends[0])
    low, high = answers.difference(ends).tolist()
    if abs(high - low) < 1e-6:
        return None
    runs = spans(len(target), int((source != target).nonzero()[0]), rows)
    effects = []
    for layer, (stream, other) in enumerate(zip(streams, others, strict=True)):
        variants = stream.repeat(len(runs), 1, 1)
        for row, run in enumerate(runs):
            variants[row, run.start : run.stop] = other[run.start : run.stop]
        logits = run_on(model, variants, layer)
        effects.append((answers.difference(logits) - low) / (high - low))
    return answers, runs, torch.stack(effects)


@lens(
    "patching",
    "Patching",
    order=9,
    charts=[
        Heat(
            of="effect",
            x="position",
            y="layer",
            value="effect",
            diverging=True,
            up=True,
            title="Which layer and position does the answer pass through?",
            about="A vector of one prompt's run put into the other's: how far its answer moves "
            "over, 1 being all the way.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Which layer and position a prediction passes through, by patching."""
    model, layers = checkpoint.model, range(len(checkpoint.model.blocks) + 1)
    pairs = prompt_pairs(checkpoint, batch, request) + story_pairs(checkpoint, request.seed)
    if not pairs:
        raise RequestError(
            "nothing to patch: the model can be told none of the built-in stories, and no two "
            "prompts have as many tokens; give two prompts of equal length"
        )
    sums: dict[str, dict[str, Tensor]] = {}
    lines = []
    for pair in pairs:
        other = checkpoint.tokenizer.decode(pair.source.tolist())
        traced = causal_trace(model, pair.source, pair.target, pair.answers)
        if traced is None:
            lines.append([pair.label, other, "answered alike: left out"])
            continue
        answers, runs, effects = traced
        different, T = pair.source != pair.target, len(pair.target)
        values = torch.zeros(len(layers), T)
        total = {where: torch.zeros(len(layers)) for where in WHERE}
        for run, effect in zip(runs, effects.T.cpu(), strict=True):
            values[:, run.start : run.stop] = effect[:, None]
            changed = bool(different[run.start : run.stop].any())
            total["last" if run.stop == T else "changed" if changed else "between"] += effect
        position = range(T)
        table.add("effect", values, rows=False, pair=pair.label, layer=layers, position=position)
        table.pieces[pair.label] = checkpoint.pieces(pair.target.tolist())
        sums.setdefault(pair.kind, {})[pair.label] = torch.stack([*total.values()])
        lines.append([pair.label, other, checkpoint.pieces([answers.target, answers.source])])
    if not sums:
        raise RequestError(
            "the two prompts of every pair are answered alike; give two that differ in their answer"
        )
    for kind, each in sums.items():
        stacked = torch.stack([*each.values()])
        place = {"pair": [*each], "where": WHERE, "layer": layers, "pairs": kind}
        table.add("patching effect", stacked, **place)
    columns = ("pair", "patched from", "answers: its own, the other's")
    table.say("pairs of prompts", columns, lines)
