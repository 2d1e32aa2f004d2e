"""Tokens from logits of transformers, and from log-probabilities."""

import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from eval import RequestError, open_model, recover
from eval.captured.captured import start_at
from eval.captured.files.stored import read_stored
from eval.captured.search.head import solve_head
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import GROUPED
from tests.arch.pretrained.test_pretrained import V, random_model, their_model
from tests.eval.inversion.search_cases import SHORT
from tests.said import one_line


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def scored(request, directories, opened):
    """A model, and the logits that transformers gives for two prompts."""
    path = directories[request.param]
    tokens = load_file(f"{path}/states.safetensors")["tokens"]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False)
        return opened[request.param], theirs(tokens).logits


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("part", "form"),
    [
        (None, lambda logits: logits),
        ("logits", lambda logits: logits.log_softmax(dim=-1)),
        (None, lambda logits: logits.bfloat16()),
    ],
    ids=["logits", "log-probabilities", "rounded"],
)
def test_logits_give_the_text_away(scored, form, part):
    model, logits = scored
    found = recover(model, form(logits), part=part, corpus="toy:400")
    assert found.texts == SHORT
    assert found.site.startswith("final.")


def test_a_prompt_of_zeros_refuses_no_logits_of_others(scored):
    model, logits = scored
    found = recover(model, torch.cat([logits[:1], 0 * logits[:1]]), corpus="toy:400")
    assert (found.texts, set(found.grades[1])) == ([SHORT[0], ""], {"unknown"})


def test_rows_that_are_hidden_are_no_logits_of_a_temperature(scored, capsys):
    """Zeros stand for them, of which there may be more than of the others."""
    model, logits = scored
    solve_head(model.model, start_at(read_stored(logits), 20))
    assert "temperature" not in capsys.readouterr().err


def test_logits_of_a_head_with_a_bias_and_with_rows_that_no_token_has():
    theirs = their_model("llama 1", dtype=torch.float32, vocab_size=V + 14)
    theirs.lm_head.bias = torch.nn.Parameter(2 * torch.randn(V + 14))
    tokens = torch.tensor([byte_tokenizer().encode(text).ids for text in SHORT])
    with torch.no_grad():
        logits = theirs(tokens).logits
    model = open_model(theirs, tokenizer=byte_tokenizer())
    found = recover(model, logits, corpus="toy:400")
    assert found.texts == SHORT
    assert found.site.startswith("final.")
    assert all(grade == "certain" for row in found.grades for grade in row)
    stored = read_stored(logits)
    later = solve_head(model.model, start_at(stored, 20))  # as if zeros were no logits of this head
    torch.testing.assert_close(later.values[:, 20:], solve_head(model.model, stored).values)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Gemma2", {"final_logit_softcapping": 20.0}),
        ("Granite", {"logits_scaling": 4.0}),
        ("Cohere", {"logit_scale": 0.25}),
    ],
)
def test_logits_that_are_capped_or_scaled_are_read(family, settings):
    """Those of Gemma 2 and of Cohere were refused."""
    theirs = random_model(family, torch.float32, GROUPED | settings)
    tokens = torch.tensor([byte_tokenizer().encode(text).ids for text in SHORT])
    with torch.no_grad():
        logits = theirs(tokens).logits
    model = open_model(theirs, tokenizer=byte_tokenizer())
    found = recover(model, logits, part="logits", corpus="toy:400")
    assert found.texts == SHORT
    assert all(grade == "certain" for row in found.grades for grade in row)
    if family == "Gemma2":
        with one_line(RequestError, "caps its logits at 20"):
            recover(model, logits.log_softmax(dim=-1), part="logits", corpus="toy:400")


def test_other_numbers_are_refused(scored):
    model, logits = scored
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    with one_line(RequestError, "no logits of this model"):
        recover(model, noise, part="logits", corpus="toy:400")
    with one_line(RequestError, "all channels"):
        recover(model, logits, part="logits", shown="[:, :, :9]", corpus="toy:400")
    with one_line(RequestError, "last layer"):
        recover(model, logits, part="logits", layer=1, corpus="toy:400")
    with one_line(RequestError, f"{logits.shape[-1] - 1} logits"):
        recover(model, logits[..., 1:], part="logits", corpus="toy:400")


def test_logits_of_fewer_tokens_than_the_stream_has_numbers_are_refused(small_model):
    """They were said to be no logits of the model."""
    model = small_model(vocab_size=32)
    logits = model(torch.arange(6)[None])
    with one_line(RequestError, "--part final"):
        solve_head(model, read_stored(logits))


def test_certain_tokens_of_rounded_logits_are_right(scored, nowhere_else):
    model, logits = scored
    found = recover(model, logits.bfloat16(), part="logits", corpus="toy:400")
    for answer, grades, text in zip(found.tokens, found.grades, SHORT, strict=True):
        right = torch.tensor(byte_tokenizer().encode(text).ids)
        certain = torch.tensor([grade == "certain" for grade in grades])
        assert torch.equal(answer[certain], right[certain])


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("temperature", "form"),
    [(2, lambda x: x), (math.log(10), lambda x: x.log_softmax(dim=-1))],
)
def test_shrunk_logits_make_no_token_likely_that_lies_near_the_mean(
    scored, temperature, form, nowhere_else, capsys
):
    """As at a temperature, or by other logarithms: the padding token was the nearest to all."""
    model, logits = scored
    found = recover(model, form(logits) / temperature, part="logits", corpus="toy:400")
    said = capsys.readouterr().err
    assert f"logits: about {1 / temperature:.1f}" in said
    assert "divided by a temperature" in said
    for answer, grades, text in zip(found.tokens, found.grades, SHORT, strict=True):
        right = torch.tensor(byte_tokenizer().encode(text).ids)
        graded = torch.tensor([grade != "unknown" for grade in grades])
        assert torch.equal(answer[graded], right[graded])
