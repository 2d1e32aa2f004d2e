"""Where the tokens of a word can be read from its last one: put together early, apart again late?

A linear probe for every layer and offset is fitted at all positions and judged at the last tokens
of words, as in Feucht et al. (2024), "Token Erasure as a Footprint of Implicit Vocabulary Items in
LLMs". Words of several tokens are compared with words of one and with any position, and every score
with what the tokens' frequencies alone give at the same places. The probes' classes are the tokens
of the text.
"""

from __future__ import annotations

import math
from itertools import product

import torch
import torch.nn.functional as F
from markupsafe import Markup
from tokenizers import Tokenizer
from torch import Tensor

from eval import RequestError, plots
from eval.artefacts import fitted
from eval.classifiers import Classifier, TokenMoments, calibrated, gaussian
from eval.lenses import markup
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.lenses.stories import WINDOW, StoryWindows, stories, whole_windows
from eval.lenses.trace import spaced_layers
from eval.models import Checkpoint
from eval.statistics import wilson

SPACE = ("Ġ", "▁", " ")  # how tokenizers write a space at a token's beginning
APOSTROPHES = ("'", "’")
BREAKS = ("Ċ", "\n", "<0x0A>")
OFFSETS = (-2, -1, 0, 1)
BACK, AHEAD = 2, 1  # positions that every offset needs around it
GROUPS = ("words of several", "words of one", "any position")
LAYERS = 4  # at most so many beside the embedding, evenly spaced
EXAMPLES = 128  # for the factor of the probes' scores
JUDGED = 256  # positions of a group, at most

Probes = dict[tuple[int, int], Classifier]
"""By layer and offset."""


def alphabet(tokenizer: Tokenizer, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Of every token, whether white space stands before or in it, and if it has a letter, `(V,)`.

    `'s` and the like have none.
    """
    begins, lettered = [], []
    special = tokenizer.get_added_tokens_decoder()
    for token in range(vocabulary):
        text = tokenizer.id_to_token(token) or ""
        begins.append(text.startswith(SPACE) or any(b in text for b in BREAKS) or token in special)
        piece = tokenizer.decode([token]).strip()
        word = any(map(str.isalpha, piece)) and not piece.startswith(APOSTROPHES)
        lettered.append(word and token not in special)
    return torch.tensor(begins), torch.tensor(lettered)


def words_of(tokens: Tensor, begins: Tensor, lettered: Tensor) -> tuple[Tensor, Tensor]:
    """The words in `(N, T)` tokens: pieces of text between white space, of which letters count.

    So `"Hello,` with its quote and comma apart is one token long. A window's last position is not
    known to end a word, and so counts as none.

    Returns:
        Tokens of the word up to and with this one, 0 for those without letters, `(N, T)`; whether
        the word's last lettered token is here, `(N, T)`.
    """
    here = lettered[tokens]
    goes_on = F.pad(here[:, 1:] & here[:, :-1] & ~begins[tokens[:, 1:]], (1, 1))
    length = here.long()
    for t in range(1, tokens.shape[1]):
        length[:, t] += goes_on[:, t] * length[:, t - 1]
    last = here & ~goes_on[:, 1:]
    last[:, -1] = False
    return length, last


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


def fit_probes(text: StoryWindows, layers: list[int], classes: Tensor) -> Probes:
    """Gaussian probes of all layers and offsets, in closed form, by one pass over the text.

    A few of the last windows set the probes' factors. The classes are tokens, in order.

    Raises:
        RequestError: a stream that is not finite.
    """
    V, D, device = len(classes), text.model.config.d_model, text.tokens.device
    first = max(0, len(text.tokens) - held_back(text.tokens.shape[1]))
    sums = {(layer, o): TokenMoments(V, D, device) for layer in layers for o in OFFSETS}
    for windows, streams in text.batches(stop=first):
        y = torch.searchsorted(classes, around(windows)).flatten(0, 1)
        counts = [torch.bincount(column, minlength=V) for column in y.T]
        for layer, stream in zip(layers, inner(streams, layers), strict=True):
            if not stream.isfinite().all():
                raise RequestError(f"layer {layer} gives numbers that are not finite")
            x = stream.flatten(0, 1).double()
            squares = x.T @ x  # the same for every offset, so made once
            for i, o in enumerate(OFFSETS):
                moments = sums[layer, o]
                moments.count += counts[i]
                moments.total.index_add_(0, y[:, i], x)
                moments.second += squares
    rows = slice(first, None)
    y = torch.searchsorted(classes, around(text.tokens[rows])).flatten(0, 1)[:EXAMPLES]
    probes: Probes = {}
    vocabulary = text.model.embedding.weight.detach()[classes]
    for layer, stream in zip(layers, inner(text.streams(rows), layers), strict=True):
        x = stream.flatten(0, 1)[:EXAMPLES]
        for i, o in enumerate(OFFSETS):
            known = sums[layer, o]
            share = known.log_share().float()
            probes[layer, o] = calibrated(gaussian(known, vocabulary), share, x, y[:, i])
    return probes


def groups(length: Tensor, last: Tensor, seed: int) -> dict[tuple[str, int], Tensor]:
    """Which inner positions are judged, `(K,)` into the flattened `(N, T - 3)`.

    By group and offset: an earlier token of a word is asked for where the word has it only. The
    words are as `words_of` gives them.
    """
    length, last = (part[:, BACK : part.shape[1] - AHEAD].flatten() for part in (length, last))
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for o in OFFSETS:
        for name, here in (
            (GROUPS[0], last & (length > max(1, -o))),
            (GROUPS[1], last & (length == 1)),
            (GROUPS[2], torch.ones_like(last)),
        ):
            places = here.nonzero()[:, 0].cpu()
            order = torch.randperm(len(places), generator=generator)[:JUDGED]
            chosen[name, o] = places[order].sort().values
    return chosen


def _draw(documents: Documents) -> list[plots.Figure]:
    rows = documents.figures("read")
    chart = plots.lines(rows, "layer", "share read", "offset")
    return [
        plots.Figure(
            "detokenisation-read",
            "Where are words put together?",
            "From a token of each group: how often a linear probe reads the token at an offset "
            "from it (0: itself), by layer.",
            plots.chosen(chart, rows, "model", "group"),
        )
    ]


def _split_words(documents: Documents) -> list[Markup]:
    return documents.table(
        "examples",
        "words of several tokens",
        ("word",),
        lambda pieces: (markup.codes(pieces),),
    )


@lens("detokenisation", "Words of several tokens", figures=_draw, texts=_split_words, order=8)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Where a word's tokens can be read from its last one, layer by layer."""
    context = checkpoint.config.context
    if context <= BACK + AHEAD:
        raise RequestError(
            f"the context of {checkpoint.path} is {context}; probes of words need more than "
            f"{BACK + AHEAD}: use a model with a longer context"
        )
    least = 2 * held_back(min(WINDOW, context))  # as much is fitted as sets the factors
    count = whole_windows(checkpoint, request, least, "probes of words need")
    text = stories(checkpoint, request, "fitting", count)
    judged = stories(checkpoint, request, "evaluation", count // 4)
    train, valid = text.tokens, judged.tokens
    classes = torch.unique(torch.cat([train.flatten(), valid.flatten()]))
    layers = [0, *spaced_layers(len(checkpoint.model.blocks), LAYERS)]

    def fit() -> dict[str, Tensor]:
        return {
            f"{layer} {o} {name}": tensor
            for (layer, o), probe in fit_probes(text, layers, classes).items()
            for name, tensor in probe._asdict().items()
        }

    about = {"lens": "detokenisation", "layers": layers}
    tensors = fitted(request.store, checkpoint, about, [train, classes], fit)
    probes = {
        (layer, o): Classifier(*(tensors[f"{layer} {o} {name}"] for name in Classifier._fields))
        for layer, o in product(layers, OFFSETS)
    }
    known = alphabet(checkpoint.tokenizer, checkpoint.config.vocab_size)
    length, last = words_of(valid.cpu(), *known)
    finding = Finding()
    streams = inner(judged.streams(slice(None)), layers).flatten(1, 2)
    right = torch.searchsorted(classes, around(valid)).flatten(0, 1)
    for (group, o), chosen in groups(length, last, request.seed).items():
        if not len(chosen):
            continue
        places, where, read = chosen.to(valid.device), {"group": group, "offset": o}, []
        tokens = right[places, OFFSETS.index(o)]
        for layer, stream in zip(layers, streams, strict=True):
            hits = int((probes[layer, o](stream[places]).argmax(dim=1) == tokens).sum())
            share = wilson(hits, len(tokens))
            read.append(share.estimate)
            place = {**where, "layer": layer, "n": len(tokens)}
            finding.number("read", share.estimate, **place, low=share.low, high=share.high)
        turns = {
            "read best at layer": layers[read.index(max(read))],
            "lost by the end": max(read) - read[-1],
            "back at the end": read[-1] - min(read),
        }
        finding.numbers(turns, **where)
    fitted_on, ends = words_of(train.cpu(), *known)
    lengths = fitted_on[ends]
    total = max(1, len(lengths))
    finding.number("words", len(lengths))
    finding.number("share of several tokens", int((lengths > 1).sum()) / total)
    finding.number("share of three and more", int((lengths > 2).sum()) / total)
    examples: dict[tuple[int, ...], None] = {}
    for row, end in (last & (length > 1)).nonzero().tolist():
        examples[tuple(valid[row, end + 1 - int(length[row, end]) : end + 1].tolist())] = None
    finding.notes["examples"] = [checkpoint.pieces(list(word)) for word in list(examples)[:20]]
    return finding
