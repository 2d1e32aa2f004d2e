"""Models of transformers through the same door: `hf:DIR`, found exactly, hidden tokens too."""

from typing import Any

import pytest
import torch

from arch.decoder import Decoder
from arch.pretrained import PretrainedModel
from eval import RequestError
from eval.circuit import Circuit
from tests.arch import test_decoder
from tests.arch.test_pretrained import FAMILIES, their_model
from tests.eval.inversion.search_cases import posed, prompts, solve, tokens_of


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
