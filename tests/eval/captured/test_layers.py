"""Which layers a file's tensors are of: by their names, and of a stack by the model.

Models of transformers, whose hidden states transformers computes.
"""

import contextlib

import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError, open_model
from eval.captured.files.axes import check_numbers, choose_tensors, take_layer
from eval.captured.files.tensors import Raw, read_tensors
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model
from tests.said import one_line

pytest.importorskip("transformers")


@pytest.mark.parametrize(("family", "depth"), [("llama", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_layers_that_are_no_neighbours_have_their_own_numbers(family, depth):
    """Blocks before the right one, or from one too early on, came near enough to be named."""
    module = their_model(family, **{depth: 12})
    tokens = torch.tensor([byte_tokenizer().encode("Tom had a").ids])
    states = module(tokens, output_hidden_states=True).hidden_states
    model = open_model(module, tokenizer=byte_tokenizer()).model
    for layers in ([1, 6, 11], [2, 10]):
        stack = torch.stack([states[layer] for layer in layers]).bfloat16()
        for entry, layer in zip(stack, layers, strict=True):
            assert torch.equal(take_layer(model, Raw(stack), layer, None).outputs, entry)


def read_named(path, *names):
    save_file({name: torch.randn(5, 32) for name in names}, path / "c.safetensors")
    return read_tensors(path / "c.safetensors")


@pytest.mark.parametrize(
    ("names", "layer", "refusal"),
    [
        (["layer15.0", "layer15.1"], 15, None),
        (["layer15.a0", "layer15.a1"], 1, "--layer 1: "),
        (["h14", "h15"], 15, "--layer 15: "),
        (["h15"], 15, None),
    ],
)
def test_numbers_in_which_names_differ_may_count_layers(names, layer, refusal, tmp_path):
    held = read_named(tmp_path, *names)
    with one_line(RequestError, refusal) if refusal else contextlib.nullcontext():
        check_numbers(held, [layer])


@pytest.mark.parametrize(
    ("names", "site", "seen"),
    [
        (["block.3", "block.7"], ([5], None), "--layer 5"),
        (["block.15", "rotated_key.4"], ([4], "value"), "--layer 4 --part value"),
        (["block.3", "x"], ([], "key"), "--part key"),
    ],
)
def test_a_site_that_no_name_says_is_not_asked_of_tensors_of_others(names, site, seen, tmp_path):
    """Each was inverted as if it were of that site."""
    held = read_named(tmp_path, *names)
    with one_line(RequestError, f"{seen}: "):
        choose_tensors(held, *site)
    assert [*choose_tensors(read_named(tmp_path, names[0]), *site)] == names[:1]


def test_two_requests_of_one_site_are_not_joined(tmp_path, capsys):
    """The last one's tensors were taken, and the others left out in silence."""
    file = tmp_path / "captured.safetensors"
    names = [f"request_{n}.key_cache.{layer}" for n in (0, 1) for layer in (0, 1)]
    save_file({name: torch.randn(5, 32) for name in names}, file)
    with one_line(RequestError, "are of one site"):
        choose_tensors(read_tensors(file), [1, 2], "rotated_key")


@pytest.mark.parametrize("companion", ["scale", "zero_point"])
def test_a_scale_that_one_of_several_layers_lacks_is_refused(companion, tmp_path):
    codes = torch.randint(-100, 100, (5, 32), dtype=torch.int8)
    held = {f"block.{layer}": codes for layer in (1, 2)}
    held |= {f"block.{layer}.scale": torch.full((1,), 0.5) for layer in (1, 2)}
    held |= {f"block.{layer}.zero_point": torch.full((1,), 3.0) for layer in (1, 2)}
    del held[f"block.2.{companion}"]
    save_file({name: tensor.clone() for name, tensor in held.items()}, tmp_path / "c.safetensors")
    joined = choose_tensors(read_tensors(tmp_path / "c.safetensors"), [1, 2], None)
    with one_line(RequestError, f"block.2 has no {companion}"):
        joined["block.1+block.2"].read()
