"""Whole models: causal, resumable, and one with their parts."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arch import LanguageModel, count_parameters
from arch.mixers.attention import Rotary
from tests.arch.cases import (
    assert_causal_model,
    assert_model_continues,
    random_tokens,
    scramble,
    small_model,
)

LLAMA = {"channel_mixer": "swiglu", "norm": "rmsnorm"}
MODELS = [
    (("attention(heads=2)", "flat"), LLAMA),
    (("kernel(size=3)+headed(heads=2)", "expanded"), {"final_norm": False, "tied": True}),
]
models = pytest.mark.parametrize(("mixers", "settings"), MODELS, ids=str)


@models
def test_whole_models_are_causal_and_go_on_from_a_prefix(mixers, settings):
    model = small_model(*mixers, init="reference", **settings).double()
    tokens = random_tokens(model)
    assert_causal_model(model, tokens, range(12))
    embeddings = model.embed(tokens)
    for layer in (0, 1, 2):
        assert_model_continues(model, tokens, layer, (3, 7))
        found, expected = model.step(embeddings, None, layer), model.hidden(embeddings, layer)
        torch.testing.assert_close(found, expected)


def test_hidden_is_the_blocks_one_by_one_and_logits_what_follows():
    model = small_model("flat", "attention(heads=2)")
    tokens = random_tokens(model)
    x = model.embed(tokens)
    assert torch.equal(x, model.embedding.weight[tokens])
    assert model.hidden(x, 0) is x
    for layer, block in enumerate(model.blocks, start=1):
        mixed = block.token_mixer(block.norm_token(x))
        middle = x + mixed
        expected = middle + block.channel_mixer(block.norm_channel(middle))
        assert torch.equal(block.combine(x, mixed), expected)
        x = block(x)
        assert torch.equal(x, expected)
        assert torch.equal(model.hidden(model.embed(tokens), layer), x)
    assert torch.equal(model(tokens), model.head(model.norm(x)))
    assert torch.equal(model.logits(x), model(tokens))


def test_norms_and_head_are_settings():
    model = small_model("flat", norm="rmsnorm", norm_eps=1e-3)
    assert isinstance(model.blocks[0].norm_token, nn.RMSNorm)
    assert model.norm.eps == 1e-3
    plain = small_model("flat", final_norm=False)
    x = torch.randn(1, 3, 8)
    assert torch.equal(plain.logits(x), plain.head(x))
    tied = small_model("flat", tied=True)
    assert count_parameters(tied) == count_parameters(small_model("flat")) - 11 * 8


def test_swiglu_gates():
    mixer = scramble(small_model("flat", channel_mixer="swiglu(bias=true)").blocks[0].channel_mixer)
    x = torch.randn(3, 8)
    gate, up = mixer.gate(x), mixer.up(x)
    expected = (gate * torch.sigmoid(gate) * up) @ mixer.down.weight.T + mixer.down.bias
    torch.testing.assert_close(mixer(x), expected)


def build_without_memory(model):
    with torch.device("meta"):
        return LanguageModel(model.config).to_empty(device="cpu")


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: model.double(),
        lambda model: model.to_empty(device="cpu"),
        lambda model: model.to("meta").to_empty(device="cpu"),
        build_without_memory,
    ],
)
def test_moving_a_model_leaves_the_angles_of_its_positions_exact(move):
    model = small_model("attention(heads=2)")
    rotary = model.blocks[0].token_mixer.rotary
    tables = rotary.cos.clone(), rotary.sin.clone()
    moved = move(model).blocks[1].token_mixer.rotary
    assert torch.equal(moved.cos, tables[0])
    assert torch.equal(moved.sin, tables[1])


def test_a_class_of_somebody_elses_keeps_the_angles_that_it_gave_itself():
    model = small_model("attention(heads=2)", "tests.arch.leaks.Turned(heads=2)", n_layers=3)
    first, turned, last = (block.token_mixer.rotary.sin for block in model.blocks)
    assert first is last
    assert first.count_nonzero()
    assert torch.equal(turned, -first)


def test_angles_are_made_where_the_weights_are():
    """They stayed on the CPU."""
    with FakeTensorMode(), torch.device("cuda"):
        rotary = Rotary(12, 4, 10000.0)
    assert {table.device.type for table in rotary.buffers()} == {"cuda"}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_activations_take_less_memory_and_give_the_same_gradients(compiled):
    depth = 2 if compiled else 6
    model = small_model("flat", "attention(heads=2)", n_layers=depth, **LLAMA)
    tokens = random_tokens(model)

    def gradients(function):
        kept, own = [], {p.data_ptr() for p in model.parameters()}
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            loss = nn.functional.cross_entropy(function(tokens).flatten(0, 1), tokens.flatten())
            bytes_kept = sum(t.nbytes for t in kept if t.data_ptr() not in own)
        loss.backward()
        return [parameter.grad for parameter in model.parameters()], bytes_kept

    expected, whole = gradients(model)
    model.checkpoint_activations = True
    torch.compiler.reset()
    found, less = gradients(
        torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    )
    if compiled:
        torch.testing.assert_close(found, expected)
    else:
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert less < whole / 2


def test_a_mixers_own_draws_are_the_same_where_activations_are_computed_again():
    model = small_model("tests.arch.leaks.Dropout").train()
    found = []
    for again in (False, True):
        model.checkpoint_activations = again
        model.zero_grad()
        torch.manual_seed(0)
        model(random_tokens(model)).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_what_is_kept_of_the_weights_goes_with_them():
    model, other, asked = small_model("flat"), scramble(small_model("flat")), []

    def norm() -> float:
        return model.keep("norm", lambda: asked.append(1) or model.embedding.weight.norm().item())

    model.register_buffer("turns", torch.zeros(1), persistent=False)
    before = norm()
    model.get_buffer("turns").add_(1)  # as longrope writes its frequencies in each pass
    assert norm() == before
    assert len(asked) == 1
    for change in (
        lambda: model.load_state_dict(other.state_dict()),
        lambda: model.load_state_dict(scramble(other).state_dict(), assign=True),
        lambda: model.embedding.weight.detach().mul_(2.0),
        lambda: model.double(),
    ):
        change()
        norm()
        assert norm() == model.embedding.weight.norm().item()
    assert len(asked) == 5
