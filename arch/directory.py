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
from safetensors.torch import save

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.files import read_json, read_text, write_directory
from arch.model import LanguageModel
from arch.weights import build_model, check_weights, drop_padding, read_weights, weights_of

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
        (temporary / "model.safetensors").write_bytes(save(weights_of(model)))
        (temporary / "config.json").write_text(model.config.to_json() + "\n")
        (temporary / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        (temporary / "meta.json").write_text(json.dumps(full_meta, indent=2) + "\n")

    write_directory(directory, write)
    return directory


def load_model(directory: str | Path, device: str | torch.device = "cpu") -> LoadedModel:
    """Reads a model directory in evaluation mode, checking that its files belong together.

    Rows of the embedding and the head that no token has are left out (`vocab_multiple`).

    Raises:
        ModelError: no such directory, not a model directory, a tokenizer of another vocabulary or
            another hash, weights that are cut short or do not fit the configuration.
    """
    directory = Path(directory)
    config, tokenizer_json, meta = _read_all_but_weights(directory)
    weights = read_weights(directory / "model.safetensors")
    model = drop_padding(build_model(config, weights, str(directory)), config.vocab_size)
    return LoadedModel(model.to(device), model.config, tokenizer_json, meta, directory)


def check_model(directory: str | Path) -> ModelConfig:
    """The configuration of a model directory, checked like `load_model` without reading weights.

    Raises:
        ModelError: as there.
    """
    directory = Path(directory)
    config, *_ = _read_all_but_weights(directory)
    check_weights(directory / "model.safetensors", config, str(directory))
    return config


def _read_all_but_weights(directory: Path) -> tuple[ModelConfig, str, dict[str, Any]]:
    """Configuration, tokenizer and meta data, which belong together."""
    if not directory.is_dir():
        raise ModelError(f"{directory}: no such model directory")
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} is not a model directory: it has no {', '.join(missing)}")
    config = ModelConfig.from_json(
        read_text(directory / "config.json"), str(directory / "config.json")
    )
    meta = read_json(directory / "meta.json")
    if meta.get("schema") != SCHEMA:
        raise ModelError(
            f"{directory / 'meta.json'} has schema {meta.get('schema')!r}; allowed: {SCHEMA}"
        )
    tokenizer_json = read_text(directory / "tokenizer.json")
    size = vocabulary(directory / "tokenizer.json", tokenizer_json)
    if size != config.vocab_size:
        raise other_vocabulary(directory / "tokenizer.json", size, config.vocab_size)
    _check_hash(directory / "tokenizer.json", tokenizer_json, meta)
    return config, tokenizer_json, meta


def vocabulary(path: Path, tokenizer_json: str) -> int:
    """How many entries a `tokenizer.json` has.

    Raises:
        ModelError: it is no tokenizer.
    """
    try:
        tokenizer = json.loads(tokenizer_json)
        added = {entry["content"] for entry in tokenizer["added_tokens"]}
        return len(added | set(tokenizer["model"]["vocab"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ModelError(f"{path} is not a tokenizer file") from None


def other_vocabulary(path: Path, size: int, vocab_size: int) -> ModelError:
    """The line for a tokenizer of `size` entries beside a model of `vocab_size` tokens."""
    return ModelError(
        f"{path} has {size} entries, the model has {vocab_size}; "
        "use the tokenizer that the model was trained with"
    )


def _check_hash(path: Path, tokenizer_json: str, meta: dict[str, Any]) -> None:
    found, recorded = _sha256(tokenizer_json), meta.get("tokenizer_sha256")
    if found != recorded:
        raise ModelError(
            f"{path} has hash {found[:12]}, meta.json says {str(recorded)[:12]}; "
            "use the tokenizer that the model was trained with"
        )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
