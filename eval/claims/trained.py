"""Trained model directories, and which of them differ in their seed only."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch import ModelConfig
from arch.mixers import MIXERS
from arch.pattern import parse
from eval.errors import RequestError

Kind = tuple[Any, ...]


@dataclass(frozen=True)
class Trained:
    """A model directory: its configuration, and after how many training steps it is."""

    path: Path
    config: ModelConfig
    step: int


def trained(models: Path) -> list[Trained]:
    """All model directories under a directory, at any depth, in the order of their paths.

    Raises:
        RequestError: no such directory.
        ModelError: a configuration that is not one.
    """
    if not models.is_dir():
        raise RequestError(f"--models {models}: no such directory; give one of runs")
    found = []
    for meta in sorted(models.rglob("meta.json")):
        file = meta.parent / "config.json"
        if file.is_file():
            step = json.loads(meta.read_text("utf-8")).get("step", 0)
            config = ModelConfig.from_json(file.read_text("utf-8"), str(file))
            found.append(Trained(meta.parent, config, step))
    return found


def kind_of(config: ModelConfig) -> Kind:
    """Equal for models that differ in their size, seed, data or vocabulary only."""
    mixers = [
        [(mixer.__name__, *sorted(_arguments(mixer, given).items())) for mixer, given in terms]
        for terms in (parse(entry, MIXERS, "mixer") for entry in config.mixers)
    ]
    return str(mixers), config.channel_mixer, config.norm


def shape_of(config: ModelConfig) -> tuple[int, int]:
    """Width and depth."""
    return config.d_model, config.n_layers


def _arguments(mixer: type, given: dict[str, Any]) -> dict[str, Any]:
    """All keyword arguments of a mixer, those not given as they are by default."""
    parameters = inspect.signature(mixer).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | given
