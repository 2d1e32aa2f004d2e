"""Tokens from tensors that others captured: plain transformers in another process is the oracle."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from eval import RequestError, activations, open_model, recover
from tests.arch.test_pretrained import saved, their_model
from tests.said import one_line

TEXTS = ["Zinc melts at 419 C.", "A map of Lima, 1902?"]  # 20 bytes each
FAMILIES = {"llama": "llama 2, grouped, scaled", "gpt2": "gpt2"}
CAPTURE = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
*places, first, second = sys.argv[1:]
for place in places:
    model = AutoModelForCausalLM.from_pretrained(place)
    tokens = AutoTokenizer.from_pretrained(place)([first, second], return_tensors="pt").input_ids
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states[:-1]
    named = {str(layer): state.contiguous() for layer, state in enumerate(states)}
    save_file(named | {"tokens": tokens}, place + "/states.safetensors")
"""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Models in transformers' layout, each with its hidden states, captured by another process."""
    place = tmp_path_factory.mktemp("theirs")
    paths = {
        name: saved(their_model(family, dtype=torch.float32), place / name)
        for name, family in FAMILIES.items()
    }
    command = [sys.executable, "-c", CAPTURE, *paths.values(), *TEXTS]
    subprocess.run(command, check=True, capture_output=True)
    return paths


@pytest.fixture(params=FAMILIES)
def captured(request, directories) -> tuple[str, dict[str, torch.Tensor]]:
    """A model and its captured states by layer."""
    path = directories[request.param]
    return f"hf:{path}", load_file(f"{path}/states.safetensors")


@pytest.mark.parametrize("layer", [1, 2])
def test_states_of_another_process_are_recovered(captured, layer):
    model, states = captured
    found = recover(model, states[str(layer)], layer=layer, corpus="toy:400")
    assert found.tokens.tolist() == states["tokens"].tolist()
    assert found.texts == TEXTS
    assert str(found) == "\n".join(TEXTS)
    assert found.certificates == [["residual"] * 20] * 2
    assert bool((found.residual <= 10 * found.floor).all())
    assert found.residual.shape == found.floor.shape == (2, 20)


def test_a_hidden_token_is_searched_for(captured):
    model, states = captured
    outputs = states["2"].clone()
    outputs[:, 7] = torch.nan
    shown = [t for t in range(20) if t != 7]
    found = recover(model, outputs, layer=2, shown=shown, corpus="toy:400")
    assert found.solver == "alternating"
    assert found.texts == TEXTS
    assert found.residual.shape == (2, 19)


def test_what_another_text_gave_is_certified_nowhere(captured):
    model, states = captured
    noise = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    found = recover(model, states["1"][0] + 0.1 * noise, layer=1, corpus="toy:400")
    assert found.certificates == [[None] * 20]
    assert str(found).count("?") >= 40


def test_bfloat16_weights_prove_nothing(small_model, small_tokenizer):
    module = small_model().to(torch.bfloat16)
    checkpoint = open_model(module, tokenizer=small_tokenizer)
    (batch,) = activations(checkpoint, ["Tom had a red ball."], 1)
    found = recover(checkpoint, batch.outputs["block.1"], layer=1, corpus="toy:400")
    assert set(found.certificates[0]) == {None}


@pytest.mark.parametrize(
    ("change", "asked", "seen"),
    [
        (lambda x: x.long(), {}, "int64"),
        (lambda x: x[:0], {}, "(0, 20, 32)"),
        (lambda x: torch.cat([x, x], dim=1), {}, "40 positions"),
        (lambda x: x[..., :31], {}, "31 channels"),
        (lambda x: x, {"layer": 9}, "0 (the embedding) to 3"),
        (lambda x: x, {"shown": [1, 40]}, "40"),
        (lambda x: x, {"shown": "[3:]"}, "[3:]"),
        (lambda x: x, {"part": "head"}, "head"),
        (lambda x: x, {"solver": "magic"}, "adam"),
        (lambda x: x, {"solver": "alternating"}, "1 or more"),
        (lambda x: x, {"scale": 2.0}, "need none"),
        (lambda x: x, {"format": "fp8"}, "fp8"),
    ],
)
def test_what_cannot_be_recovered_is_one_line(captured, change, asked, seen):
    model, states = captured
    with one_line(RequestError, seen):
        recover(model, change(states["1"]), **{"layer": 1, "corpus": "toy:400", **asked})


def test_activations_are_those_of_transformers(captured):
    """Texts of two lengths, in batches of one and of all."""
    model, states = captured
    tokenizer: Tokenizer = open_model(model).tokenizer
    texts = [*TEXTS, TEXTS[0][:5]]
    sites = ["block.1", "block.2", "mixer.2", "block.1+2"]
    for size in (1, 3):
        batches = list(activations(model, iter(texts), sites, batch_size=size))
        assert [len(batch.tokens) for batch in batches] == [size] * (3 // size)
        rows = [
            {name: output[row, : batch.lengths[row]] for name, output in batch.outputs.items()}
            for batch in batches
            for row in range(len(batch.tokens))
        ]
        tokens = [batch.tokens[row, : batch.lengths[row]].tolist()
                  for batch in batches for row in range(len(batch.tokens))]  # fmt: skip
        assert tokens == [tokenizer.encode(text).ids for text in texts]
        for row, text in zip(rows, (0, 1, 0), strict=True):
            length = len(row["block.1"])
            for layer in (1, 2):
                theirs = states[str(layer)][text, :length]
                torch.testing.assert_close(row[f"block.{layer}"], theirs, rtol=1e-4, atol=1e-5)
            joined = torch.cat([row["block.1"], row["block.2"]], dim=-1)
            torch.testing.assert_close(row["block.1+2"], joined)
            assert row["mixer.2"].shape == (length, 32)
    last = batches[0].outputs["block.1"][2]
    assert not last[5:].any()
