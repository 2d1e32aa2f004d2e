"""The model directory: the one exchange format between training and evaluation.

`model.safetensors, config.json, tokenizer.json, meta.json`. A directory is whole or it is not
there. Saved triangles are zero above the diagonal, and a tied head is held once.
"""

import difflib
import hashlib
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from arch.config import ModelConfig
from arch.errors import ModelError, printable, say, show_value
from arch.mixers import refuse_foreign
from arch.model import LanguageModel
from arch.storage.files import read_json, read_text, write_directory, write_file
from arch.storage.runs import find_model
from arch.storage.weights import build_model, check_weights, drop_padding, read_weights, weights_of

SCHEMA = 1
META = {
    "name": ((str,), "a name"),
    "step": ((int,), "a whole number"),
    "tokens_seen": ((int,), "a whole number"),
    "seed": ((int,), "a whole number"),
    "model_id": ((str,), "a text"),
    "source": ((str,), "a text"),
    "data": ((str,), "a text"),
    "data_source": ((str,), "a text"),
    "field": ((str,), "the name of a column"),
    "data_sha256": ((str,), "a text"),
    "tokenizer_sha256": ((str,), "a text"),
    "val_loss": ((int, float), "a number"),
    "val_bits_per_byte": ((int, float), "a number"),
    "valid_fraction": ((int, float), "a number"),
    "source_files": ((dict,), "train or valid by hash"),
    "begin": ((str,), "a token"),
    "end": ((str,), "a token"),
    "stops": ((list,), "a list of tokens"),
    "recipe": ((dict,), "settings by name"),
}
"""Fields of meta.json that are read, and the types that they may have beside null."""
MULTIPLES = (1, 8, 16, 32, 64, 128, 256, 512)
"""What the rows of an embedding are commonly padded to."""
REQUIRED, COUNTS = ("name",), ("step", "tokens_seen")
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

    Weights are saved in their own precision, triangles with zeros above. `meta` is the provenance
    (step, tokens_seen, hashes, ...), extended by schema, hash and versions.

    Raises:
        ModelError: something else is there, the model is another project's or has other weights
            than its configuration says, the tokenizer is of another vocabulary, or meta data are of
            types that their readers do not take.
        OSError: the disk is full or the place cannot be written; nothing is left behind, and a
            directory that was there stays as it was.
    """
    directory = Path(directory)
    if type(model.config) is not ModelConfig:
        raise ModelError(
            f"{directory}: a wrapped {model.config.mixers[0]} model cannot be saved here"
        )
    check_vocabulary(directory / FILES[2], tokenizer_json, model.config.vocab_size)
    meta = {
        "schema": SCHEMA,
        "name": directory.absolute().name,
        **meta,
        "tokenizer_sha256": _sha256(tokenizer_json),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    config = model.config.to_json() + "\n"
    content = _meta_as_json(meta, directory / FILES[3])
    contents = save(weights_of(model)), config.encode(), tokenizer_json.encode(), content
    write_directory(directory, dict(zip(FILES, contents, strict=True)))
    return directory


def add_to_meta(directory: Path, more: dict[str, Any]) -> None:
    """Adds what is known later to the provenance of a model directory, such as its loss; atomic.

    Raises:
        ModelError: of types that their readers do not take.
        OSError: as for `save_model`.
    """
    path = directory / "meta.json"
    write_file(path, _meta_as_json(read_json(path) | more, path))


def load_model(
    directory: str | Path, device: str | torch.device = "cpu", *, trust_code: bool = False
) -> LoadedModel:
    """Reads a model directory, or that of a run (`find_model`), in evaluation mode.

    Its files are checked to belong together.

    Rows of the embedding and the head that no token has are left out (`vocab_multiple`).

    Args:
        device: where the model goes.
        trust_code: whether its configuration may name mixers outside this project, as
            `module.Class`, whose code then runs; never one whose file lies in the directory.

    Raises:
        ModelError: no such directory, not a model directory, a mixer that is not trusted, a
            tokenizer of another vocabulary or another hash, weights that are cut short or do not
            fit the configuration.
    """
    directory = find_model(directory)
    config, tokenizer_json, meta = _read_all_but_weights(directory, trust_code)
    weights = read_weights(directory / "model.safetensors")
    model = drop_padding(build_model(config, weights, str(directory)), config.vocab_size)
    return LoadedModel(model.to(device), model.config, tokenizer_json, meta, directory)


def check_model(directory: str | Path, *, trust_code: bool = False) -> ModelConfig:
    """The configuration of a model directory, checked like `load_model` without reading weights.

    Raises:
        ModelError: as there.
    """
    directory = find_model(directory)
    config, *_ = _read_all_but_weights(directory, trust_code)
    check_weights(directory / "model.safetensors", config, str(directory))
    return config


def read_config(path: Path, *, trust_code: bool = False) -> ModelConfig:
    """The configuration in a model directory's `config.json`.

    Raises:
        ModelError: not a configuration, or a mixer that is not trusted.
    """
    config = ModelConfig.from_json(read_text(path), str(path))
    refuse_foreign(config.mixers, path.parent, trust_code, str(path))
    return config


def read_meta(path: Path) -> dict[str, Any]:
    """The provenance in a model directory's `meta.json`.

    Raises:
        ModelError: another schema, or a field of another type than its readers take.
    """
    meta = read_json(path)
    if meta.get("schema") != SCHEMA:
        given = show_value(meta.get("schema"))
        raise ModelError(f"{path} has schema {given}; allowed: {SCHEMA}")
    check_meta(meta, path)
    return meta


def check_meta(meta: dict[str, Any], path: Path) -> None:
    """Refuses a field of meta data that is of another type than its readers take.

    Raises:
        ModelError: naming the file, the field and its value.
    """
    for name, (kinds, words) in META.items():
        value = meta.get(name)
        fits = type(value) in kinds and (type(value) is not float or math.isfinite(value))
        needed = name in REQUIRED or (name in COUNTS and name in meta)
        if not fits and (needed or value is not None):
            raise ModelError(f"{path}: {name} is {show_value(value)}; expected {words}")
        if name in COUNTS and value is not None and not 0 <= value < 2**63:
            raise ModelError(f"{path}: {name} is {show_value(value)}; expected 0 or more")


def _read_all_but_weights(
    directory: Path, trust_code: bool
) -> tuple[ModelConfig, str, dict[str, Any]]:
    """Configuration, tokenizer and meta data, which belong together."""
    if directory.is_file():
        raise ModelError(f"{directory}: is a file; give a model directory")
    if not directory.is_dir():
        beside = directory.parent.iterdir() if directory.parent.is_dir() else ()
        alike = difflib.get_close_matches(directory.name, [path.name for path in beside], 1)
        hint = f"; did you mean {directory.parent / alike[0]}?" if alike else ""
        raise ModelError(f"{directory}: no such model directory{hint}")
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} is not a model directory: it has no {', '.join(missing)}")
    config = read_config(directory / "config.json", trust_code=trust_code)
    meta = read_meta(directory / "meta.json")
    file = directory / "tokenizer.json"
    tokenizer_json = read_text(file)
    check_vocabulary(file, tokenizer_json, config.vocab_size)
    sha256, recorded = _sha256(tokenizer_json), meta.get("tokenizer_sha256")
    if sha256 != recorded:
        raise ModelError(
            f"{file} has hash {sha256[:12]}, meta.json says {str(recorded)[:12]}; "
            "use the tokenizer that the model was trained with"
        )
    return config, tokenizer_json, meta


def vocabulary_size(path: Path | str, tokenizer_json: str) -> int:
    """How many rows a `tokenizer.json` needs, whose ids may have gaps; `path` is for errors.

    Raises:
        ModelError: it is no tokenizer.
    """
    try:
        tokenizer = json.loads(tokenizer_json)
        ids = token_ids(tokenizer)
        names = {entry["content"] for entry in tokenizer["added_tokens"]} | set(ids)
        return max(len(names), 1 + max(map(int, ids.values()), default=-1))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ModelError(f"{path} is not a tokenizer file") from None


def token_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """The ids of the vocabulary in a `tokenizer.json`, added tokens left out."""
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, list):  # of pieces and their scores, whose places are their ids
        return {piece[0]: token for token, piece in enumerate(vocabulary)}
    return vocabulary


def drop_rowless(path: Path | str, tokenizer_json: str, rows: int) -> str:
    """A tokenizer without the added tokens that a model of so many rows has no row for.

    As a pad that the tokenizer alone was given. They are said on stderr, as a text that spells one
    is read as ordinary words. What stands around every text stays, and so does all where an entry
    of the vocabulary has no row either. `path` is the tokenizer's, or what names it.

    Raises:
        ModelError: it is no tokenizer.
    """
    if vocabulary_size(path, tokenizer_json) <= rows:
        return tokenizer_json
    known = json.loads(tokenizer_json)
    around = json.dumps(known.get("post_processor"))
    dropped = [
        token
        for token in known["added_tokens"]
        if type(token.get("id")) is int and token["id"] >= rows
        if json.dumps(token["content"]) not in around
    ]
    known["added_tokens"] = [token for token in known["added_tokens"] if token not in dropped]
    fitting = json.dumps(known)
    if vocabulary_size(path, fitting) > rows:
        return tokenizer_json
    names = ", ".join(f"{token['content']} ({token['id']})" for token in dropped)
    say(
        f"{path}: the embedding has {rows} rows, and none for {printable(names)}; these tokens are "
        "left out, and a text that spells one is read as others"
    )
    return fitting


def check_vocabulary(
    path: Path, tokenizer_json: str, rows: int, multiples: tuple[int, ...] = (1,)
) -> int:
    """How many rows a `tokenizer.json` needs: as many as a model has.

    The model's may be padded to the next multiple of one of `multiples`. `path` is for errors.

    Raises:
        ModelError: it is no tokenizer, or needs another number of rows.
    """
    size = vocabulary_size(path, tokenizer_json)
    if rows not in {-(-size // multiple) * multiple for multiple in multiples}:
        raise ModelError(
            f"{path} has {size} entries, the model has {rows}; "
            "use the tokenizer that the model was trained with"
        )
    return size


def _meta_as_json(meta: dict[str, Any], path: Path) -> bytes:
    content = as_json(meta)
    check_meta(json.loads(content), path)
    return content


def as_json(content: dict[str, Any]) -> bytes:
    """An object as an indented JSON file."""
    return (json.dumps(content, indent=2) + "\n").encode()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
