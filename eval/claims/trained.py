"""Trained model directories: which are of one architecture, and which are seeds of one model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch import ModelConfig
from arch.mixers import parse_mixer
from eval.errors import RequestError
from eval.identity import of_directory

Kind = tuple[Any, ...]


@dataclass(frozen=True)
class Trained:
    """A model directory.

    Attributes:
        model_id: equal for the training steps and seeds of one model (`eval.identity`).
        step: how far it was trained.
    """

    path: Path
    model_id: str
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
    for path in (file.parent for file in sorted(models.rglob("meta.json"))):
        file = path / "config.json"
        if file.is_file():
            meta = json.loads((path / "meta.json").read_text("utf-8"))
            config = ModelConfig.from_json(file.read_text("utf-8"), str(file))
            model_id, _ = of_directory(path, meta, config)
            found.append(Trained(path, model_id, config, meta.get("step", 0)))
    return found


def seeds_of_one(models: Iterable[Trained]) -> list[Trained]:
    """Those of one model: the one of most directories, of several the first."""
    groups: dict[str, list[Trained]] = {}
    for one in models:
        groups.setdefault(one.model_id, []).append(one)
    return max(groups.values(), key=len, default=[])


def kind_of(config: ModelConfig) -> Kind:
    """The architecture, whatever the size, recipe, seed, data or vocabulary."""
    mixers = [
        [(mixer.__name__, *sorted(_arguments(mixer, given).items())) for mixer, given in terms]
        for terms in (parse_mixer(entry) for entry in config.mixers)
    ]
    return str(mixers), config.channel_mixer, config.norm


def shape_of(config: ModelConfig) -> tuple[int, int]:
    """Width and depth."""
    return config.d_model, config.n_layers


def _arguments(mixer: type, given: dict[str, Any]) -> dict[str, Any]:
    """All keyword arguments of a mixer, those not given as they are by default."""
    parameters = inspect.signature(mixer).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | given
