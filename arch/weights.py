"""Weights in and out of a model: triangles zero above the diagonal, a tied head held once."""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

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
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced: draw for nobody
        model = LanguageModel(config)
    expected = model.state_dict()
    if config.tied and "embedding.weight" in weights:
        weights = {**weights, "head.weight": weights["embedding.weight"]}
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
            f"{source}: the weights do not fit the configuration: {'; '.join(wrong[:3])}{more}"
        )
    model.load_state_dict({**weights, **_lower(model, weights)}, assign=True)
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


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


def _lower(model: LanguageModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = [f"{n}.weight" for n, module in model.named_modules() if isinstance(module, Triangle)]
    return {name: weights[name].tril() for name in names}
