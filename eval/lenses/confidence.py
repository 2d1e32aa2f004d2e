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
    """The best probability of `(N, V)` logits by temperature, `(temperatures, N)`."""
    return torch.stack([sharpness(logits / t)[..., 1] for t in temperatures])


def rising(values: Tensor, slack: float = 1e-4) -> float:
    """Share of the N curves `(S, N)` that never fall."""
    return float((values.diff(dim=0) >= -slack).all(dim=0).float().mean())


def _draw(documents: Documents) -> list[plots.Figure]:
    entropy = documents.records("scale")
    heated = documents.records("temperature")
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
    by_scale = torch.stack([scaled(model, hidden, SCALES, place) for place in PLACES])
    heat = heated(model.logits(hidden), TEMPERATURES)
    entropy, best = by_scale[0].unbind(-1)
    finding.numbers(
        {
            "entropy at length 0": entropy[0].mean(),
            "best probability at length 1000": best[-1].mean(),
            "confidence rises with length": rising(best),
            "confidence falls with heat": rising(-heat),
            "best probability at T 0.001": heat[0].mean(),
            "best probability at T 1000": heat[-1].mean(),
        }
    )
    scales, temperatures = {"part": PLACES, "scale": SCALES}, {"temperature": TEMPERATURES}
    finding.array("scale", by_scale[..., 0].quantile(0.5, dim=-1), scales)
    finding.array("temperature", heat.quantile(0.5, dim=-1), temperatures)
    return finding
