"""What is asked about: model directories, with the provenance that every row carries."""

import hashlib
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig, count_parameters, load_model, load_pretrained
from eval import identity as identities
from eval import tasks
from eval.errors import RequestError

PRETRAINED = "hf:"
Kept = TypeVar("Kept")
_MADE: WeakKeyDictionary[LanguageModel, dict[str, Any]] = WeakKeyDictionary()


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
        """What `keep` has made; `eval.tasks` lets it go when the tasks of the model are done."""
        return {}

    def release(self) -> None:
        """Lets go all that was computed of the model."""
        self.kept.clear()
        _MADE.pop(self.model, None)

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was computed of the model under a key, or is computed now."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    @cached_property
    def weights_sha256(self) -> str:
        """Names the weights: the hash of their file, or of the tensors of a pretrained model."""
        if self.weights:
            return self.weights
        file = self.path / "model.safetensors"
        if (self.path / "meta.json").is_file() and file.is_file():
            return identities.file_sha256(file)
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def model_id(self) -> str:
        """Equal for the training steps and seeds of one model; see `eval.identity`."""
        facts = identities.recipe(self.meta, self.config, self.path, lambda: self.weights_sha256)
        return identities.model_id(self.meta["name"], facts)

    @cached_property
    def identity(self) -> tuple[str, int, str]:
        """What keys of rows name it by: its name, training step and weights."""
        return self.meta["name"], int(self.meta.get("step", 0)), self.weights_sha256

    def check_layer(self, layer: int) -> None:
        """Refuses a layer that the model has not.

        Raises:
            RequestError: naming `--layers`.
        """
        if not 0 <= layer <= self.config.n_layers:
            raise RequestError(
                f"--layers {layer}: {self.path} has layers 0 (the embedding) to "
                f"{self.config.n_layers}"
            )

    def check_length(self, length: int) -> None:
        """Refuses more tokens than the model's context holds.

        Raises:
            RequestError: naming `--length`.
        """
        if length > self.config.context:
            raise RequestError(
                f"--length {length}: the context of {self.path} is {self.config.context}; give a "
                "shorter one"
            )

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


def of_model(model: LanguageModel, name: str, make: Callable[[], Kept]) -> Kept:
    """What was computed of a model under a name, or is computed now: once for all its sites.

    It is let go with the model, or by `Checkpoint.release`, and must not hold the model.
    """
    made = _MADE.setdefault(model, {})
    if name not in made:
        made[name] = make()
    return made[name]


def rows_at_once(checkpoint: Checkpoint, length: int) -> int:
    """How many prompts of `length` tokens a gradient method treats at once, a power of two.

    What half of a GPU's free memory holds, or a quarter of the machine's: gradients through all
    blocks, and scores of the vocabulary. At most 1024 on a GPU and 64 on a CPU, which more rows
    make no faster. Rows of a batch do not touch each other.
    """
    config, device = checkpoint.config, checkpoint.model.embedding.weight.device
    if device.type == "cuda":
        room, most = torch.cuda.mem_get_info(device)[0] // 2, 1024
    else:
        room, most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4, 64
    row = 4 * length * (3 * config.vocab_size + 32 * config.d_model * (1 + config.n_layers))
    return 1 << (max(1, min(most, room // row)).bit_length() - 1)


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
    number = tasks.local_rank()
    if name == "cuda" and number is not None:
        torch.cuda.set_device(number % torch.cuda.device_count())  # what "cuda" means from here on
    return torch.device(name)
