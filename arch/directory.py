"""The model directory: the one exchange format between training and evaluation.

`model.safetensors, config.json, tokenizer.json, meta.json`. A directory is whole or it is not
there. Saved triangles are zero above the diagonal, and a tied head is held once.
"""

import dataclasses
import difflib
import hashlib
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.files import read_json, read_text, write_directory, write_file
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

    Weights are saved in their own precision, triangles with zeros above. `meta` is the provenance
    (step, tokens_seen, hashes, ...), extended by schema, hash and versions.

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
    meta = {
        "schema": SCHEMA,
        "name": directory.name,
        **meta,
        "tokenizer_sha256": _sha256(tokenizer_json),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    config = model.config.to_json() + "\n"
    contents = (save(weights_of(model)), config.encode(), tokenizer_json.encode(), as_json(meta))
    write_directory(directory, dict(zip(FILES, contents, strict=True)))
    return directory


def add_to_meta(directory: Path, more: dict[str, Any]) -> None:
    """Adds what is known later to the provenance of a model directory, such as its loss; atomic.

    Raises:
        OSError: as for `save_model`.
    """
    path = directory / "meta.json"
    write_file(path, as_json(read_json(path) | more))


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
        beside = directory.parent.iterdir() if directory.parent.is_dir() else ()
        near = difflib.get_close_matches(directory.name, [path.name for path in beside], 1)
        hint = f"; did you mean {directory.parent / near[0]}?" if near else ""
        raise ModelError(f"{directory}: no such model directory{hint}")
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


def vocabulary_size(path: Path, tokenizer_json: str) -> int:
    """How many entries a `tokenizer.json` has, special ones included; `path` is for errors.

    Raises:
        ModelError: it is no tokenizer.
    """
    try:
        tokenizer = json.loads(tokenizer_json)
        added = {entry["content"] for entry in tokenizer["added_tokens"]}
        return len(added | set(tokenizer["model"]["vocab"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ModelError(f"{path} is not a tokenizer file") from None


def check_vocabulary(
    path: Path, tokenizer_json: str, rows: int, multiples: tuple[int, ...] = (1,)
) -> int:
    """How many entries a `tokenizer.json` has: as many as a model has rows.

    The rows may be padded to the next multiple of one of `multiples`. `path` is for errors.

    Raises:
        ModelError: it is no tokenizer, or has another number of entries.
    """
    size = vocabulary_size(path, tokenizer_json)
    if rows not in {-(-size // multiple) * multiple for multiple in multiples}:
        raise ModelError(
            f"{path} has {size} entries, the model has {rows}; "
            "use the tokenizer that the model was trained with"
        )
    return size


def as_json(content: dict[str, Any]) -> bytes:
    """An object as an indented JSON file."""
    return (json.dumps(content, indent=2) + "\n").encode()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def weights_of(model: LanguageModel) -> dict[str, Tensor]:
    """The model's weights on the CPU, in their own precision."""
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if not (model.config.tied and name == "head.weight")
    }
    return {**weights, **_lower(model, weights)}


class _Undrawn(TorchFunctionMode):
    """Draws no initial weights.

    On the meta device torch would draw them by its compiler's references, whose import takes a
    second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_model(config: ModelConfig, weights: dict[str, Tensor], source: str) -> LanguageModel:
    """A model made of `weights`, in their precision, in evaluation mode.

    Weights are those that `weights_of` gives: what is above a diagonal is dropped, the rest becomes
    the model's own without a copy. `source` is for errors.

    Raises:
        ModelError: names or shapes that the configuration does not have, or lacks.
    """
    with torch.device("meta"), _Undrawn():  # its weights are replaced
        model = LanguageModel(config)
    if any(buffer.is_meta for buffer in model.buffers()):  # a mixer's own, not in the weights
        with torch.random.fork_rng(devices=[]):
            model = LanguageModel(config)
    _check_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()}, source)
    if config.tied:
        weights = {**weights, "head.weight": weights["embedding.weight"]}
    model.load_state_dict({**weights, **_lower(model, weights)}, assign=True)
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def drop_padding(model: LanguageModel, size: int) -> LanguageModel:
    """Takes the rows beyond `size`, that no token has, from the embedding and the head, in place.

    Readers of the model then list tokens alone: no search may answer with an id beyond them, and
    none is drawn. The probabilities of the tokens sum to one.
    """
    rows = model.embedding.num_embeddings
    model.config = dataclasses.replace(
        model.config, vocab_size=min(size, model.config.vocab_size), vocab_multiple=1
    )
    if rows <= size:
        return model
    tied = model.head.weight is model.embedding.weight
    _cut(model.embedding, "weight", size)
    _cut(model.head, "weight", size)
    if getattr(model.head, "bias", None) is not None:
        _cut(model.head, "bias", size)
    if tied:
        model.head.weight = model.embedding.weight
    model.embedding.num_embeddings = model.head.out_features = size
    return model


def check_weights(path: Path, config: ModelConfig, source: str) -> None:
    """Whether a safetensors file is whole and holds what `config` builds; reads its header alone.

    Raises:
        ModelError: missing, cut short, another kind of file, or other names or shapes.
    """
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.offset_keys()}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    with FakeTensorMode():
        model = LanguageModel(config)
    _check_shapes(model, shapes, source)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        ModelError: missing, truncated or another kind of file.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def renamed(name: str, names: dict[str, str]) -> str:
    """A tensor's name in another layout; one that has none there keeps its own.

    `names` are from module to module, `#` for the first number: `blocks.#.norm_token` to ...
    """
    number = re.search(r"\d+", name)
    module, _, parameter = re.sub(r"\d+", "#", name, count=1).rpartition(".")
    full = f"{names.get(module, module)}.{parameter}"
    return full.replace("#", number[0]) if number else full


def _check_shapes(model: LanguageModel, shapes: dict[str, tuple[int, ...]], source: str) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if model.config.tied:
        shapes = {k: shape for k, shape in shapes.items() if k != "head.weight"}
        del expected["head.weight"]
    wrong = [f"no {name}" for name in sorted(expected.keys() - shapes.keys())]
    wrong += [f"unknown {name}" for name in sorted(shapes.keys() - expected.keys())]
    wrong += [
        f"{name} is {shapes[name]}, the configuration says {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ModelError(
            f"{source}: the weights do not fit the configuration: {'; '.join(wrong[:3])}{more}"
        )


def _cut(module: nn.Module, name: str, rows: int) -> None:
    parameter = getattr(module, name)
    cut = parameter.detach()[:rows].clone()
    setattr(module, name, nn.Parameter(cut, requires_grad=parameter.requires_grad))


def _lower(model: LanguageModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = [f"{n}.weight" for n, module in model.named_modules() if isinstance(module, Triangle)]
    return {name: weights[name].tril() for name in names}
