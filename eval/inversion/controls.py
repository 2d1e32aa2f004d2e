"""Models to compare with: the identity, the same model at another scale or with another embedding.

A derived model has a name of its own, so that its rows stand beside those of the model it is
derived from.
"""

import copy
import hashlib
import re
from dataclasses import replace
from typing import Any

import torch

from arch import LanguageModel
from eval.errors import RequestError
from eval.models import Checkpoint, draw, open_checkpoint

_SCALE = re.compile(r"scale=(\d*\.?\d+(?:e-?\d+)?)")


def derive(checkpoint: Checkpoint, control: str) -> Checkpoint:
    """A checkpoint's control.

    Args:
        checkpoint: of a model of our own.
        control: `identity` (token mixers that pass their input on, freshly initialised),
            `scale=S` (the model freshly initialised, its embedding with standard deviation S) or
            `embedding=DIR` (the model with the embedding of another model directory).

    Raises:
        RequestError: another word, or a model that cannot be built anew.
    """
    scale = _SCALE.fullmatch(control)
    if control.startswith("embedding="):
        return _with_embedding(checkpoint, control)
    if control != "identity" and not scale:
        raise RequestError(
            f"--controls {control}: allowed are shuffled, identity, scale=NUMBER, embedding=DIR"
        )
    if type(checkpoint.model) is not LanguageModel:
        raise RequestError(
            f"--controls {control}: {checkpoint.path} was not built here and cannot be built anew; "
            "leave it out"
        )
    changed = {"embedding_std": float(scale[1])} if scale else {"mixers": ("identity",)}
    model = draw(lambda: LanguageModel(replace(checkpoint.config, **changed)), seed=0)
    return _derived(checkpoint, control, model.to(checkpoint.model.embedding.weight.device), step=0)


def _with_embedding(checkpoint: Checkpoint, control: str) -> Checkpoint:
    path = control.removeprefix("embedding=")
    weight = checkpoint.model.embedding.weight
    source = open_checkpoint(path, weight.device)
    other = source.model.embedding.weight
    if weight.shape != other.shape:
        raise RequestError(
            f"--controls {control}: its embedding is {tuple(other.shape)}, that of "
            f"{checkpoint.path} is {tuple(weight.shape)}; give a model of the same sizes"
        )
    model = copy.deepcopy(checkpoint.model)
    model.embedding.weight = torch.nn.Parameter(other.clone(), requires_grad=False)
    step = int(checkpoint.meta.get("step", 0))
    return _derived(checkpoint, control, model, step, source.weights_sha256)


def _derived(
    checkpoint: Checkpoint, control: str, model: LanguageModel, step: int, foreign: str = ""
) -> Checkpoint:
    meta: dict[str, Any] = checkpoint.meta | {"step": step, "val_loss": None}
    meta["name"] = f"{checkpoint.meta['name']} [{control}]"
    digest = hashlib.sha256(f"{checkpoint.weights_sha256} {control}{foreign}".encode()).hexdigest()
    return replace(
        checkpoint, model=model, config=model.config, meta=meta, control=control, weights=digest
    )
