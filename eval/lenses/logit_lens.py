"""The logit lens: every layer's stream read as the last one is, as a distribution over tokens.

nostalgebraist, "interpreting GPT: the logit lens", 2020. Entropies and divergences are in bits;
before anything is known a distribution has log2 V of them.

Beside it, how far a stream lies along the directions that logits read: the token energy of Wendler
et al. ("Do Llamas Work in English?", 2402.10588).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.lenses import markup
from eval.lenses.lens import Documents, Finding, Request, averaged, lens, word_tokens
from eval.lenses.trace import PromptBatch, gather, readers
from eval.models import Checkpoint

TOP = 5
WIDEST = 1 << 25  # numbers of a distribution held at once
SHOWN = 8  # last positions in the table
CELL = 54  # of the figure of words, in pixels
PICTURED = 18  # positions of that figure, the last ones

Read = Callable[[int, Tensor], Tensor]
"""Layer and its stream `(B, T, D)` to logits `(B, T, V)`."""


def token_energy(model: LanguageModel, x: Tensor) -> Tensor:
    """Root mean squared cosine of x `(..., D)` to the readers, over their own among them.

    E(x) = sqrt(mean_v cos(x, u_v)^2 / mean_vw cos(u_v, u_w)^2): 1 for a vector that is as near
    to the readers as they are to each other.

    Raises:
        RequestError: a final norm that is not known.
    """
    units = torch.nn.functional.normalize(readers(model).double(), dim=-1)
    cosines = units.T @ units / len(units)
    squares = x.square().sum(-1).clamp(min=torch.finfo(x.dtype).tiny)
    seen = (x @ cosines.to(x.dtype) * x).sum(-1) / squares
    return (seen.clamp(min=0) / cosines.square().sum().to(x.dtype)).sqrt()


@torch.no_grad()
def read_layers(streams: Tensor, chosen: list[int], read: Read) -> dict[str, Tensor]:
    """Reads the streams of all layers, `(S, B, T, D)`, a few prompts at a time.

    Returns:
        `entropy` and `divergence`, D(output || layer), in bits, `(S, B, T)`; `top`, the likeliest
        tokens, and `top probability`, `(S, B, T, k)`; `probability` of K chosen tokens,
        `(S, B, T, K)`.
    """
    V = read(len(streams) - 1, streams[-1][:1, :1]).shape[-1]
    rows = max(1, WIDEST // (streams.shape[2] * V))
    pieces = [_read_some(some, chosen, read) for some in streams.split(rows, dim=1)]
    return {name: torch.cat([piece[name] for piece in pieces], dim=1) for name in pieces[0]}


def _read_some(streams: Tensor, chosen: list[int], read: Read) -> dict[str, Tensor]:
    last = read(len(streams) - 1, streams[-1]).float().log_softmax(-1)
    likely = last.exp()
    floor = (likely * last).sum(-1)
    layers = []
    for layer, stream in enumerate(streams):
        known = layer == len(streams) - 1
        logs = last if known else read(layer, stream).float().log_softmax(-1)
        shares = likely if known else logs.exp()
        best = shares.topk(min(TOP, shares.shape[-1]))
        layers.append(
            {
                "entropy": -(shares * logs).sum(-1) / math.log(2),
                "divergence": (floor - (likely * logs).sum(-1)).clamp(min=0) / math.log(2),
                "top": best.indices,
                "top probability": best.values,
                "probability": shares[..., chosen],
            }
        )
    return {name: torch.stack([each[name] for each in layers]) for name in layers[0]}


def plain_read(checkpoint: Checkpoint) -> Read:
    """The model's own final norm and head, at every layer."""
    return lambda _, stream: checkpoint.model.logits(stream)


def draw(documents: Documents) -> list[plots.Figure]:
    """The figures, each over all checkpoints."""
    lens = documents.lens
    curves = [
        {k: markup.visible(v) if k == "word" else v for k, v in r.items() if k != "place"}
        for r in documents.at_tokens(documents.records("probability"))
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
    ]
    uniform = f"{documents[0]['notes']['uniform']:.4g}"
    for array, y, title, about in (
        (
            "entropy",
            "entropy, bits",
            "How unsure is each layer?",
            f"Entropy of what a layer would say; {uniform} bits are every token alike. Mean over "
            "positions and prompts.",
        ),
        (
            "divergence",
            "KL, bits",
            "How far from the answer?",
            "Kullback-Leibler divergence of what a layer would say from what the model says in the "
            "end.",
        ),
        (
            "token energy",
            "token energy",
            "How near to the tokens' directions?",
            "Token energy: how far a vector lies along output embeddings, relative to what their "
            "own spread allows.",
        ),
    ):
        if means := averaged(documents.records(array), "model", "layer"):
            name = f"{lens}-{array.replace(' ', '-')}"
            chart = plots.lines(means, "layer", y, "model")
            figures.append(plots.Figure(name, title, about, chart))
    return figures


def _words(documents: Documents) -> Any:
    pieces, top = documents.by_prompt(), documents.by_prompt("top")
    rows: list[plots.Record] = []
    for r in documents.at_tokens(documents.records("top probability", rank=0)):
        prompt = r["model"], r["prompt"]
        if r["position"] >= len(pieces[prompt]) - PICTURED:
            texts = [markup.visible(text) for text in top[prompt][r["layer"]][r["position"]]]
            rows.append(r | {"says": texts[0][:9], "likeliest": ", ".join(texts)})
    picture = plots.heat(
        rows, "place", "layer", "probability", {"scheme": "blues", "domain": [0, 1]},
        sort_y="descending", size=(CELL * PICTURED, {"step": 26}),
    )  # fmt: skip
    dark = {"test": "datum.value > 0.75", "value": "white"}
    words = {  # by the cell, which is the same on a dark page; `LIGHT` changes there
        "text": {"field": "says"},
        "color": {"condition": dark, "value": "black"},
    }
    cells = {name: picture.pop(name) for name in ("mark", "encoding")}
    along = {name: cells["encoding"].pop(name) for name in ("x", "y", "tooltip")}
    texts = {"mark": {"type": "text", "fontSize": 10}, "encoding": words}
    chart = picture | {"encoding": along, "layer": [cells, texts]}
    return plots.chosen(chart, rows, "model", "prompt")


@lens("logit", "The logit lens", figures=draw, order=2)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Every layer's stream read as the output is, and token energy."""
    batch = gather(checkpoint, request.prompts)
    finding = read_finding(checkpoint, request, batch, plain_read(checkpoint))
    layers, energy = range(len(batch.streams)), token_energy(checkpoint.model, batch.streams)
    finding.array("token energy", batch.masked(energy), {"layer": layers, **batch.axes})
    finding.rows("token energy", batch.mean(energy), {"layer": layers})
    return finding


def read_finding(
    checkpoint: Checkpoint, request: Request, batch: PromptBatch, read: Read
) -> Finding:
    """What the logit and the tuned lens show, by the way in which each reads a layer.

    Raises:
        RequestError: a word of several tokens.
    """
    words, streams = word_tokens(checkpoint, request.words), batch.streams
    followed = words or _answers(checkpoint, batch)
    seen = read_layers(streams, [*followed.values()], read)
    layers, finding = range(len(streams)), Finding()
    where = {"layer": layers, **batch.axes}
    for name in ("entropy", "divergence"):
        finding.array(name, batch.masked(seen[name]), where)
    curves = batch.masked(seen["probability"].movedim(-1, 0))
    finding.array("probability", curves, {"word": [*followed], **where})
    best = batch.masked(seen["top probability"].movedim(-1, 0))
    finding.array("top probability", best, {"rank": range(len(best)), **where})
    entropy, same = batch.mean(seen["entropy"]), seen["top"][..., 0] == seen["top"][-1, ..., 0]
    means = {
        "entropy": entropy,
        "divergence": batch.mean(seen["divergence"]),
        "top token is the output's": batch.mean(same.to(entropy.dtype)),
        "entropy fall": -entropy.diff(),
    }
    for name, values in means.items():
        finding.rows(name, values, {"layer": layers[len(layers) - len(values) :]})
    if words:
        at_end = batch.at_last(seen["probability"]).mean(1)
        finding.rows("probability", at_end, {"layer": layers, "word": [*words]})
    finding.notes |= {
        "top": _pieces(checkpoint, seen["top"]),
        "uniform": math.log2(checkpoint.config.vocab_size),
        "tables": _tables(checkpoint, batch, seen),
    }
    return finding


def _answers(checkpoint: Checkpoint, batch: PromptBatch) -> dict[str, int]:
    """The model's likeliest tokens after each prompt, the first few."""
    best = checkpoint.model.logits(batch.at_last(batch.streams[-1])).topk(TOP).indices
    tokens = list(dict.fromkeys(best.T.flatten().tolist()))[:TOP]
    return dict(zip(checkpoint.pieces(tokens), tokens, strict=True))


def _pieces(checkpoint: Checkpoint, top: Tensor) -> list[Any]:
    """As tokens read, by prompt, layer, position, rank."""
    known = {token: checkpoint.pieces([token])[0] for token in top.unique().tolist()}

    def read(tokens: Any) -> Any:
        return [read(t) for t in tokens] if isinstance(tokens, list) else known[tokens]

    return read(top.transpose(0, 1).tolist())


def _tables(
    checkpoint: Checkpoint, batch: PromptBatch, seen: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """Of the first prompt: the likeliest token at its last positions, and the best at the last."""
    last = int(batch.last[0])
    first = max(0, last + 1 - SHOWN)
    tokens = checkpoint.pieces(batch.tokens[0, first : last + 1].tolist())
    by_layer, at_end = [], []
    for layer in reversed(range(len(seen["top"]))):
        at = (layer, 0, last)
        best = checkpoint.pieces(seen["top"][layer, 0, first : last + 1, 0].tolist())
        by_layer.append([str(layer), *map(repr, best)])
        pieces = checkpoint.pieces(seen["top"][at].tolist())
        shares = zip(pieces, seen["top probability"][at].tolist(), strict=True)
        cells = [f"{piece!r} {share:.2f}" for piece, share in shares]
        at_end.append([str(layer), f"{float(seen['entropy'][at]):.2f}", *cells])
    return [
        {
            "title": f"likeliest next token after each of the last tokens of {batch.labels[0]}",
            "columns": ["layer", *map(repr, tokens)],
            "rows": by_layer,
        },
        {
            "title": f"after the end of {batch.labels[0]}: entropy in bits, tokens, probabilities",
            "columns": ["layer", "bits", *map(str, range(1, seen["top"].shape[-1] + 1))],
            "rows": at_end,
        },
    ]
