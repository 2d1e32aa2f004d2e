"""What is asked about: model directories, with the provenance that every row carries."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig, count_parameters, load_model, load_pretrained
from eval import identity, shards
from eval.errors import RequestError
from eval.files import file_sha256

PRETRAINED = "hf:"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model: in evaluation mode, with its tokenizer and its provenance.

    Attributes:
        control: what was done to it, for a model to compare with; None for the model itself.
        weights: a hash that stands for the weights, where no file does.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    meta: dict[str, Any]
    path: Path
    control: str | None = None
    weights: str | None = None

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What was computed of the model and is asked for again; whoever has finished clears it."""
        return {}

    @cached_property
    def weights_sha256(self) -> str:
        """Names the weights: the hash of their file, or of the tensors of a pretrained model."""
        if self.weights:
            return self.weights
        file = self.path / "model.safetensors"
        if (self.path / "meta.json").is_file() and file.is_file():
            return file_sha256(file)
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def model_id(self) -> str:
        """Equal for the training steps and seeds of one model; see `eval.identity`."""
        facts = identity.recipe(self.meta, self.config, self.path, lambda: self.weights_sha256)
        return identity.model_id(self.meta["name"], facts)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The `checkpoint` field of a row."""
        step = int(self.meta.get("step", 0))
        return {
            "name": self.meta["name"],
            "model_id": self.model_id,
            "path": str(self.path),
            "step": step,
            "trained": step > 0 or "source" in self.meta,
            "mixers": list(self.config.mixers),
            "d_model": self.config.d_model,
            "n_layers": self.config.n_layers,
            "context": self.config.context,
            "parameters": count_parameters(self.model),
            "val_loss": self.meta.get("val_loss"),
            "init": self.config.init,
            "embedding_std": self.config.embedding_std,
            "weights_sha256": self.weights_sha256,
        }

    def pieces(self, tokens: list[int]) -> list[str]:
        """How each token reads on its own."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


def open_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> Checkpoint:
    """Loads a model for evaluation.

    Args:
        path: a model directory, or `hf:` and the name or directory of a transformers model.
        device: where to.

    Raises:
        ModelError: the directory is missing or its files do not belong together; a pretrained
            model that cannot be had.
    """
    name = str(path)
    pretrained = name.startswith(PRETRAINED)
    loaded = (
        load_pretrained(name[len(PRETRAINED) :], device) if pretrained else load_model(path, device)
    )
    loaded.model.requires_grad_(False)
    return Checkpoint(
        model=loaded.model,
        config=loaded.config,
        tokenizer=Tokenizer.from_str(loaded.tokenizer_json),
        meta=loaded.meta,
        path=loaded.path,
    )


def open_model(path: str | Path, device: str = "auto") -> Checkpoint:
    """Loads a model, as `open_checkpoint` does, on a device by its name.

    Args:
        path: a model directory, or `hf:` and the name or directory of a transformers model.
        device: cpu, cuda, or auto: a GPU that is in reach.

    Raises:
        ModelError: a model directory that cannot be read, a pretrained model that cannot be had.
        RequestError: no such device, or none in reach.
    """
    return open_checkpoint(path, device_of(device))


def open_models(
    models: Sequence[str | Path | Checkpoint] | str | Path | Checkpoint, device: str
) -> list[Checkpoint]:
    """Loads every model directory before anything is computed; models that are open stay so.

    Raises:
        ModelError: a model directory that cannot be read, a pretrained model that cannot be had.
        RequestError: no such device, or none in reach.
    """
    several = [models] if isinstance(models, str | Path | Checkpoint) else models
    place = device_of(device)
    return [m if isinstance(m, Checkpoint) else open_checkpoint(m, place) for m in several]


def device_of(name: str) -> torch.device:
    """The device that --device names; of several GPUs each of torchrun's processes takes its own.

    Raises:
        RequestError: no such device, or none in reach.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise RequestError(f"--device {name}: allowed are cpu, cuda and auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("--device cuda: no CUDA device is in reach; use --device cpu")
    number = shards.local_rank()
    if name == "cuda" and number is not None:
        torch.cuda.set_device(number % torch.cuda.device_count())  # what "cuda" means from here on
    return torch.device(name)
