"""Where every layer looks: patterns and masked matrices, how far, how rich, and what training did.

python -m eval lens DIR --lens mixing --corpus stories.txt --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eval import plots
from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses.change import SHOWN, change_records, changes
from eval.lenses.documents import Document, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.maps import Map, maps_of
from eval.lenses.named import Named
from eval.lenses.profile import (
    CORNER,
    by_lag,
    effective_rank,
    first_share,
    mean_distance,
    own_share,
    participation,
    spectrum,
)
from eval.lenses.separate import separated
from eval.lenses.trace import gather

PICTURED = 48  # positions of a picture
LAGS = ("absolute", "signed")
STAGES = ("now", "start", "change")


def figures_of(found: Map) -> dict[str, float]:
    """Of one matrix, means over prompts; ranks are of the first prompt's."""
    weights = found.weights.float()
    first = weights if weights.dim() == 2 else weights[0]
    singular = spectrum(first)
    return {
        "looks on itself": float(own_share(weights).mean()),
        "looks on the first": float(first_share(weights).mean()),
        "looks back": float(mean_distance(weights).mean()),
        "map effective rank": float(effective_rank(singular)),
        "map participation": float(participation(singular)),
    }


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """Maps, and how far they reach."""
    maps = [r for r in records(documents, "maps") if r["reads"] <= r["position"]]
    lags = records(documents, "by lag")
    reach = [r for r in lags if r["sign"] == "absolute"]
    pictures = plots.heat(
        maps,
        "reads",
        "position",
        "weight",
        plots.DIVERGING,
        sort_x="ascending",
        sort_y="ascending",
        size=(420, 420),
    )
    return [
        plots.Figure(
            "mixing-maps",
            "Where does each position look?",
            "Attention patterns on the first prompt, and the triangles of masked mixers: how much "
            "a position takes of each before it.",
            plots.chosen(pictures, maps, "model", "map"),
        ),
        plots.Figure(
            "mixing-lags",
            "How far back?",
            "Mean size of the weight by distance, a line for each map.",
            plots.by_model(plots.lines(reach, "lag", "mean weight", "map", ordered=True), reach),
        ),
    ]


@lens(
    name="mixing",
    title="Where the mixers look",
    about="where every layer looks, how far, and what training did to it",
    figures=draw,
    order=9,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Maps of every mixer on the prompts, how far they reach, and what training changed.

    Raises:
        RequestError: a prompt of one token, or a mixer whose maps are not known.
    """
    batch = gather(checkpoint, request.prompts)
    shortest = int(batch.real.sum(dim=1).min())
    if shortest < 2:
        raise RequestError("--text: a prompt has one token; where it looks takes two at least")
    tokens = batch.tokens[:, :shortest]
    maps = maps_of(checkpoint.model, tokens)
    arrays, figures = _pictures(maps, checkpoint, batch.tokens[:1, : int(batch.last[0]) + 1])
    for record in separated(checkpoint.model, tokens[:1, :CORNER], request.seed):
        figures.append({"figure": "minds", **record})
    moved = changes(checkpoint, request.seed)
    figures += change_records(moved)
    if moved:
        labels = [change.label for change in moved]
        lags = torch.stack([change.lags() for change in moved])
        spectra = torch.stack([change.spectra for change in moved])
        context = range(checkpoint.config.context)
        arrays["change by lag"] = Named(lags, {"map": labels, "stage": STAGES, "lag": context})
        axes = {"map": labels, "stage": STAGES, "rank": range(SHOWN)}
        arrays["change spectrum"] = Named(spectra, axes)
    return Finding(arrays, figures, {"start": moved[0].start if moved else None})


def _pictures(
    maps: list[Map], checkpoint: Checkpoint, first: torch.Tensor
) -> tuple[dict[str, Named], list[dict[str, Any]]]:
    """The first prompt's pictures; profiles and figures over all prompts."""
    if not maps:
        return {}, []
    labels = [one.label for one in maps]
    shown = first[:, :PICTURED]
    own = maps_of(checkpoint.model, shown)
    pictures = torch.stack([_single(one.weights) for one in own])
    lags = []
    for one in maps:
        weights = one.weights.float()
        both = torch.stack(by_lag(weights))
        lags.append(both if both.dim() == 2 else both.mean(dim=1))
    positions = range(shown.shape[1])
    arrays = {
        "maps": Named(pictures, {"map": labels, "position": positions, "reads": positions}),
        "by lag": Named(
            torch.stack(lags), {"map": labels, "sign": LAGS, "lag": range(lags[0].shape[1])}
        ),
    }
    figures = [
        {"figure": figure, **one.place, "value": value}
        for one in maps
        for figure, value in figures_of(one).items()
    ]
    return arrays, figures


def _single(weights: torch.Tensor) -> torch.Tensor:
    return (weights if weights.dim() == 2 else weights[0]).float()
