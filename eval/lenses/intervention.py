"""Patching: a prompt is run with some of its activations taken from another prompt's run.

Mixing between positions happens at the start of a block only. So an activation replaced anywhere in
a block at some position changes the stream after that block at this position, and nothing else in
it; the rest follows from the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.checkpoints import Checkpoint
from eval.circuit import Circuit
from eval.errors import RequestError
from eval.lenses import markup
from eval.lenses.documents import Document, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.means import mean_record
from eval.lenses.named import Named
from eval.lenses.pairs import Answers, Pair, prompt_pairs, story_pairs, telling_answers
from eval.lenses.trace import blocks_of
from eval.lenses.variants import run_variants

PARTS = ("block", "stream", "mixer")
ROWS = 16  # variants of a sweep's pass; in longer prompts several positions are patched together
WHERE = ("changed", "between", "last")


@dataclass(frozen=True)
class Site:
    """Where activations are replaced: as sites of evidence are named, layer 0 is the embedding."""

    layer: int
    part: str = "block"


def replaced(
    model: LanguageModel, source: Tensor, target: Tensor, site: Site
) -> tuple[Tensor, Tensor]:
    """The target's stream after a site's block, as it is, and as the source's activations make it.

    Args:
        model: any language model.
        source: `(T,)` tokens whose activations are taken.
        target: `(T,)` tokens.
        site: which activations.

    Returns:
        Two `(T, D)`; of layer 0, the embeddings.

    Raises:
        RequestError: a site that does not exist in this model, or prompts of unequal length.
    """
    if len(source) != len(target):
        raise RequestError(
            f"prompts of {len(source)} and {len(target)} tokens cannot be patched into each other; "
            "give two of equal length"
        )
    both = torch.stack([target, source])
    outputs = Circuit(model, site.layer, site.part).of_tokens(both)
    if site.layer == 0 or site.part == "block":
        return outputs[0], outputs[1]
    block = blocks_of(model)[site.layer - 1]
    after = Circuit(model, site.layer).of_tokens(both)[0]
    if site.part == "mixer":
        before = Circuit(model, site.layer - 1).of_tokens(both)
        before = model.with_positions(before) if site.layer == 1 else before
        return after, block.combine(before[:1], outputs[1:])[0]
    stream = outputs[1:]
    return after, (stream + block.channel_mixer(block.norm_channel(stream)))[0]


def spans(length: int, first: int, rows: int = ROWS) -> list[range]:
    """Positions from `first` on, in at most so many runs of equal length (but for the last)."""
    size = -(-(length - first) // rows)
    return [range(i, min(i + size, length)) for i in range(first, length, size)]


@torch.no_grad()
def causal_trace(
    model: LanguageModel,
    source: Tensor,
    target: Tensor,
    answers: Answers,
    part: str = "block",
    rows: int = ROWS,
) -> tuple[list[range], Tensor]:
    """How far each site alone moves the target's answer to the source's (Meng et al., 2202.05262).

    The difference of the two answers' logits at the last position, 0 where it stays as in the
    target, 1 where it is as in the source. All positions of a layer go in one batched pass; those
    before the prompts differ cannot matter and are left out.

    Args:
        model: any language model.
        source: `(T,)`.
        target: `(T,)`, another prompt.
        answers: what is told apart.
        part: which activations; layer 0, the embedding, only of `block`.
        rows: at most so many runs of positions, each patched together.

    Returns:
        The runs of positions, and effects `(layers, runs)`.

    Raises:
        RequestError: as `replaced`, or prompts that are equal or answered alike.
    """
    different = (source != target).nonzero() if len(source) == len(target) else target[:0]
    if len(source) == len(target) and not len(different):
        raise RequestError("the two prompts are the same; give two that differ")
    T, L = len(target), len(model.blocks)
    stream, other = replaced(model, source, target, Site(L))
    ends = answers.difference(model.logits(torch.stack([stream, other])[:, -1:])[:, 0])
    low, high = ends.tolist()
    if abs(high - low) < 1e-6:
        raise RequestError(
            "the two prompts are answered alike; give two that differ in their answer"
        )
    runs = spans(T, int(different[0]), rows)
    first = torch.tensor([0, *(run.start for run in runs)], device=target.device)
    effects = []
    for layer in range(0 if part == "block" else 1, L + 1):
        stream, other = replaced(model, source, target, Site(layer, part))
        variants = stream.repeat(len(runs) + 1, 1, 1)
        for row, run in enumerate(runs, 1):
            variants[row, run.start : run.stop] = other[run.start : run.stop]
        logits = run_variants(model, variants, first, layer, T - 1)
        effects.append((answers.difference(logits[1:]) - low) / (high - low))
    return runs, torch.stack(effects)


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """Where a prediction passes through."""
    found: list[plots.Record] = []
    for document in documents:
        pairs = {pair["label"]: pair for pair in document["notes"]["pairs"]}
        for r in records([document], "effect"):
            target = pairs[r["pair"]]["target"]
            if r["position"] < len(target):
                token = markup.visible(target[r["position"]])
                found.append(r | {"token": token, "place": f"{r['position']} {token}"})
    effects = plots.heat(found, "place", "layer", "effect", plots.DIVERGING, sort_y="descending")
    return [
        plots.Figure(
            "intervention-effect",
            "Which layer and position does the answer pass through?",
            "A vector of one prompt's run put into the other's: how far its answer moves over, 1 "
            "being all the way.",
            plots.chosen(effects, found, "model", "pair"),
        )
    ]


@lens(
    name="intervention",
    title="Patching",
    about="which layer and position a prediction passes through, by patching",
    figures=draw,
    order=12,
)
@torch.no_grad()
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Traces each pair of prompts, and built-in stories of which one word is swapped.

    Raises:
        RequestError: a prompt too long, or a word of several tokens.
    """
    model = checkpoint.model
    pairs = prompt_pairs(checkpoint, request) + story_pairs(checkpoint, request.seed)
    if not pairs:
        raise RequestError(
            "nothing to patch: one prompt, in which no name, animal or mood can be swapped; give "
            "two prompts of equal length"
        )
    depth = len(model.blocks) + 1
    length = max(len(pair.target) for pair in pairs)
    values = torch.full((len(pairs), depth, length), torch.nan)
    placed: dict[tuple[str, str, int], list[float]] = {}
    described = []
    for row, pair in enumerate(pairs):
        ends = model(torch.stack([pair.source, pair.target]))[:, -1]
        answers = pair.answers or telling_answers(*ends)
        runs, effects = causal_trace(model, pair.source, pair.target, answers)
        different, T = pair.source != pair.target, len(pair.target)
        values[row, :, :T] = 0.0
        for run, effect in zip(runs, effects.T.cpu(), strict=True):
            values[row, :, run.start : run.stop] = effect[:, None]
        for where, total in _by_place(runs, effects.cpu(), different, T).items():
            for layer, value in enumerate(total.tolist()):
                placed.setdefault((pair.kind, where, layer), []).append(value)
        described.append(_describe(checkpoint, pair, answers))
    axes = {"pair": [p.label for p in pairs], "layer": range(depth), "position": range(length)}
    figures = [
        {"figure": "patching effect", "pairs": kind, "where": where, "layer": layer}
        | mean_record(each)
        for (kind, where, layer), each in placed.items()
    ]
    return Finding({"effect": Named(values, axes)}, figures, {"pairs": described})


def _by_place(
    runs: list[range], effects: Tensor, different: Tensor, length: int
) -> dict[str, Tensor]:
    """Effects summed over runs that hold a changed token, those that hold the last, the others."""
    found = {where: torch.zeros(len(effects)) for where in WHERE}
    for run, effect in zip(runs, effects.T, strict=True):
        changed = bool(different[run.start : run.stop].any())
        where = "last" if run.stop == length else "changed" if changed else "between"
        found[where] += effect
    return found


def _describe(checkpoint: Checkpoint, pair: Pair, answers: Answers) -> dict[str, object]:
    source, target = checkpoint.pieces([answers.source, answers.target])
    return {
        "label": pair.label,
        "kind": pair.kind,
        "source": checkpoint.pieces(pair.source.tolist()),
        "target": checkpoint.pieces(pair.target.tolist()),
        "answers": {"source": source, "target": target},
    }
