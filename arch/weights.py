"""Weights in and out of a model: triangles zero above the diagonal, a tied head held once."""

import dataclasses
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.mixers import Triangle
from arch.model import LanguageModel


def weights_of(model: LanguageModel) -> dict[str, Tensor]:
    """The model's weights on the CPU, in their own precision."""
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if not (model.config.tied and name == "head.weight")
    }
    return {**weights, **_lower(model, weights)}


def build_model(config: ModelConfig, weights: dict[str, Tensor], source: str) -> LanguageModel:
    """A model made of `weights`, in their precision, in evaluation mode.

    Args:
        config: what to build.
        weights: as `weights_of` gives them; what is above a diagonal is dropped, the rest becomes
            the model's own without a copy.
        source: where they come from, for errors.

    Raises:
        ModelError: names or shapes that the configuration does not have, or lacks.
    """
    with torch.device("meta"):  # the initial weights are replaced: make and draw none
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
    """Takes the rows that no token has from the embedding and the head, in place.

    Readers of the model then list tokens alone: no search may answer with an id beyond them, and
    none is drawn. The probabilities of the tokens sum to one.

    Args:
        model: any; one without such rows stays as it is.
        size: how many tokens there are.
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

    Args:
        name: for example `blocks.3.norm_token.weight`.
        names: from module to module, `#` for the first number: `blocks.#.norm_token` to ...
    """
    number = re.search(r"\d+", name)
    module, _, parameter = re.sub(r"\d+", "#", name, count=1).rpartition(".")
    found = f"{names.get(module, module)}.{parameter}"
    return found.replace("#", number[0]) if number else found


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
