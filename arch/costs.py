"""A model as a table, from its configuration alone: parts, shapes, parameters, work.

A FLOP is one multiplication or one addition of a matrix product: a product of (n, m) by (m,) is
2 n m. Of a triangular product, and of causal attention, only the entries on and below the diagonal
count: the empty half is no work. Norms, activations, biases and look-ups are not counted. The
backward pass is two products of the forward one's size, recomputation left out, so training
costs three times the forward pass.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from arch.config import ModelConfig
from arch.errors import ModelError, check_count
from arch.mixers import without_numbers
from arch.model import LanguageModel


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters, a tied head counted once."""
    return sum(p.numel() for p in model.parameters())


class Cost(NamedTuple):
    """Parameters, and forward FLOPs per token at some sequence length."""

    parameters: int = 0
    flops: int = 0

    @property
    def training_flops(self) -> int:
        """Forward and backward, per token."""
        return 3 * self.flops


class ModelPart(NamedTuple):
    """One line of the table: a part of the model, for example `blocks.0.token_mixer`.

    Its kind is as the configuration writes it; `shapes` are of its parameters, by their names
    within the part.
    """

    name: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    cost: Cost


class Description(NamedTuple):
    """The table, from the embedding to the head, and its sum, at sequences of `length` tokens."""

    parts: tuple[ModelPart, ...]
    cost: Cost
    length: int


def describe(config: ModelConfig, length: int | None = None) -> Description:
    """Describes the model that `config` builds; of known mixers no weight is allocated.

    FLOPs are per token of sequences of `length` tokens, of the model's context when not given.

    Raises:
        ModelError: a length above the context.
    """
    length = config.context if length is None else length
    check_count("length", length)
    if length > config.context:
        raise ModelError(f"length is {length}; allowed: up to the context of {config.context}")
    parts = tuple(_parts(config, length))
    return Description(parts, Cost(*map(sum, zip(*(p.cost for p in parts), strict=True))), length)


def _flops(model: LanguageModel, length: int) -> dict[str, int]:
    """Forward FLOPs of one sequence by the module's name, as PyTorch's counter sees them."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    def triangle(x: tuple[int, ...], *_: Any, **__: Any) -> int:
        batch, length, features = x
        return batch * features * length * (length + 1)

    def attention(query: tuple[int, ...], *_: Any, **__: Any) -> int:
        batch, heads, length, width = query
        return 2 * batch * heads * width * length * (length + 1)

    operators: dict[Any, Any] = {
        torch.ops.remnant.masked_conv: triangle,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    }
    counter = FlopCounterMode(display=False, custom_mapping=operators)
    with counter, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long))
    whole = f"{type(model).__name__}."
    counts = counter.get_flop_counts().items()
    return {name.removeprefix(whole): sum(of.values()) for name, of in counts}


def _parts(config: ModelConfig, length: int) -> Iterator[ModelPart]:
    """All parts in their order; of blocks with the same mixer one is built."""
    mixers = [config.mixers[i % len(config.mixers)] for i in range(config.n_layers)]
    built = {mixer: i for i, mixer in enumerate(dict.fromkeys(mixers))}
    with without_numbers(built):
        model = LanguageModel(replace(config, n_layers=len(built), mixers=tuple(built)))
        flops, modules = _flops(model, length), dict(model.named_modules())

    def part(name: str, kind: str, like: str) -> ModelPart:
        tied = name == "head" and config.tied
        parameters = {} if tied else dict(modules[like].named_parameters())
        shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        count = sum(tensor.numel() for tensor in parameters.values())
        return ModelPart(name, kind, shapes, Cost(count, flops.get(like, 0) // length))

    yield part("embedding", "embedding", "embedding")
    for i, mixer in enumerate(mixers):
        kinds = {"norm_token": config.norm, "token_mixer": mixer}
        kinds |= {"norm_channel": config.norm, "channel_mixer": config.channel_mixer}
        for name, kind in kinds.items():
            yield part(f"blocks.{i}.{name}", kind, f"blocks.{built[mixer]}.{name}")
    if config.final_norm:
        yield part("norm", config.norm, "norm")
    yield part("head", "the embedding's transpose" if config.tied else "linear", "head")
