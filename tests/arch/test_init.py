"""How every tensor starts, pinned by its statistics."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from arch import LanguageModel, ModelConfig, ModelError
from arch.mixers import TokenMixer
from tests.said import one_line

V, L, D, FF, N = 400, 96, 64, 160, 3
MIXERS = {
    "flat": {"mix": L},
    "expanded(factor=2)": {"expand": L, "contract": 2 * L},
    "rectangular(factor=2)": {"expand": L, "contract": 2 * L},
    "parallel(branches=3)": {"mix": L},
    "headed(heads=4)": {"mix": L},
    "kernel(size=4)": {"mix": 4 * L},
}  # fan-in of each triangle


def build(mixer: str, **settings: Any) -> Any:
    torch.manual_seed(3)
    sizes = {"vocab_size": V, "context": L, "d_model": D, "n_layers": N, "d_ff": FF}
    return LanguageModel(ModelConfig(**{**sizes, "mixers": (mixer,), **settings}))  # pyright: ignore


def assert_normal(tensor, std):
    spread = 5 / math.sqrt(2 * tensor.numel())  # of the sample's deviation, as a fraction
    assert tensor.std().item() == pytest.approx(std, rel=spread)
    assert abs(tensor.mean().item()) < 5 * std / math.sqrt(tensor.numel())
    assert tensor.abs().max() > 2 * std


def assert_uniform(tensor, bound):
    assert tensor.abs().max() <= bound
    assert tensor.abs().max() > bound * (1 - 10 / tensor.numel())
    assert abs(tensor.mean().item()) < 5 * bound / math.sqrt(3 * tensor.numel())
    spread = 5 / math.sqrt(tensor.numel())
    assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=spread)


def assert_constant(tensor, value):
    assert torch.equal(tensor, torch.full_like(tensor, value))


def lower(weight):
    """The entries that act; those above the diagonal must be zero."""
    if weight.dim() == 1:
        return weight
    assert weight.triu(1).count_nonzero() == 0
    below = torch.ones_like(weight, dtype=torch.bool).tril()
    return weight[below]


def assert_norms(model):
    for norm in (model.norm, model.blocks[1].norm_token, model.blocks[1].norm_channel):
        assert_constant(norm.weight, 1.0)
        assert_constant(norm.bias, 0.0)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("init", ["default", "reference"])
def test_triangles(mixer, init):
    part = build(mixer, init=init).blocks[1].token_mixer
    for name, fan_in in MIXERS[mixer].items():
        triangle = part.get_submodule(name)
        assert_uniform(lower(triangle.weight), fan_in**-0.5)
        assert triangle.bias.abs().max() <= fan_in**-0.5
        assert triangle.bias.std() > 0.4 * fan_in**-0.5


def test_attention_alone_starts_small_and_smaller_into_the_stream():
    model = build("attention(heads=4, bias=true)", norm="layernorm")
    block = model.blocks[1]
    assert_norms(model)
    assert_normal(model.embedding.weight, 0.02)
    assert_normal(model.head.weight, 0.02)
    into_the_stream = 0.02 / math.sqrt(2 * N)
    for layer, std in (
        (block.token_mixer.q_proj, 0.02),
        (block.token_mixer.k_proj, 0.02),
        (block.token_mixer.v_proj, 0.02),
        (block.token_mixer.o_proj, into_the_stream),
        (block.channel_mixer.up, 0.02),
        (block.channel_mixer.down, into_the_stream),
    ):
        assert_normal(layer.weight, std)
        assert_constant(layer.bias, 0.0)
    swiglu = build("attention", channel_mixer="swiglu").blocks[0].channel_mixer
    assert_normal(swiglu.gate.weight, 0.02)
    assert_normal(swiglu.down.weight, into_the_stream)


@pytest.mark.parametrize(
    ("mixer", "init"),
    [
        ("attention(heads=4, bias=true)", "reference"),
        ("attention(heads=4, bias=true)+flat", "default"),
    ],
)
def test_reference_is_what_pytorch_does_by_itself(mixer, init):
    """By default too, for a model with a masked convolution."""
    model = build(mixer, init=init)
    assert_norms(model)
    assert_normal(model.embedding.weight, 1.0)
    assert_uniform(model.head.weight, D**-0.5)
    block = model.blocks[1]
    attention = block.token_mixer.mixers[0] if "+" in mixer else block.token_mixer
    for layer, fan_in in (
        (attention.q_proj, D),
        (attention.o_proj, D),
        (block.channel_mixer.up, D),
        (block.channel_mixer.down, FF),
    ):
        assert_uniform(layer.weight, fan_in**-0.5)
        assert_uniform(layer.bias, fan_in**-0.5)
    theirs = torch.nn.Conv1d(L, L, 4)  # where the fan-in of a summed stack comes from
    assert_uniform(theirs.weight, MIXERS["kernel(size=4)"]["mix"] ** -0.5)


def test_a_tied_head_is_the_embedding_and_starts_as_it():
    model = build("flat", tied=True, embedding_std=0.5)
    assert model.head.weight is model.embedding.weight
    assert_normal(model.embedding.weight, 0.5)
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" not in names
    assert_normal(build("flat", tied=True).embedding.weight, D**-0.5)
    assert_normal(build("flat", tied=True, init="reference").embedding.weight, 1.0)


class Parts(TokenMixer):
    """PyTorch's own parts: lists of parameters, and a weight with a norm of its own."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        empty = nn.Parameter(torch.full((d_model,), torch.nan))
        self.gates = nn.ParameterList([empty])
        self.named = nn.ModuleDict({"shifts": nn.ParameterDict({"b": empty})})
        self.normed = weight_norm(nn.Linear(d_model, d_model))
        self.attention = nn.MultiheadAttention(d_model, 4)

    def forward(self, x):
        return self.normed(x) * self.gates[0]


class FilledParts(Parts):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.gates[0])


def test_parts_of_pytorch_are_filled_by_their_parents():
    part = build("tests.arch.test_init.FilledParts").blocks[1].token_mixer
    assert_constant(part.gates[0], 1.0)
    assert_uniform(part.normed.weight, D**-0.5)
    assert all(parameter.isfinite().all() for parameter in part.parameters())
    with one_line(ModelError, "gates.0"):
        build("tests.arch.test_init.Parts")


class OwnStart(TokenMixer):
    """Starts its linear layer and its part by itself; it has no parameter of its own."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.o_proj = nn.Linear(d_model, d_model)
        self.part = ClosedLinear(d_model, 1)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.o_proj.weight)
        nn.init.ones_(self.part.bias)


class ClosedLinear(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


def test_what_a_mixer_gives_its_own_parts_stays():
    block = build("tests.arch.test_init.OwnStart", init="reference").blocks[1]
    assert_constant(block.token_mixer.o_proj.weight, 0.0)
    assert_uniform(block.token_mixer.o_proj.bias, D**-0.5)
    assert_constant(block.token_mixer.part.weight, 0.0)
    assert_constant(block.token_mixer.part.bias, 1.0)
    assert_uniform(block.channel_mixer.up.weight, D**-0.5)
