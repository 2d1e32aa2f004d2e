"""Patching: a prompt is run with some of its activations taken from another prompt's run.

Mixing between positions happens at the start of a block only. So an activation replaced anywhere in
a block at some position changes the stream after that block at this position, and nothing else in
it; the rest follows from the stream.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.lenses.charts import Heat
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens, word_tokens
from eval.lenses.stories import swaps
from eval.lenses.trace import TOGETHER, run_on, trace
from eval.messages import RequestError, say_once
from eval.sites.circuit import widened

SWAPS = 2  # built-in stories for each attribute
WHERE = ("changed", "between", "last")
"""Positions by what they hold: tokens that differ, all others, and the last one."""

Answers = tuple[int, int]
"""Two tokens whose logits are compared: the answer to the source, and to the target."""


def telling_answers(source: Tensor, target: Tensor) -> Answers:
    """The likeliest token of each, from logits `(V,)`; of equal ones, those that differ most.

    The latter are the two tokens whose log-probabilities differ most between the prompts.
    """
    answer, other = int(source.argmax()), int(target.argmax())
    if answer == other:
        difference = source.log_softmax(-1) - target.log_softmax(-1)
        answer, other = int(difference.argmax()), int(difference.argmin())
    return answer, other


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
    """The first prompt and the second, the third and the fourth, ..., if as long and different.

    A text that was given again stands in each of its pairs; a pair that was, is one. The words
    asked for are the answers where they are two, or one for each text: see `pair_answers`; a line
    says where they are not. Another names each of several given texts that is in no pair.

    Raises:
        RequestError: a word of several tokens, two answers of a pair that are one token, or several
            given texts of which no two are a pair.
    """
    rows = [tokens[: last + 1] for tokens, last in zip(batch.tokens, batch.last, strict=True)]
    order = request.order or range(len(rows))
    own = len(rows) > 1 and {prompt.kind for prompt in request.prompts} == {"text"}
    known = word_tokens(checkpoint, request.words)
    words = [known[word] for word in request.words]
    fits = len(words) == 2 or (own and len(words) == len(order))
    if own and words and not fits:
        say_once(
            f"--words: {len(words)} are given; patching takes one for each text ({len(order)}), or "
            "two for all pairs: it compares the model's own answers"
        )
    answers = pair_answers(words if fits else [], len(order))
    pairs: dict[tuple[int, int, Answers | None], Pair] = {}
    left_out = dict(enumerate(order))
    for number, (at, other) in enumerate(zip(order[::2], order[1::2], strict=False)):
        if len(rows[at]) == len(rows[other]) and not rows[at].equal(rows[other]):
            key = at, other, answers[number]
            label = f"{batch.labels[other]} in {batch.labels[at]}"
            if key not in pairs and label in {pair.label for pair in pairs.values()}:
                label += f", pair {number}"  # by other answers
            pairs.setdefault(key, Pair(label, "prompts", rows[other], rows[at], answers[number]))
            del left_out[2 * number], left_out[2 * number + 1]
    if own:
        alone = dict.fromkeys(left_out.values())
        said = ", ".join(f"{batch.labels[row]} has {len(rows[row])} tokens" for row in alone)
        if not pairs:
            raise RequestError(
                "--text: patching pairs the first text with the second, the third with the fourth, "
                f"...; no two differ and have as many tokens ({said}); give two of equal length"
            )
        if left_out:
            say_once(
                "--text: patching left out texts whose partner is missing, the same, or of another "
                f"length ({said})"
            )
    return list(pairs.values())


def pair_answers(words: Sequence[int], texts: int) -> list[Answers | None]:
    """The answers of each pair of so many texts, from tokens in the order of the texts.

    There is a token for each text, or two for all pairs, the first answering the target; without
    any, a pair has none.

    Raises:
        RequestError: a pair's two are the same.
    """
    pairs = texts // 2
    if not words:
        return [None] * pairs
    words = words if len(words) == texts else [*words] * pairs
    answers = [(source, target) for target, source in zip(words[::2], words[1::2], strict=False)]
    if any(source == target for source, target in answers):
        raise RequestError(
            "--words: patching compares a pair's two answers, and those of a pair are one token; "
            "give two that differ"
        )
    return [*answers]


def story_pairs(checkpoint: Checkpoint, seed: int) -> list[Pair]:
    """Built-in stories that differ in one word, each up to the cue where it comes next."""
    device, pairs = checkpoint.model.embedding.weight.device, []
    for attribute, number, target, source in swaps(checkpoint.tokenizer, SWAPS, seed):
        fits = len(source.tokens) == len(target.tokens) <= checkpoint.config.context
        if target.cue == attribute and fits:
            answers = (source.words[attribute], target.words[attribute])
            rows = (torch.tensor(story.tokens, device=device) for story in (source, target))
            pairs.append(Pair(f"{attribute} {number}", attribute, *rows, answers=answers))
    return pairs


@torch.no_grad()
def causal_trace(
    model: LanguageModel, source: Tensor, target: Tensor, answers: Answers | None = None
) -> tuple[Answers, Tensor] | None:
    """How far each site alone moves the target's answer to the source's (Meng et al., 2202.05262).

    The difference of the two answers' logits at the last position, 0 where it stays as in the
    target, 1 where it is as in the source. The prompts `(T,)` differ. Every position is patched
    alone; those before the prompts differ cannot matter: their effect is 0.

    Returns:
        The answers, by default `telling_answers`, and effects `(n + 1, T)`, layer 0 the embedding.
        None for prompts that are answered alike, between which nothing moves.
    """
    streams, others = trace(model, torch.stack([target, source])).streams.unbind(1)
    ends = widened(model.logits(torch.stack([streams[-1, -1:], others[-1, -1:]]))[:, 0])
    mine, its = answers = answers or telling_answers(ends[1], ends[0])
    low, high = (ends[:, mine] - ends[:, its]).tolist()
    if abs(high - low) < 1e-6:
        return None
    T = len(target)
    effects, positions = torch.zeros(len(streams), T), torch.arange(T, device=target.device)
    for layer, (stream, other) in enumerate(zip(streams, others, strict=True)):
        for patched in positions[int((source != target).nonzero()[0]) :].split(TOGETHER // T or 1):
            variants = stream.repeat(len(patched), 1, 1)
            variants[positions[: len(patched)], patched] = other[patched]
            logits = run_on(model, variants, layer)
            moved = (logits[:, mine] - logits[:, its] - low) / (high - low)
            effects[layer, patched.cpu()] = moved.float().cpu()
    return answers, effects


@lens(
    "patching",
    "Patching",
    order=9,
    main=(("patching effect", {"where": "changed"}), ("patching effect", {"where": "last"})),
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
    layers = range(len(checkpoint.model.blocks) + 1)
    pairs = prompt_pairs(checkpoint, batch, request) + story_pairs(checkpoint, request.seed)
    if not pairs:
        raise RequestError(
            "nothing to patch: the model can be told none of the built-in stories, and no two "
            "prompts have as many tokens; give two prompts of equal length"
        )
    sums: dict[str, dict[str, Tensor]] = {}
    lines = []
    for pair in pairs:
        other = checkpoint.tokenizer.decode(pair.source.tolist(), skip_special_tokens=False)
        traced = causal_trace(checkpoint.model, pair.source, pair.target, pair.answers)
        if traced is None:
            lines.append([pair.label, other, "answered alike: left out"])
            continue
        (mine, its), effects = traced
        of, T = (pair.source == pair.target).long().cpu(), len(pair.target)
        of[-1] = WHERE.index("last")
        total = effects @ F.one_hot(of, len(WHERE)).to(effects)
        sums.setdefault(pair.kind, {})[pair.label] = total
        table.add("effect", effects, rows=False, pair=pair.label, layer=layers, position=range(T))
        table.pieces[pair.label] = checkpoint.pieces(pair.target.tolist())
        lines.append([pair.label, other, checkpoint.words([its, mine])])
    if not sums:
        raise RequestError(
            "the two prompts of every pair are answered alike; give two that differ in their answer"
        )
    for kind, totals in sums.items():
        axes = {"pair": [*totals], "layer": layers, "where": WHERE, "pairs": kind}
        table.add("patching effect", torch.stack([*totals.values()]), **axes)
    columns = ("pair", "patched from", "answers: its own, the other's")
    table.say("pairs of prompts", columns, lines)
