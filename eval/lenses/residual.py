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

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from arch.mixers import CausalAttention, Headed, Parallel, SideBySide
from eval import plots
from eval.lenses.lens import Documents, Finding, Request, averaged, lens, word_tokens
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

NOT_A_ROW = "change without it"
"""The measure of survival that is an array alone."""


@torch.no_grad()
def contributions(
    model: LanguageModel,
    stream: Tensor,
    parts: dict[str, Tensor],
    targets: Tensor,
    centred: bool = False,
) -> tuple[list[str], Tensor]:
    """The direct contribution of every part of the last stream to K logits of every position.

    The parts `(B, T, D)` sum to the stream; the targets are token ids, `(B, T, K)`. If centred, a
    logit counts from the mean logit of the vocabulary: the constant that all logits share changes
    no probability. Gives labels of the parts and the constants, and `(labels, B, T, K)` that sum to
    the logits.

    Raises:
        RequestError: a final norm that is not known.
    """
    scaled = fixed_norm(model.norm, stream, torch.stack([*parts.values()]))
    rows = model.head.weight[targets]
    fixed = constants(model)
    biases = [bias[targets] for bias in fixed.values()]
    if centred:
        rows = rows - model.head.weight.mean(dim=0)
        biases = [b - bias.mean() for b, bias in zip(biases, fixed.values(), strict=True)]
    written = torch.einsum("pbtd,btkd->pbtk", scaled, rows)
    return [*parts, *fixed], torch.cat([written, *(bias[None] for bias in biases)])


@torch.no_grad()
def split_parts(model: LanguageModel, traced: Trace) -> dict[str, Tensor]:
    """The trace's parts, with every token mixer in its heads or branches."""
    parts = dict(traced.start)
    for layer, block in enumerate(blocks_of(model), start=1):
        mixed, changed = traced.writes[layer - 1]
        branches = split_mixer(block.token_mixer, block.norm_token(traced.streams[layer - 1]))
        for name, part in (branches or {SUBLAYERS[0]: mixed}).items():
            parts[f"{layer} {name}"] = part
        parts[f"{layer} {SUBLAYERS[1]}"] = changed
    return parts


def split_mixer(mixer: Any, x: Tensor) -> dict[str, Tensor]:
    """A token mixer's output for x `(B, T, D)` in parts that sum to it; empty where it has none.

    Attention and headed mixers have heads, parallel ones branches, mixers side by side are parts
    themselves. A bias of the output projection is a part too.
    """
    if isinstance(mixer, SideBySide):
        return {
            f"mixer {i} {name}".rstrip(): part
            for i, one in enumerate(mixer.mixers)
            for name, part in (split_mixer(one, x) or {"": one(x)}).items()
        }
    if isinstance(mixer, CausalAttention):
        q, k, v = (part.transpose(1, 2) for part in mixer.project(x, 0))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=mixer.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return _heads(y.transpose(1, 2), mixer.merge)
    if isinstance(mixer, Headed):
        y = mixer.mix(mixer.in_proj(x))
        return _heads(y.unflatten(-1, (len(mixer.mix.weight), -1)), mixer.o_proj)
    if isinstance(mixer, Parallel):
        weight, bias = mixer.mix.rows(0, x.shape[1])
        y = weight.tril()[:, None] @ x
        y = y if bias is None else y + bias[:, None, :, None]
        y = F.gelu(y) if mixer.activation == "gelu" else y
        return {f"branch {i}": part for i, part in enumerate(y)}
    return {}


def _heads(y: Tensor, merge: Any) -> dict[str, Tensor]:
    """Each head's part of a linear projection of all, `(B, T, H, width)` to H of `(B, T, D)`."""
    H = y.shape[2]
    alone = torch.eye(H, dtype=y.dtype, device=y.device)
    apart = torch.einsum("bthw,hg->hbtgw", y, alone).flatten(-2).contiguous()
    bias = merge(torch.zeros_like(apart[0, :1, :1]))
    parts = {f"head {h}": part for h, part in enumerate(merge(apart) - bias)}
    return parts | ({"projection bias": bias.expand_as(parts["head 0"])} if bias.any() else {})


@torch.no_grad()
def survival(model: LanguageModel, traced: Trace) -> tuple[dict[str, Tensor], Tensor]:
    """Follows the embedding and every sublayer's write; all are left out in one walk together.

    A write is left out at all positions at once. Writes are in order: the embedding's is in every
    stream, those of block l in the streams from l on.

    Returns:
        Measures of every write, by the layer of a later stream, `(W, n + 1, B, T)`, NaN before it
        is written: `share still there`, along the write, which the stream has; `share lost without
        it`, which the stream loses; `change without it`, the length of the stream's whole change,
        in lengths of the write. And squared lengths of the writes, `(W, B, T)`: means are weighted
        by them, since the shares of a tiny write can be anything.
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
        change = stream - without
        share = torch.stack(
            [
                (stream * written).sum(-1) / square,
                (change * written).sum(-1) / square,
                change.norm(dim=-1) / square.sqrt(),
            ]
        )
        missing = (0, 0, 0, 0, 0, len(writes) - len(without))
        shares.append(F.pad(share, missing, value=torch.nan))
    names = ("share still there", "share lost without it", NOT_A_ROW)
    return dict(zip(names, torch.stack(shares, dim=2), strict=True)), squares


def similarity(streams: Tensor, batch: PromptBatch) -> Tensor:
    """Mean cosine of every two streams at the same position: `(S, B, T, D) -> (S, S)`."""
    units = F.normalize(streams, dim=-1)[:, batch.real]
    return torch.einsum("snd,und->su", units, units) / units.shape[1]


def sublayer_streams(traced: Trace) -> tuple[list[str], Tensor]:
    """Labels and the stream before and after every token mixer, `(2n + 1, B, T, D)`.

    Where both mixers of a block read the same stream, nothing reads the one between.
    """
    between = traced.streams[:-1] + traced.writes[:, 0]
    pairs = torch.stack([between, traced.streams[1:]], dim=1).flatten(0, 1)
    depth = range(1, len(traced.writes) + 1)
    labels = ["0", *(label for layer in depth for label in (f"{layer} between", str(layer)))]
    return labels, torch.cat([traced.streams[:1], pairs])


def updates(traced: Trace) -> dict[str, Tensor]:
    """Size and direction of what blocks add, each `(n, 3, B, T)`.

    Of each block: its token mixer, its channel mixer, and both together. Length; that, relative to
    the stream it is added to; cosine to that stream; cosine to the last stream.
    """
    before, (mixed, changed) = traced.streams[:-1], traced.writes.unbind(1)
    added = torch.stack([mixed, changed, mixed + changed], dim=1)
    stood = torch.stack([before, before + mixed, before], dim=1)
    norm = added.norm(dim=-1)
    last = traced.streams[-1].expand_as(added)
    return {
        "update norm": norm,
        "update share": norm / stood.norm(dim=-1).clamp(min=torch.finfo(norm.dtype).tiny),
        "update along the stream": F.cosine_similarity(added, stood, dim=-1),
        "update along the last stream": F.cosine_similarity(added, last, dim=-1),
    }


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
    words = word_tokens(checkpoint, request.words)
    traced = trace(checkpoint.model, batch.tokens)
    finding = Finding()
    _look_at_streams(finding, traced, batch)
    _look_at_logits(finding, checkpoint, traced, batch, words)
    _look_at_survival(finding, checkpoint.model, traced, batch)
    return finding


def _look_at_streams(finding: Finding, traced: Trace, batch: PromptBatch) -> None:
    layers = range(len(traced.streams))
    alike, norms = similarity(traced.streams, batch), traced.streams.norm(dim=-1)
    labels, streams = sublayer_streams(traced)
    finding.array("similarity", alike, {"layer": layers, "other layer": layers})
    both = {"stream": labels, "other stream": labels}
    finding.array("similarity of sublayers", similarity(streams, batch), both)
    finding.array("norm", batch.masked(norms), {"layer": layers, **batch.axes})
    finding.rows("norm", batch.mean(norms), {"layer": layers})
    later = {"layer": layers[1:]}
    finding.rows("cosine to the layer before", alike.diagonal(1), later)
    finding.rows("cosine to layer 0", alike[1:, 0], later)
    for name, values in updates(traced).items():
        axes = {**later, "part": (*SUBLAYERS, "block")}
        finding.array(name, batch.mean(values), axes)
        finding.rows(name, batch.mean(values), axes)


def _look_at_logits(
    finding: Finding,
    checkpoint: Checkpoint,
    traced: Trace,
    batch: PromptBatch,
    words: dict[str, int],
) -> None:
    model, stream = checkpoint.model, traced.streams[-1]
    answers = model.logits(stream).argmax(-1)
    chosen = answers.new_tensor([*words.values()]).expand(*answers.shape, -1)
    targets = torch.cat([answers[..., None], chosen], dim=-1)
    labels, written = contributions(model, stream, traced.parts, targets, centred=True)
    by_token = batch.masked(written.movedim(-1, 0))  # (K, P, B, T)
    where = {"part": labels, **batch.axes}
    finding.array("contribution to the answer", by_token[0], where)
    if words:
        finding.array("contribution to words", by_token[1:], {"word": [*words], **where})
    for label, value in zip(labels, batch.mean(written[..., 0]), strict=True):
        layer, _, part = label.partition(" ")
        place = {"layer": int(layer), "part": part} if layer.isdigit() else {"part": label}
        finding.number("contribution to the answer", value, **place)
    split = split_parts(model, traced)
    if [*split] != [*traced.parts]:
        labels, heads = contributions(model, stream, split, targets[..., :1], centred=True)
        finding.array("contribution of heads", batch.mean(heads[..., 0]), {"part": labels})
    finding.notes["answers"] = [
        checkpoint.pieces(row[real].tolist()) for row, real in zip(answers, batch.real, strict=True)
    ]


def _look_at_survival(
    finding: Finding, model: LanguageModel, traced: Trace, batch: PromptBatch
) -> None:
    measures, size = survival(model, traced)
    weight, layers = batch.mean(size)[:, None], range(len(traced.streams))
    writes = ["embedding", *[*traced.parts][len(traced.start) :]]
    for name, values in measures.items():
        mean = batch.mean(values * size[:, None]) / weight
        finding.array(name, mean, {"write": writes, "layer": layers})
        for part, sublayer in enumerate(SUBLAYERS) if name != NOT_A_ROW else ():
            for distance in layers[:-1]:  # the writes of block l are in the streams from l on
                later = mean[1 + part :: 2, 1:].diagonal(distance)
                finding.number(name, later.mean(), part=sublayer, distance=distance)
