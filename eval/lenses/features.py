"""Features that two texts share: do two tellings of one story wake the same units of a model?

A unit is active in a text if it is among the strongest few at any of its positions. Overlap is
intersection over union of the units active in two texts. Tellings of one story are compared with
tellings of different stories, and with what would be shared if units were active independently.
"""

from __future__ import annotations

import torch
from markupsafe import Markup
from torch import Tensor, nn

from arch import LanguageModel
from eval import RequestError, plots
from eval.lenses import markup
from eval.lenses.lens import Documents, Finding, Label, Request, lens, token_ids
from eval.lenses.stories import retellings
from eval.lenses.trace import blocks_of
from eval.models import Checkpoint

OUTPUTS = ("down", "down_proj", "c_proj", "fc_out", "2")
"""What the layer after the hidden units is called, ours first, then in four families."""
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
        "gelu, swiglu and the wrapped families"
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
    rows = [token_ids(checkpoint.tokenizer, text) for text in texts]
    length = min(checkpoint.config.context, *map(len, rows))
    device = checkpoint.model.embedding.weight.device
    return torch.tensor([ids[:length] for ids in rows], device=device)


def add_overlap(
    finding: Finding, tokens: Tensor, active: dict[int, Tensor], vocabulary: int
) -> None:
    """Adds overlaps by layer, with intervals over stories.

    The tokens `(2 N, T)` are those of first tellings, then of second ones; how many of them two
    texts share needs no model. Units active in each text are `(2 N, F)`, by layer.
    """
    used = torch.zeros(len(tokens), vocabulary, dtype=torch.bool).scatter_(1, tokens.cpu(), True)
    sets: dict[Label, Tensor] = {"tokens": used, **active}
    for layer, texts in sets.items():
        retold, unrelated = overlap_of_tellings(*texts.cpu().chunk(2))
        chance, place = chance_overlap(texts.cpu()), {"of": UNITS, "layer": layer}
        finding.mean("feature overlap", retold.tolist(), texts="retold", **place)
        finding.mean("feature overlap", unrelated.tolist(), texts="unrelated", **place)
        finding.number("feature overlap", chance, texts="chance", **place)
        finding.mean("overlap above unrelated", (retold - unrelated).tolist(), **place)


def _draw(documents: Documents) -> list[plots.Figure]:
    rows = [r for r in documents.figures("feature overlap") if r["layer"] != "tokens"]
    chart = plots.lines(rows, "layer", "intersection over union", "texts")
    return [
        plots.Figure(
            "features-overlap",
            "Do two tellings of one story share features?",
            f"Overlap of the {UNITS} active in two texts: tellings of one story, "
            "unrelated texts, and what the units' frequencies alone would give.",
            plots.by_model(chart, rows),
        )
    ]


def _shared_tokens(documents: Documents) -> list[Markup]:
    rows = [
        (r["model"], r["texts"], f"{r['value']:.3f}")
        for r in documents.figures("feature overlap")
        if r["layer"] == "tokens"
    ]
    table = markup.html_table(("checkpoint", "texts", "intersection over union"), rows)
    return [markup.folded("how many tokens the texts share", table)]


@lens("features", "Shared features", figures=_draw, texts=_shared_tokens, order=14)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Whether two tellings of one story wake the same units, by layer."""
    tokens, finding = retelling_tokens(checkpoint), Finding()
    units = hidden_units(checkpoint.model, tokens)
    most = max(1, round(units.shape[-1] * SHARE))
    active = {layer: active_in_text(values, most) for layer, values in enumerate(units, 1)}
    add_overlap(finding, tokens, active, checkpoint.config.vocab_size)
    return finding
