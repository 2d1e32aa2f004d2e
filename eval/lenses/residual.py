"""The residual stream: how alike its layers are, what each sublayer adds, and how long it stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eval import plots
from eval.checkpoints import Checkpoint
from eval.lenses.contribution import contributions, split_parts
from eval.lenses.documents import Document, at_tokens, averaged, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.named import Named
from eval.lenses.survival import survival
from eval.lenses.trace import SUBLAYERS, Batch, Trace, gather, trace
from eval.lenses.words import word_tokens

UPDATES = ("token mixer", "channel mixer", "block")


@dataclass(frozen=True)
class Updates:
    """Size and direction of what blocks and their sublayers add, each `(n, 3, B, T)`.

    Attributes:
        norm: length of the update.
        share: that, relative to the stream it is added to.
        along: cosine to the stream it is added to.
        final: cosine to the last stream.
    """

    norm: Tensor
    share: Tensor
    along: Tensor
    final: Tensor


def similarity(streams: Tensor, batch: Batch) -> Tensor:
    """Cosine of every two streams at the same position, meaned: `(S, B, T, D) -> (S, S)`."""
    units = torch.nn.functional.normalize(streams, dim=-1)[:, batch.real]
    return torch.einsum("snd,und->su", units, units) / units.shape[1]


def sublayer_streams(traced: Trace) -> tuple[list[str], Tensor]:
    """Labels and the stream before and after every token mixer, `(2n + 1, B, T, D)`.

    Where both mixers of a block read the same stream, the one between is nobody's input.
    """
    between = traced.streams[:-1] + traced.writes[:, 0]
    pairs = torch.stack([between, traced.streams[1:]], dim=1).flatten(0, 1)
    depth = range(1, len(traced.writes) + 1)
    labels = ["0", *(label for layer in depth for label in (f"{layer} between", str(layer)))]
    return labels, torch.cat([traced.streams[:1], pairs])


def updates(traced: Trace) -> Updates:
    """Of each block: its token mixer, its channel mixer, and both together."""
    before, (mixed, changed) = traced.streams[:-1], traced.writes.unbind(1)
    added = torch.stack([mixed, changed, mixed + changed], dim=1)
    stood = torch.stack([before, before + mixed, before], dim=1)
    cosine = torch.nn.functional.cosine_similarity
    norm = added.norm(dim=-1)
    return Updates(
        norm=norm,
        share=norm / stood.norm(dim=-1).clamp(min=torch.finfo(norm.dtype).tiny),
        along=cosine(added, stood, dim=-1),
        final=cosine(added, traced.streams[-1].expand_as(added), dim=-1),
    )


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """The figures, each over all checkpoints."""
    alike = records(documents, "similarity")
    norms = [r for r in records(documents, "norm") if r["position"] > 0]
    shares = records(documents, "update share")
    written = at_tokens(documents, records(documents, "contribution to the answer"))
    squares = plots.heat(
        alike,
        "layer",
        "other layer",
        "cosine",
        sort_x="ascending",
        sort_y="descending",
        size=(280, 280),
    )
    parts = plots.heat(
        written, "place", "part", "logit", plots.DIVERGING, sort_y=plots.options(written, "part")
    )
    length = plots.lines(averaged(norms, "model", "layer"), "layer", "mean length", "model")
    stays = records(documents, "share still there")
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


@lens(
    name="residual",
    title="The residual stream",
    about="the stream by layer: likeness, updates, direct contributions",
    figures=draw,
    order=1,
)
@torch.no_grad()
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Looks at the streams of the prompts.

    Raises:
        RequestError: a prompt too long, a word of several tokens, or a final norm not known.
    """
    batch = gather(checkpoint, request.prompts)
    words = word_tokens(checkpoint, request.words)
    traced = trace(checkpoint.model, batch.tokens)
    finding = Finding()
    _look_at_streams(finding, traced, batch)
    _look_at_logits(finding, checkpoint, traced, batch, words)
    _look_at_survival(finding, checkpoint, traced, batch)
    finding.notes["tokens"] = [checkpoint.pieces(list(p.tokens)) for p in request.prompts]
    return finding


def _look_at_streams(finding: Finding, traced: Trace, batch: Batch) -> None:
    figures, layers = finding.figures, range(len(traced.streams))
    alike = similarity(traced.streams, batch)
    labels, streams = sublayer_streams(traced)
    norms, added = traced.streams.norm(dim=-1), updates(traced)
    finding.arrays["similarity"] = Named(alike, {"layer": layers, "other layer": layers})
    finding.arrays["similarity of sublayers"] = Named(
        similarity(streams, batch), {"stream": labels, "other stream": labels}
    )
    where = {"layer": layers, "prompt": batch.labels, "position": batch.positions}
    finding.arrays["norm"] = Named(batch.masked(norms), where)
    figures += [
        {"figure": "norm", "layer": layer, "value": float(value)}
        for layer, value in enumerate(batch.mean(norms))
    ]
    figures += [
        {"figure": name, "layer": layer, "value": float(alike[layer, other])}
        for layer in layers[1:]
        for name, other in (("cosine to the layer before", layer - 1), ("cosine to layer 0", 0))
    ]
    for name, values in (
        ("update norm", added.norm),
        ("update share", added.share),
        ("update along the stream", added.along),
        ("update along the last stream", added.final),
    ):
        means = Named(batch.mean(values), {"layer": layers[1:], "part": UPDATES})
        finding.arrays[name] = means
        figures += [{"figure": name, **record} for record in means.records()]


def _look_at_logits(
    finding: Finding, checkpoint: Checkpoint, traced: Trace, batch: Batch, words: dict[str, int]
) -> None:
    figures, model = finding.figures, checkpoint.model
    answers = model.logits(traced.streams[-1]).argmax(-1)
    chosen = answers.new_tensor([*words.values()]).expand(*answers.shape, -1)
    targets = torch.cat([answers[..., None], chosen], dim=-1)
    labels, found = contributions(model, traced, targets, centred=True)
    per_part = found.movedim(-1, 0).transpose(1, 2)  # (K, B, P, T)
    per_part = per_part.masked_fill(~batch.real[:, None], torch.nan)
    where = {"prompt": batch.labels, "part": labels, "position": batch.positions}
    finding.arrays["contribution to the answer"] = Named(per_part[0], where)
    if words:
        finding.arrays["contribution to words"] = Named(per_part[1:], {"word": [*words], **where})
    figures += [
        {"figure": "contribution to the answer", **_place(part), "value": float(value)}
        for part, value in zip(labels, batch.mean(found[..., 0]), strict=True)
    ]
    split = split_parts(model, traced)
    if split[0] != traced.labels:
        labels, found = contributions(model, traced, targets[..., :1], split, centred=True)
        finding.arrays["contribution of heads"] = Named(batch.mean(found[..., 0]), {"part": labels})
    finding.notes["answers"] = [
        checkpoint.pieces(row[real].tolist()) for row, real in zip(answers, batch.real, strict=True)
    ]


def _place(label: str) -> dict[str, str | int]:
    """A part's label as fields of a row."""
    layer, _, part = label.partition(" ")
    return {"layer": int(layer), "part": part} if layer.isdigit() else {"part": label}


def _look_at_survival(
    finding: Finding, checkpoint: Checkpoint, traced: Trace, batch: Batch
) -> None:
    stays = survival(checkpoint.model, traced)
    layers = range(len(traced.streams))
    where = {"write": stays.labels, "layer": layers}
    measures = {
        "share still there": stays.projection,
        "share lost without it": stays.removed,
        "change without it": stays.effect,
    }
    size = batch.mean(stays.size)[:, None]
    for name, values in measures.items():
        mean = batch.mean(values.nan_to_num() * stays.size[:, None]) / size
        finding.arrays[name] = Named(mean, where)
        means = finding.arrays[name].values
        for write, born in enumerate(stays.born):
            means[write, :born] = torch.nan
    for name in ("share still there", "share lost without it"):
        means = finding.arrays[name].values
        for part, name_of in enumerate(SUBLAYERS):
            for distance in range(len(layers) - 1):
                later = [
                    means[1 + 2 * (born - 1) + part, born + distance]
                    for born in layers[1 : len(layers) - distance]
                ]
                finding.figures.append(
                    {
                        "figure": name,
                        "part": name_of,
                        "distance": distance,
                        "value": float(torch.stack(later).mean()),
                    }
                )
