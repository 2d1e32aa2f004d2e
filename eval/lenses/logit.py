"""The logit lens: every layer's stream read as the last one is, as a distribution over tokens.

nostalgebraist, "interpreting GPT: the logit lens", 2020. Entropies and divergences are in bits;
before anything is known a distribution has log2 V of them.

Beside it, how far a stream lies along the directions that logits read: the token energy of Wendler
et al. ("Do Llamas Work in English?", 2402.10588).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.drawing import figures, markup, plots
from eval.lenses.charts import Lines, Tables
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens, word_tokens
from eval.lenses.trace import readers
from eval.messages import RequestError, say_once
from eval.sites.circuit import widened

TOP = 5
WIDEST = 1 << 25  # numbers of a distribution held at once
SHOWN = 8  # last positions in the table
PICTURED = 14  # positions of the figure, the last ones
WIDE = 9  # letters of a token for which a cell of it has room

Read = Callable[[int, Tensor], Tensor]
"""Layer and its stream `(B, T, D)` to logits `(B, T, V)`."""


def token_energy(model: LanguageModel, x: Tensor) -> Tensor:
    """Root mean squared cosine of x `(..., D)` to the readers, over their own among them.

    E(x) = sqrt(mean_v cos(x, u_v)^2 / mean_vw cos(u_v, u_w)^2): 1 for a vector that is as near
    to the readers as they are to each other.

    Raises:
        RequestError: as `readers`.
    """
    units = F.normalize(readers(model).double(), dim=-1)
    x = widened(x)
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
    final = len(streams) - 1
    V = read(final, streams[-1, :1, :1]).shape[-1]
    parts = []
    for batch in streams.split(max(1, WIDEST // (streams.shape[2] * V)), dim=1):
        output, layers = read(final, batch[-1]).float().log_softmax(-1), []
        for layer, stream in enumerate(batch):
            logs = output if layer == final else read(layer, stream).float().log_softmax(-1)
            layers.append(_describe(logs, output, chosen))
        parts.append(
            {name: torch.stack([reading[name] for reading in layers]) for name in layers[0]}
        )
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def _describe(logs: Tensor, output: Tensor, chosen: list[int]) -> dict[str, Tensor]:
    """What `read_layers` gives of one layer, from log-probabilities `(B, T, V)`."""
    probabilities = logs.exp()
    best = probabilities.topk(min(TOP, probabilities.shape[-1]))
    divergence = F.kl_div(logs, output, reduction="none", log_target=True).sum(-1)
    return {
        "entropy": torch.special.entr(probabilities).sum(-1) / math.log(2),
        "divergence": divergence.clamp(min=0) / math.log(2),
        "top": best.indices,
        "top probability": best.values,
        "probability": probabilities[..., chosen],
    }


def charts(lens: str) -> list[Lines]:
    """The charts of a lens that reads every layer as a distribution."""
    curves = Lines(
        of="probability",
        y="probability",
        colour="word",
        each=True,
        name="curves",
        title="Which token wins, and where?",
        about="Probability of the followed tokens by layer, at a prompt's last position.",
    )
    by_layer = {
        "entropy": ("entropy, bits", "How unsure is each layer?", "Entropy of what a layer would "
                    "say; log2 of the vocabulary's size is every token alike. Mean over positions "
                    "and prompts."),
        "divergence": ("KL, bits", "How far from the answer?", "Kullback-Leibler divergence of "
                       "what the model says in the end from what a layer would say."),
        "token energy": ("token energy", "How near to the tokens' directions?", "Token energy: how "
                         "far a vector lies along output embeddings, relative to what their own "
                         "spread allows."),
    }  # fmt: skip
    return [curves] + [
        Lines(of=of, y=y, title=title, about=about)
        for of, (y, title, about) in by_layer.items()
        if lens == "logit" or of != "token energy"
    ]


def draw_words(lens: str, tables: Tables) -> list[figures.Figure]:
    """The likeliest token in every cell of layers and positions, of the last prompt."""
    panels = {}
    for model, table in tables.items():
        *_, prompt = table.notes["top"]
        pieces, rows = table.pieces[prompt], []
        for row in table.samples("top probability"):
            at = row["position"]
            if row["prompt"] == prompt and at >= len(pieces) - PICTURED:
                best = markup.visible(table.notes["top"][prompt][row["layer"]][at][0])
                heading = f"{at} {markup.visible(pieces[at])}"
                says = best if len(best) <= WIDE else f"{best[: WIDE - 1]}…"
                rows.append(row | {"place": heading, "says": says})
        panels[f"{model}: {prompt}"] = plots.cells(
            rows, "layer", "place", "probability", text="says", domain=(0, 1), size=(230, 280)
        )
    return [
        figures.Figure(
            f"{lens}-words",
            "What would each layer say?",
            f"The likeliest next token by layer and position (the last {PICTURED}), coloured by "
            "its probability. On the left the token that is read there.",
            panels,
        )
    ]


@lens(
    "logit",
    "The logit lens",
    order=2,
    main=(("top token is the output's", {}), ("divergence", {})),
    charts=charts("logit"),
    draw=partial(draw_words, "logit"),
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """What each layer's stream says if it is read as the output, and its token energy."""
    add_readings(
        checkpoint, batch, request, table, lambda _, stream: checkpoint.model.logits(stream)
    )
    try:
        energy = token_energy(checkpoint.model, batch.streams)
    except RequestError as error:
        say_once(f"token energy left out: {error}")
    else:
        layers = range(len(batch.streams))
        table.add("token energy", batch.masked(energy), layer=layers, **batch.axes)


def add_readings(
    checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table, read: Read
) -> None:
    """What the logit and the tuned lens find, by the way in which each reads a layer.

    Without words to follow, those of the model's likeliest answers are followed.

    Raises:
        RequestError: a word of several tokens.
    """
    layers, followed = range(len(batch.streams)), word_tokens(checkpoint, request.words)
    if not followed:
        best = batch.logits.topk(min(TOP, batch.logits.shape[-1])).indices
        tokens = list(dict.fromkeys(best.T.flatten().tolist()))[:TOP]
        followed = dict(zip(checkpoint.words(tokens), tokens, strict=True))
    seen = read_layers(batch.streams, [*followed.values()], read)
    where: dict[str, Any] = {"layer": layers, **batch.axes}
    entropy, top = batch.masked(seen["entropy"]), seen["top"]
    table.add("entropy", entropy, **where)
    table.add("divergence", batch.masked(seen["divergence"]), **where)
    same = batch.masked((top[..., 0] == top[-1, ..., 0]).float())
    table.add("top token is the output's", same, share=True, **where)
    if len(layers) > 1:
        table.add("entropy fall", -entropy.diff(dim=0), **{**where, "layer": layers[1:]})
    likely = batch.masked(seen["probability"].movedim(-1, 0))
    table.add("probability", likely, rows=False, word=[*map(markup.visible, followed)], **where)
    if request.words:
        axes: dict[str, Any] = {"layer": layers, "prompt": batch.labels, "word": [*followed]}
        table.add("probability at the end", batch.at_last(seen["probability"]), **axes)
    best = batch.masked(seen["top probability"][..., 0])
    table.add("top probability", best, rows=False, **where)
    first = top.unique().tolist()
    pieces = dict(zip(first, checkpoint.words(first), strict=True))
    texts = [
        [[[pieces[token] for token in cell] for cell in row] for row in ranks]
        for ranks in top.transpose(0, 1).tolist()
    ]  # by prompt, layer, position, rank
    table.notes["top"] = dict(zip(batch.labels, texts, strict=True))
    _say_first(batch, seen, table)


def _say_first(batch: PromptBatch, seen: dict[str, Tensor], table: Table) -> None:
    """Adds two tables on the first prompt: its last positions, and the best tokens at its end."""
    label, last = batch.labels[0], int(batch.last[0])
    shown, best = range(max(0, last + 1 - SHOWN), last + 1), table.notes["top"][label]
    likeliest, at_end = [], []
    for layer in reversed(range(len(best))):
        likeliest.append([str(layer), *([best[layer][t][0]] for t in shown)])
        probabilities = seen["top probability"][layer, 0, last].tolist()
        ranked = zip(map(markup.visible, best[layer][last]), probabilities, strict=True)
        bits = f"{float(seen['entropy'][layer, 0, last]):.2f}"
        at_end.append(
            [str(layer), bits, *(f"{piece} {probability:.2f}" for piece, probability in ranked)]
        )
    tokens = (markup.visible(table.pieces[label][t]) for t in shown)
    title = f"likeliest next token after each of the last tokens of {label}"
    table.say(title, ["layer", *tokens], likeliest)
    title = f"after the end of {label}: entropy in bits, tokens, probabilities"
    table.say(title, ["layer", "bits", *map(str, range(1, len(best[0][0]) + 1))], at_end)
