"""Length as confidence: what a factor on the final vector, or a temperature, does to the answer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.lenses.trace import gather
from eval.models import Checkpoint

SCALES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
TEMPERATURES = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 10.0, 100.0, 1000.0)
PLACES = ("after norm", "before norm")
"""Where the factor stands: on what the head reads, or on the stream whose length the norm sets."""
POSITIONS = 64  # of the prompts, evenly spaced
QUANTILES = (0.1, 0.5, 0.9)


def sharpness(logits: Tensor) -> Tensor:
    """Entropy in bits and the best token's probability of `(..., V)` logits, `(..., 2)`."""
    logs = logits.float().log_softmax(dim=-1)
    p = logs.exp()
    return torch.stack([-(p * logs).sum(dim=-1) / math.log(2), p.amax(dim=-1)], dim=-1)


@torch.no_grad()
def scaled(model: LanguageModel, hidden: Tensor, scales: tuple[float, ...], place: str) -> Tensor:
    """Entropy and best probability when the last block's outputs `(N, D)` are scaled in a place.

    Scales are 0 and more; the result is `(scales, N, 2)`.
    """
    before, final = place == "before norm", model.norm(hidden)
    read = [model.norm(scale * hidden) if before else scale * final for scale in scales]
    return torch.stack([sharpness(model.head(x)) for x in read])


def heated(logits: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """Entropy and best probability of `(N, V)` logits by temperature, `(temperatures, N, 2)`."""
    return torch.stack([sharpness(logits / t) for t in temperatures])


def rising(values: Tensor, slack: float = 1e-4) -> float:
    """Share of the N curves `(S, N)` that never fall."""
    return float((values.diff(dim=0) >= -slack).all(dim=0).float().mean())


def _draw(documents: Documents) -> list[plots.Figure]:
    entropy = documents.records("scale", quantile=0.5, measure="entropy")
    heated = documents.records("temperature", quantile=0.5, measure="best")
    wide = {"type": "symlog", "constant": 0.1}
    return [
        plots.Figure(
            "confidence-length",
            "Is a vector's length its confidence?",
            "Median entropy of the next token as the final vector is scaled; before the norm, "
            "scaling changes nothing.",
            plots.by_model(
                plots.lines(entropy, "scale", "entropy, bits", "part", x_scale=wide), entropy
            ),
        ),
        plots.Figure(
            "confidence-temperature",
            "What does temperature do?",
            "Median probability of the likeliest token.",
            plots.lines(heated, "temperature", "probability", "model", x_scale={"type": "log"}),
        ),
    ]


@lens("confidence", "Length, temperature, confidence", figures=_draw, order=6)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """What the final vector's length, or a temperature, decides."""
    model, batch, finding = checkpoint.model, gather(checkpoint, request.prompts), Finding()
    hidden = batch.streams[-1][batch.real]
    hidden = hidden[:: math.ceil(len(hidden) / POSITIONS)]
    final = model.norm(hidden)
    logits = model.head(final)
    by_scale = torch.stack([scaled(model, hidden, SCALES, place) for place in PLACES])
    by_heat = heated(logits, TEMPERATURES)
    entropy, best = by_scale[0].unbind(-1)
    unmoved = by_scale[1, 1:, :, 0]
    finding.numbers(
        {
            "entropy at length 0": entropy[0].mean(),
            "entropy of uniform": math.log2(checkpoint.config.vocab_size),
            "best probability at length 1000": best[-1].mean(),
            "confidence rises with length": rising(best),
            "entropy falls with length": rising(-entropy),
            "confidence falls with heat": rising(-by_heat[..., 1]),
            "best probability at T 0.001": by_heat[0, :, 1].mean(),
            "best probability at T 1000": by_heat[-1, :, 1].mean(),
            "entropy range before norm": (unmoved.amax(dim=0) - unmoved.amin(dim=0)).mean(),
        }
    )
    entropies = sharpness(logits)[:, 0]
    for place, vectors in zip(PLACES, (final, hidden), strict=True):
        value = torch.corrcoef(torch.stack([vectors.float().norm(dim=1), entropies]))[0, 1]
        if not value.isnan():
            finding.number("length with entropy", value, part=place)
    axes = {"quantile": QUANTILES, "measure": ("entropy", "best")}
    for name, values, places in (
        ("scale", by_scale, {"part": PLACES, "scale": SCALES}),
        ("temperature", by_heat, {"temperature": TEMPERATURES}),
    ):
        levels = torch.tensor(QUANTILES, dtype=values.dtype, device=values.device)
        finding.array(name, values.quantile(levels, dim=-2).movedim(0, -2), {**places, **axes})
    return finding
