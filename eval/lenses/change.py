"""How a mixer's trained matrices differ from where they started.

    python -m eval lens DIR --lens mixing --out results

A run keeps its start as `step-000000`; a model without one is held against a fresh draw from its
own initialisation, which has the same statistics but not the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel, ModelConfig, load_model
from eval.checkpoints import Checkpoint
from eval.lenses.maps import mixers_of, triangles
from eval.lenses.profile import by_lag, effective_rank, participation, spectrum

START = "step-000000"
SAVED, DRAWN = "saved", "drawn"
SHOWN = 64  # singular values, as many as there are positions for


@dataclass(frozen=True)
class Change:
    """One matrix now, at its start, and what lies between.

    Attributes:
        layer: the block's number, from 1.
        mixer: the token mixer's class, in small letters.
        part: which of its matrices.
        start: `saved` or `drawn`.
        now: `(T, T)`.
        before: `(T, T)`.
    """

    layer: int
    mixer: str
    part: str
    start: str
    now: Tensor
    before: Tensor

    @property
    def label(self) -> str:
        """Names it within its model."""
        return f"{self.layer} {self.mixer} {self.part}".rstrip()

    def lags(self) -> Tensor:
        """Mean absolute weight by lag: now, before, and signed change; `(3, T)`."""
        now, _ = by_lag(self.now)
        before, _ = by_lag(self.before)
        _, moved = by_lag(self.now - self.before)
        return torch.stack([now, before, moved])

    @cached_property
    def spectra(self) -> Tensor:
        """Largest singular values now, before and of the difference, `(3, SHOWN)`, or zeros."""
        values = spectrum(torch.stack([self.now, self.before, self.now - self.before]))
        return F.pad(values, (0, max(0, SHOWN - values.shape[1])))

    def figures(self) -> dict[str, float]:
        """Growth of the size; from a saved start also how far, and in which direction."""
        size = self.before.norm().clamp(min=1e-30)
        moved = self.now - self.before
        found = {"weights grown": float(self.now.norm() / size)}
        if self.start == SAVED:
            angle = (self.now * self.before).sum() / size / self.now.norm().clamp(min=1e-30)
            values = self.spectra[2]
            found |= {
                "weights changed": float(moved.norm() / size),
                "weights cosine with start": float(angle),
                "change effective rank": float(effective_rank(values)),
                "change participation": float(participation(values)),
            }
        return found


def start_of(checkpoint: Checkpoint, seed: int) -> tuple[str, LanguageModel] | None:
    """A model before training, and whether it is the saved one; None for a wrapped model."""
    config = checkpoint.config
    if type(config) is not ModelConfig:
        return None
    saved = checkpoint.path.parent / START
    if saved.is_dir():
        loaded = load_model(saved, checkpoint.model.embedding.weight.device)
        if loaded.config == config:
            return SAVED, loaded.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DRAWN, LanguageModel(config).to(checkpoint.model.embedding.weight.device)


def changes(checkpoint: Checkpoint, seed: int) -> list[Change]:
    """Every masked matrix beside its start, over the whole context; none for attention."""
    if not any(triangles(mixer, 1) for _, mixer in mixers_of(checkpoint.model)):
        return []
    start = start_of(checkpoint, seed)
    if start is None:
        return []
    T, (kind, model) = checkpoint.config.context, start
    found = []
    pairs = zip(mixers_of(checkpoint.model), mixers_of(model), strict=True)
    for (layer, mixer), (_, first) in pairs:
        now, before = triangles(mixer, T), triangles(first, T)
        name = type(mixer).__name__.lower()
        found += [Change(layer, name, part, kind, now[part], before[part]) for part in now]
    return found


def change_records(found: list[Change]) -> list[dict[str, Any]]:
    """Figures of all of them."""
    return [
        {
            "figure": figure,
            "layer": change.layer,
            "mixer": change.mixer,
            "part": change.part,
            "start": change.start,
            "value": value,
        }
        for change in found
        for figure, value in change.figures().items()
    ]
