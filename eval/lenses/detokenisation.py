"""Where the tokens of a word can be read from its last one: put together early, apart again late?

    python -m eval lens DIR --lens detokenisation --corpus stories.txt --out results

A linear probe for every layer and offset is fitted at all positions and judged at the last tokens
of words, as in Feucht et al. (2024), "Token Erasure as a Footprint of Implicit Vocabulary Items in
LLMs". Words of several tokens are held against words of one and against any position, and every
score against what the tokens' frequencies alone would have given at the same places. Tokens that
occur nowhere in the text are left out of account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses import markup
from eval.lenses.documents import Document, figure_records, model_name
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.named import Named
from eval.lenses.pieces import Words, alphabet, census, words_of
from eval.lenses.stories import WINDOW, Stories, stories, whole_windows
from eval.lenses.trace import gather, streams_of
from eval.probes.linear import calibrated
from eval.probes.moments import Classifier, Moments, gaussian
from eval.statistics import wilson

OFFSETS = (-2, -1, 0, 1)
BACK, AHEAD = 2, 1  # positions that every offset needs around it
GROUPS = ("words of several", "words of one", "any position")
MEASURES = ("top1", "nats", "nats unigram")
LAYERS = 5  # that are looked at, the first and last among them
EXAMPLES = 128  # for the factor of the probes' scores
JUDGED = 256  # positions of a group, at most
SMOOTHING = 0.5

Probes = dict[tuple[int, int], Classifier]
"""By layer and offset."""


def sites(depth: int, count: int = LAYERS) -> list[int]:
    """At most `count` layers from 0 to the last, evenly spaced."""
    return sorted({round(i * depth / (count - 1)) for i in range(count)})


def around(tokens: Tensor) -> Tensor:
    """Tokens at every offset from the inner positions of `(N, T)`: `(N, T - 3, offsets)`."""
    T = tokens.shape[1]
    return torch.stack([tokens[:, BACK + o : T - AHEAD + o] for o in OFFSETS], dim=-1)


def inner(streams: Tensor, layers: list[int]) -> Tensor:
    """Some of the streams `(n + 1, N, T, D)` at the inner positions, `(layers, N, T - 3, D)`."""
    return streams[layers, :, BACK : streams.shape[2] - AHEAD].float()


def held_back(length: int) -> int:
    """Windows of `length` tokens that hold the examples for the probes' factors."""
    return math.ceil(EXAMPLES / (length - BACK - AHEAD))


def fit(text: Stories, layers: list[int], classes: Tensor) -> Probes:
    """Gaussian probes of all layers and offsets, in closed form, by one pass over the text.

    Args:
        text: what is fitted on; a few of its last windows set the probes' factors.
        layers: which are read.
        classes: the tokens that are told apart, in order: probes score these alone.

    Raises:
        RequestError: a stream that is not finite.
    """
    V, D, device = len(classes), text.model.config.d_model, text.windows.device
    count, held = len(text.windows), held_back(text.windows.shape[1])
    sums = {(layer, o): Moments(V, D, device) for layer in layers for o in OFFSETS}
    for windows, streams in text.batches(stop=count - held):
        y = torch.searchsorted(classes, around(windows)).flatten(0, 1)
        counts = [torch.bincount(column, minlength=V) for column in y.T]
        for layer, stream in zip(layers, inner(streams, layers), strict=True):
            if not stream.isfinite().all():
                raise RequestError(f"layer {layer} gives numbers that are not finite")
            x = stream.flatten(0, 1).double()
            squares = x.T @ x  # the same for every offset, so made once
            for i, o in enumerate(OFFSETS):
                own = sums[layer, o]
                own.count += counts[i]
                own.total.index_add_(0, y[:, i], x)
                own.second += squares
    rows = slice(max(0, count - held), count)
    y = torch.searchsorted(classes, around(text.windows[rows])).flatten(0, 1)[:EXAMPLES]
    probes: Probes = {}
    vocabulary = text.model.embedding.weight.detach()[classes]
    for layer, stream in zip(layers, inner(text.streams(rows), layers), strict=True):
        x = stream.flatten(0, 1)[:EXAMPLES]
        for i, o in enumerate(OFFSETS):
            known = sums[layer, o]
            share = known.log_share(SMOOTHING).float()
            probes[layer, o] = calibrated(gaussian(known, vocabulary), share, x, y[:, i])
    return probes


def groups(tokens: Tensor, words: Words, seed: int) -> dict[tuple[str, int], Tensor]:
    """Which inner positions are judged, `(K,)` into the flattened `(N, T - 3)`.

    By group and offset: an earlier token of a word is asked for where the word has it only.
    """
    T = tokens.shape[1]
    inner = slice(BACK, T - AHEAD)
    length, last = words.length[:, inner].flatten(), words.last[:, inner].flatten()
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for o in OFFSETS:
        for name, here in (
            (GROUPS[0], last & (length > max(1, -o))),
            (GROUPS[1], last & (length == 1)),
            (GROUPS[2], torch.ones_like(last)),
        ):
            places = here.nonzero()[:, 0].cpu()
            order = torch.randperm(len(places), generator=generator)[:JUDGED]
            found[name, o] = places[order].sort().values
    return found


def unigram_nats(train: Tensor, tokens: Tensor, classes: int) -> float:
    """Cross entropy of `(N,)` classes by their frequencies in `train` alone."""
    counts = torch.bincount(train.flatten(), minlength=classes).double() + SMOOTHING
    return float(-(counts / counts.sum()).log()[tokens].mean())


def judge(probes: Probes, examples: dict[int, Tensor], tokens: Tensor, o: int) -> dict[int, Tensor]:
    """Whether each answer is right, and its nats, `(2, K)` by layer, for one offset.

    Args:
        probes: by layer and offset.
        examples: vectors `(K, D)` by layer.
        tokens: the right answers' classes, `(K,)`.
        o: the offset.
    """
    found = {}
    for layer, x in examples.items():
        logits = probes[layer, o](x)
        nats = F.cross_entropy(logits, tokens, reduction="none")
        found[layer] = torch.stack([(logits.argmax(dim=1) == tokens).float(), nats])
    return found


def _load(checkpoint: Checkpoint, request: Request) -> tuple[Stories, Stories]:
    context = checkpoint.config.context
    if context <= BACK + AHEAD:
        raise RequestError(
            f"the context of {checkpoint.path} is {context}; probes of words need more than "
            f"{BACK + AHEAD}: use a model with a longer context"
        )
    least = 2 * held_back(min(WINDOW, context))  # as much is fitted as sets the factors
    count = whole_windows(checkpoint, request, least, "probes of words need")
    train = stories(checkpoint, request, "fitting", count)
    return train, stories(checkpoint, request, "evaluation", count // 4)


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """What a word's last token still says of its tokens."""
    found = figure_records(documents, "read")
    chart = plots.lines(found, "layer", "share read", "offset")
    return [
        plots.Figure(
            "detokenisation-read",
            "Where are words put together?",
            "From a token of each group: how often a linear probe reads the token at an offset "
            "from it (0: itself), by layer.",
            plots.chosen(chart, found, "model", "group"),
        )
    ]


def split_words(documents: Sequence[Document]) -> list[Markup]:
    """Some of the words that the tokenizer splits."""
    rows = [
        (
            model_name(d),
            Markup("; ").join(markup.codes(pieces) for pieces in d["notes"]["examples"]),
        )
        for d in documents
    ]
    return [markup.folded("words of several tokens", markup.table(("checkpoint", "words"), rows))]


@lens(
    name="detokenisation",
    title="Words of several tokens",
    about="where a word's tokens can be read from its last one, layer by layer",
    figures=draw,
    texts=split_words,
    order=8,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Fits linear probes by layer and offset, and judges them on words of several tokens.

    Raises:
        RequestError: too little text asked for, or there.
    """
    model = checkpoint.model
    text, judged = _load(checkpoint, request)
    train, valid = text.windows, judged.windows
    asked = gather(checkpoint, request.prompts[:1]).tokens
    classes = torch.unique(torch.cat([part.flatten() for part in (train, valid, asked)]))
    known = alphabet(checkpoint.tokenizer, checkpoint.config.vocab_size)
    words = words_of(valid.cpu(), known)
    layers = sites(len(model.blocks))
    probes = fit(text, layers, classes)
    streams = inner(judged.streams(slice(None)), layers).flatten(1, 2)
    right = torch.searchsorted(classes, around(valid)).flatten(0, 1)
    counted = torch.searchsorted(classes, train)
    values = torch.full((len(OFFSETS), len(GROUPS), len(layers), len(MEASURES)), torch.nan)
    figures: list[dict[str, Any]] = []
    counts = census(words_of(train.cpu(), known))
    for (group, o), chosen in groups(valid, words, request.seed).items():
        if not len(chosen):
            continue
        i, places = OFFSETS.index(o), chosen.to(valid.device)
        tokens = right[places, i]
        examples = {layer: streams[n, places] for n, layer in enumerate(layers)}
        chance = unigram_nats(counted, tokens, len(classes))
        for n, (layer, found) in enumerate(judge(probes, examples, tokens, o).items()):
            top1, nats = found.mean(dim=1).tolist()
            values[i, GROUPS.index(group), n] = torch.tensor([top1, nats, chance])
            share = wilson(int(found[0].sum()), len(tokens))
            place = {"group": group, "offset": o, "layer": layer}
            limits = {"low": share.low, "high": share.high, "n": len(tokens)}
            figures += [
                {"figure": "read", **place, "value": top1, **limits},
                {"figure": "nats gained", **place, "value": chance - nats, "n": len(tokens)},
            ]
    figures += _turns(values, layers)
    figures += [{"figure": name, "value": value} for name, value in counts.items()]
    axes = {"offset": OFFSETS, "group": GROUPS, "layer": layers, "measure": MEASURES}
    return Finding(
        arrays={"detokenisation": Named(values, axes), **_prompt(model, asked, probes, classes)},
        figures=figures,
        notes={"examples": _examples(checkpoint, valid, words)},
    )


def _turns(values: Tensor, layers: list[int]) -> list[dict[str, Any]]:
    """Where a token is read best, how much of that is lost by the last layer, what comes back."""
    figures = []
    for i, o in enumerate(OFFSETS):
        for g, group in enumerate(GROUPS):
            top1 = values[i, g, :, 0]
            if top1.isfinite().all():
                turns = {
                    "read best at layer": layers[int(top1.argmax())],
                    "lost by the end": float(top1.max() - top1[-1]),
                    "back at the end": float(top1[-1] - top1.min()),
                }
                place = {"group": group, "offset": o}
                figures += [{"figure": name, **place, "value": v} for name, v in turns.items()]
    return figures


@torch.no_grad()
def _prompt(
    model: LanguageModel, prompt: Tensor, probes: Probes, classes: Tensor
) -> dict[str, Named]:
    """Probability that each probe gives the right token, at each position of a prompt `(1, T)`."""
    layers = list(dict.fromkeys(layer for layer, _ in probes))
    streams = streams_of(model, prompt)[layers, 0].float()
    tokens = torch.searchsorted(classes, prompt[0])
    T = len(tokens)
    values = torch.full((len(OFFSETS), len(layers), T), torch.nan)
    for i, o in enumerate(OFFSETS):
        here = slice(max(0, -o), max(max(0, -o), T - max(0, o)))
        asked = tokens[max(0, o) : T + min(0, o)] if abs(o) < T else tokens[:0]
        for n, layer in enumerate(layers):
            p = probes[layer, o](streams[n, here]).softmax(dim=-1)
            values[i, n, here] = p.gather(1, asked[:, None])[:, 0].cpu()
    axes = {"offset": OFFSETS, "layer": layers, "position": range(T)}
    return {"reading": Named(values, axes)}


def _examples(checkpoint: Checkpoint, windows: Tensor, words: Words) -> list[list[str]]:
    """Some words of several tokens, in pieces."""
    found: dict[tuple[int, ...], None] = {}
    for row, end in (words.last & (words.length > 1)).nonzero().tolist():
        first = end - int(words.length[row, end]) + 1
        found[tuple(windows[row, first : end + 1].tolist())] = None
    return [checkpoint.pieces(list(tokens)) for tokens in list(found)[:20]]
