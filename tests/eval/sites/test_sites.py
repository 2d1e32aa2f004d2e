"""Sites of any decoder: the final norm, and what layers write into transformers' own cache."""

import pytest
import torch

from arch.pretrained.decoder import Decoder
from eval import RequestError, open_model, recover
from eval.sites.circuit import Circuit
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import CACHED, MODELS, RECURRENT, their_model
from tests.said import one_line

pytest.importorskip("transformers")

TEXT = "Tom had a"
NORMLESS = {"opt, norms after"}


def read(text: str) -> torch.Tensor:
    return torch.tensor([byte_tokenizer().encode(text).ids])


@pytest.mark.parametrize("name", CACHED)
def test_keys_and_values_of_any_decoder_are_those_of_transformers_cache(name):
    theirs, tokens = their_model(name), read(TEXT[:5])  # shorter than every window
    cache = theirs(tokens, use_cache=True).past_key_values
    model = Decoder(theirs)
    for layer in (1, 3):
        held = cache.layers[layer - 1]
        for part, expected in (("rotated_key", held.keys), ("value", held.values)):
            circuit = Circuit(model, layer, part)
            expected = expected.transpose(1, 2).flatten(2)
            torch.testing.assert_close(circuit.of_tokens(tokens), expected, atol=1e-4, rtol=1e-4)
        turned = Circuit(model, layer, "rotated_key")
        before, keys = turned.unrotated(turned.of_tokens(tokens))
        torch.testing.assert_close(before.of_tokens(tokens), keys, atol=1e-4, rtol=1e-4)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["bloom", "qwen3", "phi3"])
def test_a_cache_of_a_whole_layer_gives_the_text(name):
    theirs = their_model(name)
    cache = theirs(read(TEXT), use_cache=True).past_key_values
    checkpoint = open_model(theirs, tokenizer=byte_tokenizer())
    for part in ("rotated_key", "value"):
        found = recover(checkpoint, cache, layer=2, part=part, corpus="toy:400")
        assert found.texts == [TEXT], part
        assert all(found.certificates[0]), part


@pytest.mark.parametrize("name", RECURRENT)
def test_a_family_without_keys_is_refused_by_its_name(name):
    theirs = their_model(name)
    with one_line(RequestError, theirs.config.model_type):
        Circuit(Decoder(theirs), 1, "value")


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "rwkv"])
def test_the_last_hidden_state_is_found(name):
    theirs = their_model(name)
    states = theirs(read(TEXT), output_hidden_states=True).hidden_states[-1]
    checkpoint = open_model(theirs, tokenizer=byte_tokenizer())
    for kind in (torch.float32, torch.bfloat16):
        found = recover(checkpoint, states.to(kind), corpus="toy:400")
        assert (found.site, found.texts) == ("final.3", [TEXT]), kind
        assert all(found.certificates[0]), kind


@pytest.mark.parametrize("name", NORMLESS & set(MODELS))
def test_a_model_without_a_final_norm_has_no_such_part(name):
    checkpoint = open_model(their_model(name), tokenizer=byte_tokenizer())
    with one_line(RequestError, "final"):
        recover(checkpoint, torch.ones(4, 32), part="final", corpus="toy:400")
    with one_line(RequestError, "final"):
        Circuit(Decoder(their_model("llama")), 2, "final")
