"""A model as a table, from its configuration alone: parts, shapes, parameters, work, memory."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arch.config import ModelConfig
from arch.cost import Cost, linear_cost, norm_cost
from arch.errors import ModelError, check_count
from arch.model import Block, LanguageModel

Precision = Literal["32", "bf16-mixed"]


@dataclass(frozen=True)
class Part:
    """One line of the table.

    Attributes:
        name: where it is in the model, for example `blocks.0.token_mixer`.
        kind: what it is, as the configuration writes it.
        shapes: of its parameters, by their names within the part.
        cost: parameters, and forward FLOPs per token.
    """

    name: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    cost: Cost


@dataclass(frozen=True)
class Memory:
    """Bytes that training needs at least, with AdamW; workspaces and fragmentation not counted.

    Attributes:
        weights: the parameters, in float32.
        gradients: as many again.
        optimiser: AdamW's two moments.
        activations: what the forward pass and the loss keep for the backward pass.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimiser + self.activations


@dataclass(frozen=True)
class Description:
    """The table, its sum, and the memory for training.

    Attributes:
        parts: from the embedding to the head, in the order of the forward pass.
        cost: of the whole model; `cost.training_flops` is per token too.
        memory: for one step of training at `batch` sequences of `length`.
        length: tokens in a sequence.
        batch: sequences in a step.
        precision: of the forward and backward pass.
    """

    parts: tuple[Part, ...]
    cost: Cost
    memory: Memory
    length: int
    batch: int
    precision: Precision


def describe(
    config: ModelConfig,
    length: int | None = None,
    batch: int = 1,
    precision: Precision = "32",
) -> Description:
    """Describes the model that `config` builds; no weight is allocated.

    The activations are counted by running the model on shapes alone and adding up what autograd
    keeps; attention is taken to be the fused kind, which keeps no scores.

    Args:
        config: any model of this project.
        length: tokens in a sequence, the model's context when not given.
        batch: sequences in a step of training.
        precision: `bf16-mixed` runs the products in bfloat16, as in training.

    Raises:
        ModelError: a length above the context, or no batch.
    """
    length = config.context if length is None else length
    check_count("length", length)
    check_count("batch", batch)
    if length > config.context:
        raise ModelError(f"length is {length}; allowed: up to the context of {config.context}")
    with FakeTensorMode():
        model = LanguageModel(config)
        parts = tuple(_parts(model, config, length))
        activations = _activations(model, batch, length, precision)
    cost = sum((part.cost for part in parts), Cost())
    weights = 4 * cost.parameters
    memory = Memory(weights, weights, 2 * weights, activations)
    return Description(parts, cost, memory, length, batch, precision)


def total_cost(model: LanguageModel, length: int | None = None) -> Cost:
    """Parameters and work of a model at sequences of `length`, its context when not given."""
    parts = _parts(model, model.config, length or model.config.context)
    return sum((part.cost for part in parts), Cost())


def _parts(model: LanguageModel, config: ModelConfig, length: int) -> list[Part]:
    D, V = config.d_model, config.vocab_rows
    parts = [Part("embedding", "embedding", {"weight": (V, D)}, Cost(V * D))]
    for i, block in enumerate(cast(Iterable[Block], model.blocks)):
        mixer = config.mixers[i % len(config.mixers)]
        channel_mixer: Any = block.channel_mixer
        for name, kind, cost in (
            ("norm_token", config.norm, norm_cost(block.norm_token)),
            ("token_mixer", mixer, block.token_mixer.cost(length)),
            ("norm_channel", config.norm, norm_cost(block.norm_channel)),
            ("channel_mixer", config.channel_mixer, channel_mixer.cost()),
        ):
            part = block.get_submodule(name)
            parts.append(Part(f"blocks.{i}.{name}", kind, _shapes(part), cost))
    if config.final_norm:
        parts.append(Part("norm", config.norm, _shapes(model.norm), norm_cost(model.norm)))
    head = linear_cost(model.head)
    if config.tied:
        parts.append(Part("head", "the embedding's transpose", {}, Cost(flops=head.flops)))
    else:
        parts.append(Part("head", "linear", _shapes(model.head), head))
    return parts


def _shapes(part: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in part.named_parameters()}


def _activations(model: LanguageModel, batch: int, length: int, precision: Precision) -> int:
    """Bytes of the tensors that autograd keeps, each storage once, parameters left out."""
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    tokens = torch.zeros(batch, length, dtype=torch.long)
    lower = torch.autocast("cpu", torch.bfloat16) if precision != "32" else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), lower:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)
