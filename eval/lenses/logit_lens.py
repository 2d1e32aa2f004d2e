"""The logit lens: every layer's stream read as the last one is, as a distribution over tokens.

nostalgebraist, "interpreting GPT: the logit lens", 2020. Entropies and divergences are in bits;
before anything is known a distribution has log2 V of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eval import plots
from eval.checkpoints import Checkpoint
from eval.lenses import markup
from eval.lenses.documents import Document, at_tokens, averaged, model_name, records
from eval.lenses.energy import TokenSpace
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.named import Named
from eval.lenses.trace import Batch, gather, trace
from eval.lenses.words import word_tokens

TOP = 5
WIDEST = 1 << 25  # numbers of a distribution held at once
SHOWN = 8  # last positions in the table
CELL = 54  # of the figure of words, in pixels
PICTURED = 18  # positions of that figure, the last ones

Read = Callable[[int, Tensor], Tensor]
"""Layer and its stream `(B, T, D)` to logits `(B, T, V)`."""


@dataclass(frozen=True)
class Readings:
    """Distributions by layer, as figures of them; S layers.

    Attributes:
        entropy: in bits, `(S, B, T)`.
        divergence: D(output || layer) in bits, `(S, B, T)`.
        surprise: of the text's own next token, in bits, `(S, B, T)`; no number at the last.
        top: the likeliest tokens, `(S, B, T, k)`.
        top_probability: theirs.
        probability: of chosen tokens, `(S, B, T, K)`.
    """

    entropy: Tensor
    divergence: Tensor
    surprise: Tensor
    top: Tensor
    top_probability: Tensor
    probability: Tensor


@torch.no_grad()
def read_layers(streams: Tensor, tokens: Tensor, chosen: list[int], read: Read) -> Readings:
    """Reads the streams of all layers, `(S, B, T, D)`, a few prompts at a time.

    Args:
        streams: the last of them is the one that the others are compared with.
        tokens: the text, `(B, T)`.
        chosen: tokens whose probability is followed.
        read: gives a layer's logits.
    """
    V = read(len(streams) - 1, streams[-1][:1, :1]).shape[-1]
    rows = max(1, WIDEST // (tokens.shape[1] * V))
    pieces = [
        _read_some(streams[:, i : i + rows], tokens[i : i + rows], chosen, read)
        for i in range(0, len(tokens), rows)
    ]
    return Readings(*(torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True)))


def _read_some(
    streams: Tensor, tokens: Tensor, chosen: list[int], read: Read
) -> tuple[Tensor, ...]:
    last = read(len(streams) - 1, streams[-1]).float().log_softmax(-1)
    likely = last.exp()
    floor = (likely * last).sum(-1)
    found = []
    for layer, stream in enumerate(streams):
        known = layer == len(streams) - 1
        logs = last if known else read(layer, stream).float().log_softmax(-1)
        shares = likely if known else logs.exp()
        surprise = torch.full_like(floor, torch.nan)
        surprise[:, :-1] = -logs[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
        best = shares.topk(min(TOP, shares.shape[-1]))
        found.append(
            (
                -(shares * logs).sum(-1) / math.log(2),
                (floor - (likely * logs).sum(-1)).clamp(min=0) / math.log(2),
                surprise / math.log(2),
                best.indices,
                best.values,
                shares[..., chosen],
            )
        )
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))


def plain(checkpoint: Checkpoint) -> Read:
    """The model's own final norm and head, at every layer."""
    return lambda _, stream: checkpoint.model.logits(stream)


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """The figures, each over all checkpoints."""
    lens = documents[0]["lens"]
    placed = at_tokens(documents, records(documents, "probability"))
    curves = [
        {k: markup.visible(v) if k == "word" else v for k, v in r.items() if k != "place"}
        for r in placed
    ]
    shares = plots.lines(curves, "layer", "probability", "word")
    figures = [
        plots.Figure(
            f"{lens}-words",
            "What would each layer say?",
            f"The likeliest next token by layer and position (the last {PICTURED}), coloured by "
            "its probability. The line below names the token that is read there.",
            _words(documents),
        ),
        plots.Figure(
            f"{lens}-curves",
            "Which token wins, and where?",
            "Probability of the followed tokens by layer, at the position that the slider picks.",
            plots.chosen(shares, curves, "model", "prompt", "position"),
        ),
        _averaged(documents, lens, "entropy", "entropy, bits", "How unsure is each layer?",
                  f"Entropy of what a layer would say; {documents[0]['notes']['uniform']} bits are "
                  "every token alike. Mean over positions and prompts."),
        _averaged(documents, lens, "divergence", "KL, bits", "How far from the answer?",
                  "Kullback-Leibler divergence of what a layer would say from what the model says "
                  "in the end."),
    ]  # fmt: skip
    if any("token energy" in d["arrays"] for d in documents):
        figures.append(
            _averaged(documents, lens, "token energy", "token energy", "In the span of tokens?",
                      "Token energy: how far a vector lies along output embeddings, relative to "
                      "what their own spread allows."),
        )  # fmt: skip
    return figures


def _averaged(
    documents: Sequence[Document], lens: str, array: str, y: str, title: str, about: str
) -> plots.Figure:
    found = averaged(records(documents, array), "model", "layer")
    name = f"{lens}-{array.replace(' ', '-')}"
    return plots.Figure(name, title, about, plots.lines(found, "layer", y, "model"))


def _words(documents: Sequence[Document]) -> Any:
    import altair as alt

    found: list[plots.Record] = []
    for document in documents:
        likely = [r for r in records([document], "top probability") if r["rank"] == 0]
        top = document["notes"]["top"]
        labels = [f"{p['kind']} {p['index']}" for p in document["prompts"]]
        for record in at_tokens([document], likely):
            layer, position = record["layer"], record["position"]
            row = top[labels.index(record["prompt"])]
            texts = row[layer][position] if len(row) > layer else []
            length = len(document["prompts"][labels.index(record["prompt"])]["pieces"])
            if position >= length - PICTURED:
                said = ", ".join(map(markup.visible, texts))
                found.append(record | {"says": markup.visible(texts[0])[:9], "likeliest": said})
        assert found, model_name(document)
    base = alt.Chart(plots.data(found)).encode(
        x=alt.X(
            "place:O",
            sort=alt.EncodingSortField("position"),
            axis=alt.Axis(labelAngle=-60, title=None, labelLimit=90),
        ),
        y=alt.Y("layer:O", sort="descending"),
        tooltip=[
            "layer:O",
            "token:N",
            "likeliest:N",
            alt.Tooltip("value:Q", title="probability", format=".3f"),
        ],
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "value:Q", title="probability", scale=alt.Scale(scheme="blues", domain=[0, 1])
        )
    )
    texts = base.mark_text(fontSize=10).encode(
        text="says:N",
        color=alt.condition("datum.value > 0.5", alt.value("white"), alt.value("#1b2430")),
    )
    chart = alt.layer(cells, texts).properties(width=CELL * PICTURED, height=alt.Step(26))
    return plots.chosen(chart, found, "model", "prompt")


@lens(
    name="logit",
    title="The logit lens",
    about="every layer's stream read as the output is, and token energy",
    figures=draw,
    order=2,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Reads every layer of the prompts.

    Raises:
        RequestError: a prompt too long, a word of several tokens, or a final norm not known.
    """
    batch = gather(checkpoint, request.prompts)
    streams = trace(checkpoint.model, batch.tokens).streams
    finding = look(checkpoint, request, batch, streams, plain(checkpoint))
    _add_energy(finding, checkpoint, batch, streams)
    return finding


def look(
    checkpoint: Checkpoint, request: Request, batch: Batch, streams: Tensor, read: Read
) -> Finding:
    """What a lens of this kind shows, however it reads.

    Raises:
        RequestError: a word of several tokens.
    """
    words = word_tokens(checkpoint, request.words) or _answers(checkpoint, batch, streams)
    found = read_layers(streams, batch.tokens, [*words.values()], read)
    layers = range(len(streams))
    where = {"layer": layers, "prompt": batch.labels, "position": batch.positions}
    finding = Finding()
    for name, values in (
        ("entropy", found.entropy),
        ("divergence", found.divergence),
        ("surprise", found.surprise),
    ):
        finding.arrays[name] = Named(batch.masked(values), where)
    curves = batch.masked(found.probability.movedim(-1, 0))
    finding.arrays["probability"] = Named(curves, {"word": [*words], **where})
    best = batch.masked(found.top_probability.movedim(-1, 0)).movedim(0, -1)
    finding.arrays["top probability"] = Named(best, {**where, "rank": range(best.shape[-1])})
    finding.figures.extend(_figures(found, batch, words if request.words else {}))
    finding.notes.update(
        tokens=[checkpoint.pieces(list(prompt.tokens)) for prompt in request.prompts],
        top=_pieces(checkpoint, found.top),
        uniform=math.log2(checkpoint.config.vocab_size),
        tables=_tables(checkpoint, batch, found),
    )
    return finding


def _answers(checkpoint: Checkpoint, batch: Batch, streams: Tensor) -> dict[str, int]:
    """The model's likeliest tokens after each prompt, the first few."""
    row = torch.arange(len(batch.last), device=batch.last.device)
    best = checkpoint.model.logits(streams[-1][row, batch.last]).topk(TOP).indices
    tokens = list(dict.fromkeys(best.T.flatten().tolist()))[:TOP]
    return dict(zip(checkpoint.pieces(tokens), tokens, strict=True))


def _figures(found: Readings, batch: Batch, words: dict[str, int]) -> list[dict[str, Any]]:
    entropy, divergence = batch.mean(found.entropy), batch.mean(found.divergence)
    same = batch.mean((found.top[..., 0] == found.top[-1, ..., 0]).to(entropy.dtype))
    inside = batch.real.clone()  # a next token is in the prompt for all positions but the last
    inside[torch.arange(len(inside), device=inside.device), batch.last] = False
    known = found.surprise[:, inside]
    at_end = found.probability[:, torch.arange(len(batch.last)), batch.last].mean(1)
    figures: list[dict[str, Any]] = []
    for layer in range(len(entropy)):
        here = {
            "entropy": entropy[layer],
            "divergence": divergence[layer],
            "top token is the output's": same[layer],
        }
        if layer:
            here["entropy fall"] = entropy[layer - 1] - entropy[layer]
        if known.numel():
            here["surprise"] = known[layer].mean()
        figures += [
            {"figure": name, "layer": layer, "value": float(value)} for name, value in here.items()
        ]
        figures += [
            {"figure": "probability", "layer": layer, "word": word, "value": float(value)}
            for word, value in zip(words, at_end[layer], strict=False)
        ]
    return figures


def _add_energy(finding: Finding, checkpoint: Checkpoint, batch: Batch, streams: Tensor) -> None:
    spaces = [TokenSpace.of(checkpoint.model, centred) for centred in (False, True)]
    layers, D = range(len(streams)), streams.shape[-1]
    where = {"layer": layers, "prompt": batch.labels, "position": batch.positions}
    for space, name in zip(spaces, ("token energy", "token energy, centred"), strict=True):
        energy = space.energy(streams)
        finding.arrays[name] = Named(batch.masked(energy), where)
        finding.figures.extend(
            {"figure": name, "layer": layer, "value": float(value)}
            for layer, value in enumerate(batch.mean(energy))
        )
    whole, centred = spaces
    quarter = max(1, D // 4)
    sizes = sorted({max(1, D // 8), quarter, D // 2, centred.rank})
    shares = torch.stack([batch.mean(centred.share(streams, size)) for size in sizes])
    finding.arrays["share in the most read"] = Named(shares, {"directions": sizes, "layer": layers})
    for name, size, values in (
        ("share in the span", whole.rank, batch.mean(whole.share(streams))),
        ("share in the most read", quarter, shares[sizes.index(quarter)]),
    ):
        finding.figures.extend(
            {"figure": name, "layer": layer, "value": float(value)}
            | {"directions": size, "anywhere": size / D}
            for layer, value in enumerate(values)
        )
    finding.notes["span"] = {
        "rank": whole.rank,
        "features": D,
        "directions of half the reading": centred.holding(0.5),
    }


def _pieces(checkpoint: Checkpoint, top: Tensor) -> list[Any]:
    """As tokens read, by prompt, layer, position, rank."""
    by_prompt = top.transpose(0, 1)
    known = {token: checkpoint.pieces([token])[0] for token in top.unique().tolist()}
    flat = [known[token] for token in by_prompt.flatten().tolist()]
    for size in reversed(by_prompt.shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat


def _tables(checkpoint: Checkpoint, batch: Batch, found: Readings) -> list[dict[str, Any]]:
    """Of the first prompt: the likeliest token at its last positions, and the best at the last."""
    end = int(batch.last[0]) + 1
    seen = range(max(0, end - SHOWN), end)
    tokens = checkpoint.pieces(batch.tokens[0, seen.start : end].tolist())
    by_layer, at_end = [], []
    for layer in reversed(range(len(found.entropy))):
        best = checkpoint.pieces(found.top[layer, 0, seen.start : end, 0].tolist())
        by_layer.append([str(layer), *map(repr, best)])
        pieces = checkpoint.pieces(found.top[layer, 0, end - 1].tolist())
        shares = found.top_probability[layer, 0, end - 1].tolist()
        at_end.append(
            [
                str(layer),
                f"{float(found.entropy[layer, 0, end - 1]):.2f}",
                *(f"{piece!r} {share:.2f}" for piece, share in zip(pieces, shares, strict=True)),
            ]
        )
    return [
        {
            "title": f"likeliest next token after each of the last tokens of {batch.labels[0]}",
            "columns": ["layer", *map(repr, tokens)],
            "rows": by_layer,
        },
        {
            "title": f"after the end of {batch.labels[0]}: entropy in bits, tokens, probabilities",
            "columns": ["layer", "bits", *(str(rank + 1) for rank in range(found.top.shape[-1]))],
            "rows": at_end,
        },
    ]
