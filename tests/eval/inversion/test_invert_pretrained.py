"""Models of transformers through the same door: `hf:DIR`, found exactly, hidden tokens too."""

from typing import Any

import pytest
import torch
import transformers

from arch.decoder import Decoder
from arch.pretrained import PretrainedModel
from eval import RequestError
from eval.__main__ import main
from eval.circuit import Circuit
from eval.inversion.controls import derive
from eval.models import open_checkpoint
from eval.rows import read_rows
from tests.arch import test_decoder
from tests.arch.cases import byte_tokenizer
from tests.arch.test_pretrained import FAMILIES, their_model
from tests.eval.inversion.search_cases import posed, prompts, solve, tokens_of


@pytest.fixture(params=["gpt2", "llama 2, grouped, scaled"])
def directory(request, tmp_path):
    """A small random model of theirs, saved with a tokenizer of bytes."""
    path = tmp_path / "small"
    their_model(request.param, dtype=torch.float32).save_pretrained(path)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    tokenizer.save_pretrained(path)
    return path


def test_a_saved_model_is_inverted(directory, tmp_path):
    out = tmp_path / "out"
    words = ["--count", "2", "--length", "8", "--layers", "0", "3", "--methods", "propose", "sweep"]
    words += ["--slices", "[:, 0:, :]", "--text", "Tom sat.", "--prompts", "story", "random"]
    assert main(["invert", f"hf:{directory}", "--out", str(out), *words]) == 0
    rows = read_rows([out])
    assert len(rows) == 2 * 2 * 5
    assert all(row["exact"] and row["certificate"] for row in rows)
    about = rows[0]["checkpoint"]
    assert (about["name"], about["trained"], about["n_layers"]) == ("small", True, 3)
    assert "Tom sat." in {row["text"] for row in rows}
    again = open_checkpoint(f"hf:{directory}")
    assert again.weights_sha256 == about["weights_sha256"]


def test_hidden_tokens_of_a_saved_model_are_found(directory, tmp_path):
    out = tmp_path / "out"
    words = ["--count", "1", "--length", "8", "--layers", "2", "--slices", "[:, 1:, :]"]
    asked = ["--methods", "alternating"]
    assert main(["invert", f"hf:{directory}", "--out", str(out), *words, *asked]) == 0
    rows = read_rows([out])
    assert [row["hidden"] for row in rows] == [1]
    assert all(row["exact"] and row["certificate"] == "enumerated" for row in rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_and_values_are_those_of_transformers_cache(name):
    theirs = their_model(name)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    cache = theirs(tokens, use_cache=True).past_key_values
    for layer, of_layer in enumerate(cache.layers, start=1):
        for part, expected in (("rotated_key", of_layer.keys), ("value", of_layer.values)):
            circuit = Circuit(PretrainedModel(theirs), layer, part)
            expected = expected.transpose(1, 2).flatten(2)
            assert circuit.width == expected.shape[-1]
            torch.testing.assert_close(circuit.of_tokens(tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*FAMILIES, "bloom", "gemma2", "mamba"])
def test_every_family_gives_up_its_tokens(name):
    whole = name not in FAMILIES  # any decoder: its blocks are known as a whole
    theirs = test_decoder.their_model(name) if whole else their_model(name, dtype=torch.float32)
    model, truth = (Decoder if whole else PretrainedModel)(theirs), prompts(3, 10, 256)
    for layers in (0, 2, (1, 3)):
        answers = solve("propose", posed(model, truth, "[:, :, :]", layers))
        assert tokens_of(answers).equal(truth)
        assert all(answer.certificate == "residual" for answer in answers)
    for part, without in (("mixer", ()), ("stream", ()), ("block", ("norms",))) if whole else ():
        with pytest.raises(RequestError, match="whole blocks are known, not their parts"):
            Circuit(model, 2, part, frozenset(without))


def test_a_block_whose_mixers_stand_side_by_side_has_no_stream_between():
    model = PretrainedModel(their_model("gptj", dtype=torch.float32))
    truth = prompts(2, 9, 256)
    for part, without in (("stream", ()), ("block", ("residual",)), ("mixer", ("norms",))):
        with pytest.raises(RequestError, match="token and channel mixers stand side by side, with"):
            Circuit(model, 2, part, frozenset(without))
    embeddings = model.embed(truth)
    whole = model.hidden(embeddings, 2)
    torch.testing.assert_close(Circuit(model, 2)(embeddings), whole)
    mixed = Circuit(model, 1, "mixer")(embeddings)
    block: Any = model.blocks[0]
    torch.testing.assert_close(block.combine(embeddings, mixed), model.hidden(embeddings, 1))
    assert not Circuit(model, 2, "block", frozenset({"mask"})).causal


def test_a_model_that_was_not_built_here_has_no_identity(directory):
    checkpoint = open_checkpoint(f"hf:{directory}")
    with pytest.raises(RequestError, match="was not built here and cannot be built anew"):
        derive(checkpoint, "identity")
