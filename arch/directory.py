"""The model directory: the one exchange format between training and evaluation.

`model.safetensors, config.json, tokenizer.json, meta.json`. A directory is whole or it is not
there.
"""

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.files import read_json, read_text, write_directory
from arch.mixers import Triangle
from arch.model import LanguageModel

SCHEMA = 1
FILES = ("model.safetensors", "config.json", "tokenizer.json", "meta.json")


@dataclass(frozen=True)
class LoadedModel:
    """What a model directory held."""

    model: LanguageModel
    config: ModelConfig
    tokenizer_json: str
    meta: dict[str, Any]
    path: Path


def save_model(
    directory: str | Path, model: LanguageModel, tokenizer_json: str, meta: dict[str, Any]
) -> Path:
    """Writes a model directory, replacing one that is there; atomic either way.

    Args:
        directory: where; its parents are made.
        model: its weights are saved in their own precision, triangles with zeros above.
        tokenizer_json: the text of the tokenizer's `tokenizer.json`.
        meta: provenance (step, tokens_seen, hashes, ...), extended by schema, hash and versions.

    Raises:
        ModelError: something else is there, or the model is another project's.
        OSError: the disk is full or the place cannot be written; nothing is left behind, and a
            directory that was there stays as it was.
    """
    directory = Path(directory)
    if type(model.config) is not ModelConfig:
        raise ModelError(
            f"{directory}: a wrapped {model.config.mixers[0]} model cannot be saved here"
        )
    full_meta = {
        "schema": SCHEMA,
        "name": directory.name,
        **meta,
        "tokenizer_sha256": _sha256(tokenizer_json),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }

    def write(temporary: Path) -> None:
        # Bytes through Python's own file: safetensors' writer would hide a full disk from callers.
        (temporary / "model.safetensors").write_bytes(save(_weights(model)))
        (temporary / "config.json").write_text(model.config.to_json() + "\n")
        (temporary / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        (temporary / "meta.json").write_text(json.dumps(full_meta, indent=2) + "\n")

    write_directory(directory, write)
    return directory


def load_model(directory: str | Path, device: str | torch.device = "cpu") -> LoadedModel:
    """Reads a model directory in evaluation mode, checking that its files belong together.

    Raises:
        ModelError: no such directory, not a model directory, a tokenizer of another vocabulary or
            another hash, weights that do not fit the configuration.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelError(f"{directory}: no such model directory")
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} is not a model directory: it has no {', '.join(missing)}")
    config = ModelConfig.from_json(
        read_text(directory / "config.json"), str(directory / "config.json")
    )
    meta = read_json(directory / "meta.json")
    tokenizer_json = read_text(directory / "tokenizer.json")
    _check_tokenizer(directory, tokenizer_json, config, meta)
    try:
        weights = load_file(directory / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{directory / 'model.safetensors'} cannot be read: {error}") from None
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten: draw for nobody
        model = LanguageModel(config)
    _load_weights(model, weights, directory)
    return LoadedModel(model.to(device).eval(), config, tokenizer_json, meta, directory)


def _weights(model: LanguageModel) -> dict[str, Tensor]:
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if not (model.config.tied and name == "head.weight")
    }
    for name, module in model.named_modules():
        if isinstance(module, Triangle):
            weights[f"{name}.weight"] = weights[f"{name}.weight"].tril()
    return weights


def _load_weights(model: LanguageModel, weights: dict[str, Tensor], directory: Path) -> None:
    if model.config.tied and "embedding.weight" in weights:
        weights = {**weights, "head.weight": weights["embedding.weight"]}
    expected = model.state_dict()
    wrong = [f"no {name}" for name in sorted(expected.keys() - weights.keys())]
    wrong += [f"unknown {name}" for name in sorted(weights.keys() - expected.keys())]
    wrong += [
        f"{name} is {tuple(weights[name].shape)}, the configuration says {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ModelError(
            f"{directory}: the weights do not fit config.json: {'; '.join(wrong[:3])}{more}"
        )
    model.load_state_dict(weights, assign=True)  # in the precision that they were saved in
    if model.config.tied:
        model.head.weight = model.embedding.weight
    for module in model.modules():
        if isinstance(module, Triangle):
            with torch.no_grad():
                module.weight.tril_()


def _check_tokenizer(
    directory: Path, tokenizer_json: str, config: ModelConfig, meta: dict[str, Any]
) -> None:
    try:
        tokenizer = json.loads(tokenizer_json)
        added = {entry["content"] for entry in tokenizer["added_tokens"]}
        size = len(added | set(tokenizer["model"]["vocab"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ModelError(f"{directory / 'tokenizer.json'} is not a tokenizer file") from None
    if size != config.vocab_size:
        raise ModelError(
            f"{directory}: tokenizer.json has {size} entries, the model has {config.vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    found, recorded = _sha256(tokenizer_json), meta.get("tokenizer_sha256")
    if found != recorded:
        raise ModelError(
            f"{directory}: tokenizer.json has hash {found[:12]}, meta.json says "
            f"{str(recorded)[:12]}; use the tokenizer that the model was trained with"
        )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
