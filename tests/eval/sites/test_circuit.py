"""Sites of a model: parts and ablations against torch's own pieces, and left to right as whole."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eval import RequestError
from eval.inversion.solver import solvers
from eval.sites.circuit import CACHED, PARTS, Circuit, join
from eval.sites.slices import Slice
from tests.said import one_line

MIXERS = ["flat", "expanded(factor=2)", "attention(heads=2, kv_heads=1)", "attention+flat"]
WITHOUT = [
    frozenset[str](),
    frozenset({"residual"}),
    frozenset({"norms"}),
    frozenset({"channel"}),
    frozenset({"residual", "norms", "channel"}),
]
names = pytest.mark.parametrize("without", WITHOUT, ids=lambda w: "+".join(sorted(w)) or "whole")
mixers = pytest.mark.parametrize("mixer", MIXERS)
parts = pytest.mark.parametrize("part", [part for part in PARTS if part not in (*CACHED, "final")])


def some_tokens(count: int = 3, length: int = 9) -> Tensor:
    return torch.randint(400, (count, length), generator=torch.Generator().manual_seed(7))


def by_hand(model: Any, x: Tensor, layer: int, part: str, without: frozenset[str]) -> Tensor:
    """The blocks' equations, written out."""
    output = x
    for block in model.blocks[:layer]:
        read = x if "norms" in without else F.layer_norm(x, x.shape[-1:], *affine(block.norm_token))
        mixed = block.token_mixer(read)
        stream = mixed if "residual" in without else x + mixed
        read = stream
        if "norms" not in without:
            read = F.layer_norm(stream, x.shape[-1:], *affine(block.norm_channel))
        x = stream if "channel" in without else stream + block.channel_mixer(read)
        output = {"mixer": mixed, "stream": stream, "block": x}[part]
    return output


def affine(norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight, norm.bias


@mixers
@parts
@names
def test_parts_and_ablations_follow_their_equations(small_model, mixer, part, without):
    model = small_model(mixers=(mixer,))
    exact = copy.deepcopy(model).double()
    tokens = some_tokens()
    for layer in range(part != "block", 3):
        found = Circuit(model, layer, part, without).of_tokens(tokens)
        expected = by_hand(exact, exact.embed(tokens), layer, part, without)
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)
        same = Circuit(exact, layer, part, without).of_tokens(tokens)
        torch.testing.assert_close(same, expected, atol=1e-12, rtol=1e-12)


def test_flat_mixers_alone_are_a_product_of_triangles(small_model):
    """Without residual, norms and channel mixers, two flat layers are two lower triangles."""
    model: Any = small_model().double()
    alone = Circuit(model, 2, "block", frozenset({"residual", "norms", "channel"}))
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    matrix: Any = torch.autograd.functional.jacobian(lambda e: alone(e)[0, :, 5], x)
    matrix = matrix[:, 0, :, 5]  # (T, T): output position by input position, one channel
    expected = torch.eye(6, dtype=torch.float64)
    for block in model.blocks:
        triangle = next(p for p in block.token_mixer.parameters() if p.dim() == 2)
        expected = triangle[:6, :6].tril() @ expected
    torch.testing.assert_close(matrix, expected)
    assert matrix.triu(1).abs().max() == 0


@mixers
@parts
@names
def test_left_to_right_is_the_whole(small_model, mixer, part, without):
    layers = (0, 2) if part == "block" else (1, 2)
    circuit = Circuit(small_model(mixers=(mixer,)), layers, part, without)
    tokens = some_tokens()
    whole = circuit.of_tokens(tokens)
    first, state = circuit.extend(tokens[:, :4])
    second, state = circuit.extend(tokens[:, 4:7], state)
    near: Any = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole[:, :7], **near)
    assert circuit.prefix(tokens[:, :7]).length == state.length == 7
    embeddings = circuit.model.embed(tokens[:, 7:])
    candidates = torch.stack([embeddings, embeddings.flip(0)], dim=1).flatten(0, 1)
    stepped = circuit.step(candidates, state)  # two candidates behind each of three prefixes
    torch.testing.assert_close(stepped[::2], whole[:, 7:], **near)
    other = circuit.of_tokens(torch.cat([tokens[:, :7], tokens.flip(0)[:, 7:]], dim=1))
    torch.testing.assert_close(stepped[1::2], other[:, 7:], **near)
    torch.testing.assert_close(circuit.step(circuit.model.embed(tokens), None), whole, **near)


def test_keys_and_values_are_attentions_own(small_model):
    """Of our own attention, in a hybrid with a mixer that has none."""
    mixer = "attention(heads=4, kv_heads=2, qk_norm=True)"
    model, tokens = small_model(mixers=("flat", mixer)).double(), some_tokens()
    stream = by_hand(model, model.embed(tokens), 1, "block", frozenset())
    attention = model.blocks[1].token_mixer
    _, keys, values = attention.project(model.blocks[1].norm_token(stream))
    rotated = attention.rotate(keys, 0)
    for part, expected in zip(CACHED, (keys, rotated, values), strict=True):
        circuit = Circuit(model, 2, part)
        assert circuit.width == 16
        torch.testing.assert_close(circuit.of_tokens(tokens), expected.flatten(2))
        first, state = circuit.extend(tokens[:, :5])
        stepped = circuit.step(model.embed(tokens[:, 5:]), state)
        torch.testing.assert_close(torch.cat([first, stepped], dim=1), expected.flatten(2))
    with pytest.raises(RequestError):
        Circuit(model, 1, "key")


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("block", "final")])
def test_the_embedding_has_no_part_of_a_block(small_model, part):
    """The embeddings were given as the outputs of a mixer 0, which others' first block has."""
    model = small_model(mixers=("attention",))
    for layers in (0, (0, 1)):
        with one_line(RequestError, "layer 0, the embedding, has none; give layer 1 or more"):
            Circuit(model, layers, part)


@pytest.mark.parametrize("part", CACHED)
def test_layers_with_other_numbers_of_heads_are_joined_and_cut_each_at_its_width(small_model, part):
    model = small_model(mixers=("attention(heads=4, kv_heads=1)", "attention(heads=4)"))
    alone, tokens = [Circuit(model, layer, part) for layer in (1, 2)], some_tokens()
    expected = [circuit.of_tokens(tokens) for circuit in alone]
    whole, cut = join(alone)
    assert (whole.widths, whole.width) == ([8, 32], 40)
    found = whole.of_tokens(tokens)
    for layer, own in zip(cut(found), expected, strict=True):
        torch.testing.assert_close(layer, own)
    if part == "rotated_key":
        before, keys = whole.unrotated(found)
        torch.testing.assert_close(keys, before.of_tokens(tokens), atol=1e-5, rtol=1e-5)


def test_a_layer_alone_is_the_same_site_however_it_is_written(small_model):
    """Written as a tuple it was another one, for which guesses were fitted anew."""
    model = small_model()
    assert len({Circuit(model, layers) for layers in (2, (2,), [2])}) == 1
    assert [Circuit(model, layers).name for layers in (2, (0, 2))] == ["block.2", "block.0+2"]


def test_unmasked_attention_is_torchs_own_without_a_mask(small_model):
    model = small_model(mixers=("attention(heads=1)",), n_layers=1).double()
    circuit = Circuit(model, 1, "mixer", frozenset({"mask"}))
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    block: Any = model.blocks[0]
    own, read = block.token_mixer, block.norm_token(x)
    q, k, v = (h.transpose(1, 2) for h in own.project_at(read, 0))
    expected = own.o_proj(F.scaled_dot_product_attention(q, k, v)[:, 0])
    torch.testing.assert_close(circuit(x), expected)
    moved = x.clone()
    moved[:, 6] += torch.randn(32, dtype=torch.float64)
    assert (circuit(moved) - circuit(x))[:, 0].abs().max() > 1e-3
    masked = Circuit(model, 1, "mixer")
    assert (masked(moved) - masked(x))[:, 0].abs().max() == 0
    torch.testing.assert_close(masked(x)[:, -1], circuit(x)[:, -1])  # the last one sees all anyway


def test_without_mask_nothing_goes_left_to_right(small_model):
    circuit = Circuit(small_model(mixers=("attention",)), 2, "block", frozenset({"mask"}))
    assert not circuit.causal
    state = Circuit(circuit.model, 2).prefix(some_tokens())
    for ask in (
        lambda: circuit.prefix(some_tokens()),
        lambda: circuit.step(circuit.model.embed(some_tokens()), state),
    ):
        with pytest.raises(RequestError, match="cannot be searched left to right"):
            ask()
    for method in solvers().values():
        refusal = method.refusal(Slice(0 if method.hidden and 0 in method.hidden else 1), 9, False)
        searches = method.family in ("search", "prior")
        assert ("needs a causal model" in (refusal or "")) == searches
        assert bool(refusal) == searches
