"""What is asked about: model directories, with the provenance that every row carries."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig, count_parameters, load_model


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model directory: the model in evaluation mode, its tokenizer, its provenance."""

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    meta: dict[str, Any]
    path: Path

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The `checkpoint` field of a row."""
        step = int(self.meta.get("step", 0))
        return {
            "name": self.meta["name"],
            "path": str(self.path),
            "step": step,
            "trained": step > 0,
            "mixers": list(self.config.mixers),
            "d_model": self.config.d_model,
            "n_layers": self.config.n_layers,
            "context": self.config.context,
            "parameters": count_parameters(self.model),
            "val_loss": self.meta.get("val_loss"),
            "weights_sha256": _sha256(self.path / "model.safetensors"),
        }

    def pieces(self, tokens: list[int]) -> list[str]:
        """How each token reads on its own."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


def open_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> Checkpoint:
    """Loads a model directory for evaluation.

    Raises:
        ModelError: the directory is missing or its files do not belong together.
    """
    loaded = load_model(path, device)
    loaded.model.requires_grad_(False)
    return Checkpoint(
        model=loaded.model,
        config=loaded.config,
        tokenizer=Tokenizer.from_str(loaded.tokenizer_json),
        meta=loaded.meta,
        path=loaded.path,
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
