"""The residual stream: how alike its layers are, what each sublayer adds, and how long it stays.

The stream is a sum of writes, and the final norm with its scale held fixed is linear
(`trace.fixed_norm`), so that a logit is a sum of one number for each write and of constants
(Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021; nostalgebraist's direct
logit attribution).

Whether a later stream still has a write is measured twice: by the stream's projection on the
write's direction, as a share of the write (others may have written there too), and by how much of
it goes when the write is left out and everything after it runs again. A share of 1 is untouched,
0 erased, above 1 written again by later layers, below 0 reversed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.lenses.lens import Documents, Finding, Request, averaged, lens
from eval.lenses.trace import (
    SUBLAYERS,
    PromptBatch,
    Trace,
    blocks_of,
    constants,
    fixed_norm,
    gather,
    trace,
)
from eval.models import Checkpoint


@torch.no_grad()
def contributions(
    model: LanguageModel,
    stream: Tensor,
    parts: dict[str, Tensor],
    targets: Tensor,
) -> tuple[list[str], Tensor]:
    """The direct contribution of every part of the last stream to K logits of every position.

    The parts `(B, T, D)` sum to the stream; the targets are token ids, `(B, T, K)`. A logit counts
    from the mean logit of the vocabulary: the constant that all logits share changes no
    probability. Gives labels of the parts and the constants, and `(labels, B, T, K)` that sum to
    those logits.

    Raises:
        RequestError: a final norm that is not known.
    """
    scaled = fixed_norm(model.norm, stream, torch.stack([*parts.values()]))
    rows = model.head.weight[targets] - model.head.weight.mean(dim=0)
    fixed = constants(model)
    biases = [bias[targets] - bias.mean() for bias in fixed.values()]
    written = torch.einsum("pbtd,btkd->pbtk", scaled, rows)
    return [*parts, *fixed], torch.cat([written, *(bias[None] for bias in biases)])


@torch.no_grad()
def survival(model: LanguageModel, traced: Trace) -> tuple[dict[str, Tensor], Tensor]:
    """Follows the embedding and every sublayer's write; all are left out in one walk together.

    A write is left out at all positions at once. Writes are in order: the embedding's is in every
    stream, those of block l in the streams from l on.

    Returns:
        Measures of every write, by the layer of a later stream, `(W, n + 1, B, T)`, NaN before it
        is written: `share still there`, along the write, which the stream has; `share lost without
        it`, which the stream loses. And squared lengths of the writes, `(W, B, T)`: means are
        weighted by them, since the shares of a tiny write can be anything.
    """
    writes = torch.cat([traced.start["embedding"][None], traced.writes.flatten(0, 1)])
    squares = writes.square().sum(-1).clamp(min=torch.finfo(writes.dtype).tiny)
    without, shares = traced.streams[0][None] - writes[:1], []
    for layer, stream in enumerate(traced.streams):
        if layer:
            x, (mixed, _) = traced.streams[layer - 1], traced.writes[layer - 1]
            block = blocks_of(model)[layer - 1]
            older = block(without.flatten(0, 1)).view_as(without)
            new = torch.stack([block.combine(x, torch.zeros_like(mixed)), x + mixed])
            without = torch.cat([older, new])
        written, square = writes[: len(without)], squares[: len(without)]
        along = torch.stack([stream * written, (stream - without) * written]).sum(-1)
        share = along / square
        missing = (0, 0, 0, 0, 0, len(writes) - len(without))
        shares.append(F.pad(share, missing, value=torch.nan))
    names = ("share still there", "share lost without it")
    return dict(zip(names, torch.stack(shares, dim=2), strict=True)), squares


def similarity(streams: Tensor, batch: PromptBatch) -> Tensor:
    """Mean cosine of every two streams at the same position: `(S, B, T, D) -> (S, S)`."""
    units = F.normalize(streams, dim=-1)[:, batch.real]
    return torch.einsum("snd,und->su", units, units) / units.shape[1]


def update_shares(traced: Trace) -> Tensor:
    """Length of what blocks add, relative to the stream that it is added to, `(n, 3, B, T)`.

    Of each block: its token mixer, its channel mixer, and both together.
    """
    before, (mixed, changed) = traced.streams[:-1], traced.writes.unbind(1)
    added = torch.stack([mixed, changed, mixed + changed], dim=1)
    stood = torch.stack([before, before + mixed, before], dim=1)
    norm = added.norm(dim=-1)
    return norm / stood.norm(dim=-1).clamp(min=torch.finfo(norm.dtype).tiny)


def _draw(documents: Documents) -> list[plots.Figure]:
    alike, shares = documents.records("similarity"), documents.records("update share")
    squares = plots.heat(
        alike, "layer", "other layer", "cosine",
        sort_x="ascending", sort_y="descending", size=(280, 280),
    )  # fmt: skip
    norms = [r for r in documents.records("norm") if r["position"] > 0]
    length = plots.lines(averaged(norms, "model", "layer"), "layer", "mean length", "model")
    written = documents.at_tokens(documents.records("contribution to the answer"))
    order = plots.options(written, "part")
    parts = plots.heat(written, "place", "part", "logit", plots.DIVERGING, sort_y=order)
    stays = documents.records("share still there")
    writes = plots.lines(stays, "layer", "share still there", "write", ordered=True)
    return [
        plots.Figure(
            "residual-similarity",
            "How alike are the streams of two layers?",
            "Cosine similarity of a position's vector after one layer and after another, averaged "
            "over positions and prompts.",
            plots.by_model(squares, alike),
        ),
        plots.Figure(
            "residual-updates",
            "How much does each part add?",
            "Length of what is added, as a share of the vector that it is added to.",
            plots.by_model(plots.lines(shares, "layer", "share of the stream", "part"), shares),
        ),
        plots.Figure(
            "residual-norm",
            "How long are the vectors?",
            "Length of the vectors by layer, averaged over positions but the first.",
            length if norms else None,
        ),
        plots.Figure(
            "residual-contributions",
            "Which part writes the answer?",
            "What each part adds directly to the logit of the model's own next token, above what "
            "it adds to the mean logit, at each position; the parts sum to that logit.",
            plots.chosen(parts, written, "model", "prompt"),
        ),
        plots.Figure(
            "residual-survival",
            "How long does what is written stay?",
            "Share of each part's vector still found in later streams, along its own direction.",
            plots.by_model(writes, stays),
        ),
    ]


@lens("residual", "The residual stream", figures=_draw, order=1)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """The stream by layer: likeness, updates, direct contributions."""
    batch = gather(checkpoint, request.prompts)
    traced = trace(checkpoint.model, batch.tokens)
    finding = Finding()
    _look_at_streams(finding, traced, batch)
    _look_at_logits(finding, checkpoint, traced, batch)
    _look_at_survival(finding, checkpoint.model, traced, batch)
    return finding


def _look_at_streams(finding: Finding, traced: Trace, batch: PromptBatch) -> None:
    layers = range(len(traced.streams))
    alike, norms = similarity(traced.streams, batch), traced.streams.norm(dim=-1)
    finding.array("similarity", alike, {"layer": layers, "other layer": layers})
    finding.array("norm", batch.masked(norms), {"layer": layers, **batch.axes})
    finding.rows("norm", batch.mean(norms), {"layer": layers})
    later = {"layer": layers[1:]}
    finding.rows("cosine to the layer before", alike.diagonal(1), later)
    finding.rows("cosine to layer 0", alike[1:, 0], later)
    shares, axes = batch.mean(update_shares(traced)), {**later, "part": (*SUBLAYERS, "block")}
    finding.array("update share", shares, axes)
    finding.rows("update share", shares, axes)


def _look_at_logits(
    finding: Finding,
    checkpoint: Checkpoint,
    traced: Trace,
    batch: PromptBatch,
) -> None:
    model, stream = checkpoint.model, traced.streams[-1]
    answers = model.logits(stream).argmax(-1)
    parts = contributions(model, stream, traced.parts, answers[..., None])
    labels, written = parts[0], parts[1][..., 0]
    where = {"part": labels, **batch.axes}
    finding.array("contribution to the answer", batch.masked(written), where)
    for label, value in zip(labels, batch.mean(written), strict=True):
        layer, _, part = label.partition(" ")
        place = {"layer": int(layer), "part": part} if layer.isdigit() else {"part": label}
        finding.number("contribution to the answer", value, **place)


def _look_at_survival(
    finding: Finding, model: LanguageModel, traced: Trace, batch: PromptBatch
) -> None:
    measures, size = survival(model, traced)
    weight, layers = batch.mean(size)[:, None], range(len(traced.streams))
    writes = ["embedding", *[*traced.parts][len(traced.start) :]]
    means = {name: batch.mean(x * size[:, None]) / weight for name, x in measures.items()}
    there = "share still there"
    finding.array(there, means[there], {"write": writes, "layer": layers})
    for name, mean in means.items():
        for part, sublayer in enumerate(SUBLAYERS):
            for distance in layers[:-1]:  # the writes of block l are in the streams from l on
                later = mean[1 + part :: 2, 1:].diagonal(distance)
                finding.number(name, later.mean(), part=sublayer, distance=distance)
