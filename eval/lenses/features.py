"""Features that two texts share: do two tellings of one story wake the same units of a model?

A unit is active in a text if it is among the strongest few at any of its positions. Overlap is
intersection over union of the units active in two texts. Tellings of one story are compared with
tellings of different stories, and with what would be shared if units were active independently.
"""

from typing import Any

import torch
from torch import Tensor, nn

from arch import LanguageModel
from eval.lenses.charts import Lines
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens
from eval.lenses.stories import retellings
from eval.lenses.trace import blocks_of
from eval.messages import RequestError
from eval.models.pieces import encode_text

OUTPUTS = ("down", "down_proj", "c_proj")
"""What the layer after the hidden units is called: in ours, in Llama and Mistral, in GPT-2."""
UNITS = "channel mixer units"
SHARE = 1 / 64  # of the units may be active at a position


@torch.no_grad()
def hidden_units(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The channel mixers' hidden units after their activation, `(n, B, T, F)`.

    Raises:
        RequestError: a channel mixer whose parts are not known.
    """
    units: list[Tensor] = []
    layers = [_output_layer(block.channel_mixer) for block in blocks_of(model)]
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs: units.append(inputs[0]))
        for layer in layers
    ]
    try:
        model.hidden(model.embed(tokens), len(layers))
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(units)


def _output_layer(channel_mixer: nn.Module) -> nn.Module:
    children = dict(channel_mixer.named_children())
    for name in OUTPUTS:
        if name in children:
            return children[name]
    raise RequestError(
        f"a {type(channel_mixer).__name__} has no hidden units that are known; known are those of "
        "gelu, silu, swiglu and the wrapped families"
    )


def active_in_text(values: Tensor, most: int) -> Tensor:
    """Which units are among the `most` strongest at any position, `(..., T, F)` to `(..., F)`.

    A unit that is zero is not active.
    """
    size = values.abs()
    strongest = size.topk(most, dim=-1)
    marks = torch.zeros_like(size).scatter_(-1, strongest.indices, strongest.values)
    return (marks > 0).any(-2)


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every first with every second set, `(N, F), (M, F) -> (N, M)`.

    Two empty sets overlap in nothing: 0.
    """
    a, b = first.double(), second.double()
    both = a @ b.T
    either = a.sum(1)[:, None] + b.sum(1) - both
    return both / either.clamp_min(1)


def chance_overlap(active: Tensor) -> float:
    """The overlap of two texts in which units are active independently, as often as in `(N, F)`.

    Expected intersection over expected union, the first without bias for N texts.
    """
    N, count = len(active), active.double().sum(0)
    both = (count * (count - 1)).sum() / (N * (N - 1))
    return float(both / (2 * count.sum() / N - both).clamp_min(1e-12))


def overlap_of_tellings(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Overlaps of N >= 2 stories told twice, by the active units of both tellings, `(N, F)` each.

    Returns:
        `(N,)` of each story's two tellings; `(N,)`, the mean of each story's tellings with the
        other tellings of other stories.
    """
    every = overlap(first, second)
    retold, N = every.diagonal(), len(every)
    return retold, (every.sum(0) + every.sum(1) - 2 * retold) / (2 * (N - 1))


def retelling_tokens(checkpoint: Checkpoint) -> Tensor:
    """First tellings of every story, then second ones, all cut to one length, `(2 N, T)`."""
    texts = [text for tellings in zip(*retellings(), strict=True) for text in tellings]
    rows = [encode_text(checkpoint.tokenizer, text, "text") for text in texts]
    length = min(checkpoint.config.context, *map(len, rows))
    device = checkpoint.model.embedding.weight.device
    return torch.tensor([ids[:length] for ids in rows], device=device)


def add_overlap(table: Table, what: str, active: Tensor, **axes: Any) -> None:
    """Adds overlaps of texts by what is active in each, `(2 N, F)`: first tellings, then second."""
    first, second = active.cpu().chunk(2)
    retold, unrelated = overlap_of_tellings(first, second)
    stories = range(len(retold))
    for texts, overlaps in (("retold", retold), ("unrelated", unrelated)):
        table.add(f"{what} overlap", overlaps, texts=texts, story=stories, **axes)
    table.add(f"{what} overlap", chance_overlap(active.cpu()), texts="chance", **axes)
    above = retold - unrelated
    table.add(f"{what} overlap above unrelated", above, story=stories, **axes)


@lens(
    "features",
    "Shared features",
    order=11,
    main=(("feature overlap above unrelated", {}), ("token overlap above unrelated", {})),
    charts=[
        Lines(
            of="feature overlap",
            y="intersection over union",
            colour="texts",
            title="Do two tellings of one story share features?",
            about=f"Overlap of the {UNITS} active in two texts: tellings of one story, unrelated "
            "texts, and what the units' frequencies alone would give.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Whether two tellings of one story wake the same units, by layer."""
    tokens = retelling_tokens(checkpoint)
    units = hidden_units(checkpoint.model, tokens)
    most = max(1, round(units.shape[-1] * SHARE))
    for layer, values in enumerate(units, start=1):
        add_overlap(table, "feature", active_in_text(values, most), layer=layer, of=UNITS)
    used = torch.zeros(len(tokens), checkpoint.config.vocab_size, dtype=torch.bool)
    add_overlap(table, "token", used.scatter_(1, tokens.cpu(), True))
