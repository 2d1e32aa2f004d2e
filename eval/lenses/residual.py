"""The residual stream: how alike its layers are, what each sublayer adds, and how long it stays.

The stream is a sum of writes, and the final norm with its scale held fixed is linear, so that a
logit is a sum of one number for each write and of constants (Elhage et al., "A Mathematical
Framework for Transformer Circuits", 2021; nostalgebraist's direct logit attribution).

Whether a later stream still has a write is measured twice: by the stream's projection on the
write's direction, as a share of the write (others may have written there too), and by how much of
it goes when the write is left out and everything after it runs again. A share of 1 is untouched,
0 erased, above 1 written again by later layers, below 0 reversed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.lenses.charts import Heat, Lines
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens
from eval.lenses.trace import (
    SUBLAYERS,
    Trace,
    blocks_of,
    constants,
    norm_scale,
    readers,
    require_parts,
)
from eval.sites.circuit import widened

STAYS = ("share still there", "share lost without it")


@torch.no_grad()
def contributions(
    model: LanguageModel, stream: Tensor, parts: dict[str, Tensor], targets: Tensor
) -> tuple[list[str], Tensor]:
    """The direct contribution of every part of the last stream to K logits of every position.

    The parts `(B, T, D)` sum to the stream; the targets are token ids, `(B, T, K)`. A logit counts
    from the mean logit of the vocabulary: the constant that all logits share changes no
    probability. Gives labels of the parts and the constants, and `(labels, B, T, K)` that sum to
    those logits.

    Raises:
        RequestError: a final norm that is not known.
    """
    rows, fixed = readers(model), constants(model)
    above = rows[targets] - rows.mean(dim=0)
    written = torch.einsum("pbtd,btkd->pbtk", torch.stack([*parts.values()]), above)
    biases = [(bias - bias.mean())[targets][None] for bias in fixed.values()]
    return [*parts, *fixed], torch.cat([written * norm_scale(model.norm, stream), *biases])


@torch.no_grad()
def survival(model: LanguageModel, traced: Trace) -> tuple[Tensor, Tensor]:
    """Follows the embedding and every sublayer's write; all are left out in one walk together.

    A write is left out at all positions at once. Writes are in order: the embedding's is in every
    stream, those of block l in the streams from l on.

    Returns:
        By the layer of a later stream, `(2, W, n + 1, B, T)`, NaN before a write is made: `STAYS`,
        the share that the stream has along the write, and the share that it loses without it. And
        squared lengths of the writes, `(W, B, T)`: means are weighted by them, since the shares of
        a tiny write can be anything.
    """
    start = traced.start["embedding"][None]
    writes = widened(torch.cat([start, traced.writes.flatten(0, 1)]))
    squares = writes.square().sum(-1).clamp(min=torch.finfo(writes.dtype).tiny)
    without, fractions = traced.streams[:1] - start, []
    for layer, stream in enumerate(traced.streams):
        if layer:
            x, (mixed, _) = traced.streams[layer - 1], traced.writes[layer - 1]
            block = blocks_of(model)[layer - 1]
            older = block(without.flatten(0, 1)).view_as(without)
            new = block.combine(x, torch.zeros_like(mixed)), x + mixed
            without = torch.cat([older, torch.stack(new)])
        along = torch.stack([stream.expand_as(without), stream - without]) * writes[: len(without)]
        fraction = along.sum(-1) / squares[: len(without)]
        fractions.append(
            F.pad(fraction, (0, 0) * 2 + (0, len(writes) - len(without)), value=torch.nan)
        )
    return torch.stack(fractions, dim=2), squares


def similarity(streams: Tensor, batch: PromptBatch) -> Tensor:
    """Each prompt's mean cosine of two streams at a position: `(S, B, T, D)` to `(S, S, B)`."""
    units = F.normalize(streams, dim=-1) * batch.real[..., None]
    return torch.einsum("sbtd,ubtd->sub", units, units) / batch.real.sum(1)


def update_shares(traced: Trace) -> Tensor:
    """Length of what blocks add, relative to the stream that it is added to, `(n, 3, B, T)`.

    Of each block: its token mixer, its channel mixer, and both together; NaN where the stream is 0,
    as that of a pad whose embedding is.
    """
    before, (mixed, changed) = traced.streams[:-1], traced.writes.unbind(1)
    added = torch.stack([mixed, changed, mixed + changed], dim=1).norm(dim=-1)
    stood = torch.stack([before, before + mixed, before], dim=1).norm(dim=-1)
    return added / stood.where(stood > 0, torch.nan)


@lens(
    "residual",
    "The residual stream",
    order=1,
    main=(("update share", {"part": "block"}), ("cosine to the layer before", {})),
    charts=[
        Heat(
            of="similarity",
            x="layer",
            y="other layer",
            value="cosine",
            up=True,
            title="How alike are the streams of two layers?",
            about="Cosine similarity of a position's vector after one layer and after another, "
            "averaged over positions and prompts.",
        ),
        Lines(
            of="update share",
            y="share of the stream",
            colour="part",
            name="updates",
            title="How much does each part add?",
            about="Length of what is added, as a share of the vector that it is added to.",
        ),
        Lines(
            of="norm after the first position",
            y="mean length",
            name="norm",
            title="How long are the vectors?",
            about="Length of the vectors by layer, averaged over positions but the first.",
        ),
        Heat(
            of="contribution to the answer",
            x="position",
            y="part",
            value="logit",
            diverging=True,
            name="contributions",
            title="Which part writes the answer?",
            about="What each part adds directly to the logit of the model's own next token, above "
            "what it adds to the mean logit, at each position; the parts sum to that logit.",
        ),
        Lines(
            of="share of a write still there",
            y="share still there",
            colour="write",
            ordered=True,
            name="survival",
            title="How long does what is written stay?",
            about="Share of each part's vector still found in later streams, along its own "
            "direction.",
        ),
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """How alike the layers' streams are, what each part adds to them, and how long it stays."""
    require_parts(model := checkpoint.model)
    traced, streams = batch.trace, batch.streams
    layers, later = range(len(streams)), range(1, len(streams))
    pair: dict[str, Any] = {"layer": layers, "other layer": layers, "prompt": batch.labels}
    table.add("similarity", similarity(streams, batch), rows=False, **pair)
    cosine = F.cosine_similarity(streams[1:], streams[:-1], dim=-1)
    table.add("cosine to the layer before", batch.masked(cosine), layer=later, **batch.axes)
    norms = batch.masked(streams.norm(dim=-1))
    table.add("norm", norms, layer=layers, **batch.axes)
    if norms.shape[-1] > 1:
        where = {**batch.axes, "position": range(1, norms.shape[-1])}
        table.add(
            "norm after the first position", norms[..., 1:], rows=False, layer=layers, **where
        )
    fractions, parts = batch.masked(update_shares(traced)), (*SUBLAYERS, "block")
    table.add("update share", fractions, layer=later, part=parts, **batch.axes)
    answers = model.logits(streams[-1]).argmax(-1)[..., None]
    labels, written = contributions(model, streams[-1], traced.parts, answers)
    table.add(
        "contribution to the answer", batch.masked(written[..., 0]), part=labels, **batch.axes
    )
    fractions, squares = survival(model, traced)
    weight = (squares * batch.real)[:, None]
    means = (fractions * weight).sum(-1) / weight.sum(-1)  # (2, W, n + 1, B), of each prompt
    axes: dict[str, Any] = {"layer": layers, "prompt": batch.labels}
    writes = ["embedding", *[*traced.parts][len(traced.start) :]]
    table.add("share of a write still there", means[0], rows=False, write=writes, **axes)
    for name, mean in zip(STAYS, means[:, 1:, 1:], strict=True):
        # The writes of block l are in the streams from l on.
        far = [[mean[part::2].diagonal(d).mean(-1) for d in range(len(later))] for part in (0, 1)]
        by_distance = torch.stack([torch.stack(of_part) for of_part in far])
        axes = {"part": SUBLAYERS, "distance": range(len(later)), "prompt": batch.labels}
        table.add(name, by_distance, **axes)
