"""Where the tokens of a word can be read from its last one: put together early, apart again late?

A linear probe for every layer and offset is fitted at all positions and judged at the last tokens
of words, as in Feucht et al. (2024), "Token Erasure as a Footprint of Implicit Vocabulary Items in
LLMs". Words of several tokens are compared with words of one and with any position. The probes'
classes are the tokens of the text.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from eval.lenses.charts import Lines
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens
from eval.lenses.stories import begun_in, stories, whole_windows
from eval.lenses.trace import spaced_layers
from eval.measures.linear import ProbeFit, outputs_of, pack, unpack
from eval.messages import RequestError
from eval.models.pieces import Pieces
from eval.rows.fits import fitted
from eval.sites.circuit import Circuit

APOSTROPHES = ("'", "’")
OFFSETS = (-2, -1, 0, 1)
BACK, AHEAD = 2, 1  # positions that every offset needs around it
GROUPS = ("words of several", "words of one", "any position")
LAYERS = 4  # at most so many beside the embedding, evenly spaced
JUDGED = 256  # positions of a group, at most
EXAMPLES = 20  # words that the page names


def alphabet(tokenizer: Tokenizer, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Whether each token has white space before or in it, and whether it has a letter, `(V,)`.

    `'s` and the like have none.
    """
    begins, lettered = [], []
    special, pieces = tokenizer.get_added_tokens_decoder(), Pieces(tokenizer)
    for token in range(vocabulary):
        begins.append(any(map(str.isspace, pieces.alone(token))) or token in special)
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


def groups(length: Tensor, last: Tensor, seed: int) -> dict[tuple[str, int], Tensor]:
    """Which positions are judged, `(K,)` into the flattened `(N, T)`, by group and offset.

    Every offset is within the window. An earlier token of a word is asked for where the word has it
    only. The words are as `words_of` gives them.
    """
    inside = torch.zeros_like(last)
    inside[:, BACK : last.shape[1] - AHEAD] = True
    length, last, inside = length.flatten(), last.flatten(), inside.flatten()
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for o in OFFSETS:
        for name, here in (
            (GROUPS[0], last & (length > max(1, -o))),
            (GROUPS[1], last & (length == 1)),
            (GROUPS[2], inside),
        ):
            positions = (here & inside).nonzero()[:, 0].cpu()
            order = torch.randperm(len(positions), generator=generator)[:JUDGED]
            chosen[name, o] = positions[order].sort().values
    return chosen


def fit_layers(
    checkpoint: Checkpoint, layers: list[int], windows: Tensor, classes: Tensor
) -> dict[str, Tensor]:
    """Gaussian probes of all layers and offsets, as tensors by layer, offset and part.

    The classes are tokens, in order, all of those in the `(N, T)` windows among them.

    Raises:
        RequestError: a layer's outputs that are not finite.
    """
    model, known = checkpoint.model, torch.searchsorted(classes, windows)
    embedding, tensors = model.embedding.weight.detach()[classes].float(), {}
    for layer in layers:
        fit = ProbeFit(outputs_of(Circuit(model, layer), windows), known, embedding)
        tensors |= pack({f"{layer} {o}": fit.fit(o)["gaussian"] for o in OFFSETS})
    return tensors


@lens(
    "detokenisation",
    "Words of several tokens",
    order=7,
    main=tuple(
        (figure, {"offset": 0, "group": GROUPS[0]})
        for figure in ("read", "read at the end less in the middle")
    ),
    charts=[
        Lines(
            of="read",
            y="share read",
            colour="offset",
            dash="group",
            title="Where are words put together?",
            about="From a token of each group: how often a linear probe reads the token at an "
            "offset from it (0: itself), by layer.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Where a word's tokens can be read from its last one, layer by layer."""
    model, context = checkpoint.model, checkpoint.config.context
    if context <= BACK + AHEAD:
        raise RequestError(
            f"the context of {checkpoint.path} is {context}; probes of words need more than "
            f"{BACK + AHEAD}: use a model with a longer context"
        )
    count = whole_windows(checkpoint, request, 4, "probes of words need")
    train = stories(checkpoint, request, "fitting", count)
    valid = stories(checkpoint, request, "evaluation", count // 4)
    begun = torch.tensor(begun_in(checkpoint, request, len(valid)))
    classes = torch.unique(torch.cat([train.flatten(), valid.flatten()]))
    layers = [0, *spaced_layers(len(model.blocks), LAYERS)]
    about = {"lens": "detokenisation", "layers": layers}
    fit = partial(fit_layers, checkpoint, layers, train, classes)
    tensors = fitted(request.store, checkpoint, about, [train, classes], fit)
    length, last = words_of(valid.cpu(), *alphabet(checkpoint.tokenizer, model.config.vocab_size))
    outputs = [outputs_of(Circuit(model, n), valid).flatten(0, 1) for n in layers]
    truth = torch.searchsorted(classes, valid).flatten()
    for (group, o), positions in groups(length, last, request.seed).items():
        if not len(positions):
            continue
        at = positions.to(valid.device)
        probes = (unpack(tensors, f"{layer} {o}") for layer in layers)
        named = [probe(x[at]).argmax(dim=1) for probe, x in zip(probes, outputs, strict=True)]
        hits = torch.stack(named) == truth[at + o]
        where: dict[str, Any] = {"group": group, "offset": o}
        story = begun[positions // valid.shape[1]].tolist()
        table.add("read", hits, layer=layers, story=story, **where)
        if len(layers) > 2:  # a model of one block has no middle
            change = hits[-1].float() - hits[len(layers) // 2].float()
            table.add("read at the end less in the middle", change, story=story, **where)
    words = [  # each once, some of them
        tuple(valid[row, end + 1 - int(length[row, end]) : end + 1].tolist())
        for row, end in (last & (length > 1)).nonzero().tolist()
    ]
    lines = [[checkpoint.pieces(list(word))] for word in list(dict.fromkeys(words))[:EXAMPLES]]
    table.say("words of several tokens", ("word",), lines)
