"""Text from a model: the same as full recomputation, and drawn as asked."""

import pytest
import torch

from arch import ModelError, generate
from tests.arch.cases import MIXERS, random_tokens, small_model


def recompute(model, tokens, new):
    """Greedy decoding that remembers nothing."""
    for _ in range(new):
        likeliest = model(tokens)[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, likeliest], dim=1)
    return tokens


@pytest.mark.parametrize("mixer", MIXERS)
def test_greedy_text_is_that_of_full_recomputation(mixer):
    model = small_model(mixer, init="reference", context=24).double()
    prompt = random_tokens(model, batch=3, length=4)
    found = generate(model, prompt, 16, temperature=0)
    assert torch.equal(found, recompute(model, prompt, 16))


def test_it_ends_at_the_context():
    model = small_model("flat")
    assert generate(model, random_tokens(model, length=10), 50).shape == (2, 12)
    full = random_tokens(model)
    assert torch.equal(generate(model, full, 5), full)


def test_it_ends_when_every_row_has_said_stop_and_fills_with_it():
    model = small_model("flat", init="reference", context=64, vocab_size=3)
    prompt = random_tokens(model, batch=4, length=2)
    text = generate(model, prompt, 60, stop=0, generator=torch.Generator().manual_seed(1))[:, 2:]
    assert text.shape[1] < 60
    for row in text.tolist():
        assert set(row[row.index(0) :]) == {0}
    assert (text[:, -2] != 0).any()  # the last row to say so has just said so


def test_chance_is_the_generators():
    model = small_model("flat", context=64)
    prompt = random_tokens(model, length=2)
    one, same, other = (
        generate(model, prompt, 50, generator=torch.Generator().manual_seed(seed))
        for seed in (5, 5, 6)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def frequencies(logits, **settings):
    """How often each token follows token 0, for a model that gives it these logits."""
    model = small_model("flat", vocab_size=len(logits), context=2, final_norm=False)
    prompts = torch.zeros(20000, 1, dtype=torch.long)
    with torch.no_grad():
        hidden = model.hidden(model.embed(prompts[:1]), 2)[0]
        model.head.weight[:] = logits[:, None] * hidden / hidden.square().sum()
    drawn = generate(model, prompts, 1, generator=torch.Generator().manual_seed(0), **settings)
    return drawn[:, 1].bincount(minlength=len(logits)) / len(prompts)


LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0])


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, [0, 1, 2, 3]),
        ({"temperature": 0.5}, [0, 1, 2, 3]),
        ({"top_k": 2}, [0, 2]),
        ({"top_p": 0.7}, [0, 2]),  # probabilities .64, .24, .09, .03
        ({"top_p": 0.9}, [0, 2, 1]),
        ({"top_p": 0.01}, [0]),
        ({"top_k": 3, "top_p": 0.7, "temperature": 2.0}, [0, 2]),
        ({"temperature": 0}, [0]),
        ({"temperature": 1e-40}, [0]),
        ({"top_k": 9}, [0, 1, 2, 3]),
    ],
)
def test_tokens_are_drawn_with_the_right_probabilities(settings, allowed):
    temperature = max(settings.get("temperature", 1.0), 1e-20)
    expected = torch.zeros(4)
    expected[allowed] = (LOGITS / temperature)[allowed].softmax(dim=0)
    torch.testing.assert_close(frequencies(LOGITS, **settings), expected, atol=0.015, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_row_without_a_token_is_drawn(temperature):
    model = small_model("flat", vocab_multiple=64)
    with torch.no_grad():
        model.head.weight[11:] = 1000 * model.head.weight[:53].sign()
    tokens = generate(model, random_tokens(model, 20, 1), 11, temperature)
    assert tokens.max() < 11


def test_nothing_is_drawn_from_numbers_that_are_not_finite():
    """Greedily the first token would be taken, as if it were the likeliest."""
    model = small_model("flat", init="reference").double()
    torch.nn.init.constant_(model.blocks[0].norm_token.weight, float("nan"))
    for temperature in (0, 1.0):
        with pytest.raises(ModelError, match="not finite"):
            generate(model, random_tokens(model, length=2), 3, temperature)
