"""Controls of inversion: models to compare with, made from the one that is asked."""

import copy
import hashlib
import re
from dataclasses import replace

import torch
from torch import nn

from arch import LanguageModel, ModelConfig, embedding_scale
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint, open_checkpoint
from tokenizer import encode_alike

_SCALE = re.compile(r"scale=(\d*\.?\d+(?:e-?\d+)?)")
OWN_DRAW = "own draw"
"""In the hashes of what is drawn by the model's: rows of earlier draws have other keys."""


def derive(checkpoint: Checkpoint, control: str) -> Checkpoint:
    """A checkpoint's control.

    Args:
        checkpoint: of a model of our own.
        control: `identity` (token mixers that pass their input on, freshly initialised, the
            embedding with the standard deviation that the model's has),
            `scale=S` (the model freshly initialised, its embedding with standard deviation S),
            `embedding=DIR` (the model with the embedding of another model directory) or
            `embedding=untrained` (with a freshly drawn one).

    Raises:
        RequestError: another word, a model that cannot be built anew, or an embedding that does
            not fit it.
    """
    scale, step, source, meta = _SCALE.fullmatch(control), 0, OWN_DRAW, dict(checkpoint.meta)
    if control.startswith("embedding="):
        model, source = _with_embedding(checkpoint, control)
        step = int(checkpoint.meta.get("step", 0))
    elif control != "identity" and not scale:
        raise RequestError(
            f"--controls {control}: allowed are shuffled, identity, scale=NUMBER, embedding=DIR, "
            "embedding=untrained"
        )
    elif type(checkpoint.model) is not LanguageModel:
        raise RequestError(
            f"--controls {control}: {checkpoint.path} was not built here and cannot be built anew; "
            "leave it out"
        )
    else:
        own = {"mixers": ("identity",), "embedding_std": embedding_scale(checkpoint.model)}
        changed = {"embedding_std": float(scale[1])} if scale else own
        model = _draw(checkpoint, replace(checkpoint.config, **changed))
        model = model.to(checkpoint.model.embedding.weight.device)
        for name in ("source", "tokens_seen"):  # it is untrained, wherever the weights came from
            meta.pop(name, None)
    name = f"{checkpoint.meta['name']} [{control}]"
    meta |= {"step": step, "val_loss": None, "name": name}
    digest = hashlib.sha256(f"{checkpoint.weights_sha256} {control}{source}".encode()).hexdigest()
    return replace(
        checkpoint, model=model, config=model.config, meta=meta, control=control, weights=digest
    )


def _draw(checkpoint: Checkpoint, config: ModelConfig) -> LanguageModel:
    """An untrained model, another one for each checkpoint; other draws are not disturbed."""
    with torch.random.fork_rng(devices=[]):
        seed = int(checkpoint.weights_sha256[:15], 16)
        torch.default_generator.manual_seed(seed)  # and no other device's
        return LanguageModel(config).eval().requires_grad_(False)


def _with_embedding(checkpoint: Checkpoint, control: str) -> tuple[LanguageModel, str]:
    """The model with another one's embedding, and that one's hash."""
    weight, source = checkpoint.model.embedding.weight, control.removeprefix("embedding=")
    if source == "untrained" and type(checkpoint.model) is LanguageModel:
        drawn = _draw(checkpoint, checkpoint.config)
        other, digest = drawn.embedding.weight.to(weight.device), OWN_DRAW
    else:
        opened = open_checkpoint(source, weight.device)
        if not encode_alike(opened.tokenizer, checkpoint.tokenizer):
            raise RequestError(
                f"--controls {control}: its tokenizer is another than that of {checkpoint.path}; "
                "give a model of the same data"
            )
        other, digest = opened.model.embedding.weight, opened.weights_sha256
    if weight.shape != other.shape:
        raise RequestError(
            f"--controls {control}: its embedding is {tuple(other.shape)}, that of "
            f"{checkpoint.path} is {tuple(weight.shape)}; give a model of the same sizes"
        )
    model = copy.deepcopy(checkpoint.model)
    model.embedding.weight = nn.Parameter(other.clone(), requires_grad=False)
    return model, digest
