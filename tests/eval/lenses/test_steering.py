"""Steering against vectors added by a hook, through reading, stepping and generating."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from arch import generate
from eval.lenses.steering import (
    batch_stories,
    learn_directions,
    log_odds_change,
    logits_after,
    steered,
    swap_vectors,
)
from eval.lenses.stories import attribute_words, following, swaps
from eval.lenses.trace import spaced_layers
from tests.eval.lenses.cases import figures, look, story_checkpoint, wrapped


def prompts(length: int = 8) -> Tensor:
    return torch.randint(250, (3, length), generator=torch.Generator().manual_seed(3))


def hooked(model, tokens, vector, start=0):
    """The model's logits with a vector added by a hook after its first block."""

    def add(*call):
        return torch.cat([call[-1][:, :start], call[-1][:, start:] + vector], dim=1)

    handle = model.blocks[0].register_forward_hook(add)
    logits = model(tokens)
    handle.remove()
    return logits


@pytest.mark.parametrize("name", ["flat", "attention(heads=2)", "attention+flat", "gptj"])
def test_a_vector_is_added_after_its_block_however_tokens_are_read(name):
    model: Any = wrapped(name) if name == "gptj" else story_checkpoint(mixers=(name,)).model
    tokens, vectors = prompts(), torch.randn(3, 1, model.config.d_model)
    plain, expected = model(tokens), hooked(model, tokens, vectors)
    with steered(model, 1, vectors):
        torch.testing.assert_close(model(tokens), expected)
        embeddings = model.embed(tokens)
        first, state = model.prefix(embeddings[:, :4])
        second, state = model.prefix(embeddings[:, 4:7], state)
        pieces = torch.cat([first, second, model.step(embeddings[:, 7:], state)], dim=1)
        whole = model.hidden(embeddings, len(model.blocks))
        torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-4)
    with steered(model, 1, 3 * vectors):
        text = generate(model, tokens, 5, temperature=0)
        for t in range(8, 13):
            assert torch.equal(model(text[:, :t])[:, -1].argmax(-1), text[:, t])
    assert torch.equal(model(tokens), plain)  # the model itself is as it was
    assert not torch.equal(text, generate(model, tokens, 5, temperature=0))


def test_directions_are_differences_of_streams():
    """Before any mixing a word's direction is its embedding, and a cue knows of no word."""
    checkpoint = story_checkpoint()
    means, words = learn_directions(checkpoint), attribute_words(checkpoint.tokenizer)
    assert set(means) == {(a, place) for a in words for place in ("word", "last")}
    for attribute, tokens in words.items():
        embeddings = checkpoint.model.embed(torch.tensor(list(tokens.values())))
        at_word, at_last = (means[attribute, place][:, 0] for place in ("word", "last"))
        torch.testing.assert_close(at_word, embeddings)
        swapped = swap_vectors(at_word, tokens, list(tokens.values()))[:, 0]
        torch.testing.assert_close(swapped, embeddings.roll(-1, 0) - embeddings)
        if attribute != "mood":  # whose cue has the name in it, not the mood
            torch.testing.assert_close(at_last, at_last[:1].expand_as(at_last))


def test_logits_of_stories_are_those_of_steered_models():
    checkpoint = story_checkpoint(mixers=("attention",))
    model, words = checkpoint.model, attribute_words(checkpoint.tokenizer)
    pairs = swaps(checkpoint.tokenizer, 3)[:9]
    assert {pair.attribute for pair in pairs} == {"name"}
    told = [pair.story for pair in pairs]
    assert [story.cue for story in told] == ["name", "animal", "mood"] * 3
    batch = batch_stories(checkpoint, told)
    other = batch_stories(checkpoint, [pair.swapped for pair in pairs])
    before, after = (one.at_last(model(one.tokens)) for one in (batch, other))
    assert not log_odds_change(words, told, before, before).any()
    vectors, start = torch.randn(len(told), 2, 32), batch.last - 3
    found = logits_after(batch, 1, vectors * torch.tensor([[0.0], [1.0]]), start)
    torch.testing.assert_close(found[:, 0], before)
    for row, story in enumerate(told):
        alone = hooked(model, torch.tensor([story.tokens]), vectors[row, 1], int(start[row]))
        alone = alone[0, -1]
        torch.testing.assert_close(found[row, 1], alone, atol=1e-5, rtol=1e-4)
    row = told[0]
    own, new = row.words["name"], following(words["name"], row.words["name"])
    moved = after - before
    expected = moved[0, new] - moved[0, own]
    torch.testing.assert_close(log_odds_change(words, told, before, after)[0], expected)


def test_the_lens_measures_the_swapped_and_the_others():
    found = look("steering", story_checkpoint(), (1, 2, 3), tokens=5000)
    every = figures(found, "swap effect")
    rows = [row for row in every if row["by"] == "steered" and row["measured"] == "others"]
    assert {row["attribute"] for row in rows} == {"name", "animal", "mood"}
    assert {row["layer"] for row in rows} == {1, 2}
    assert len(rows) == 3 * 2 * 2
    assert all(row["value"] >= 0 and row["n"] == 8 for row in rows)  # sizes
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    assert {(row["by"], row.get("layer")) for row in every} == {
        ("text", None), *product(("steered", "random"), (1, 2))
    }  # fmt: skip
    (samples,) = found.texts
    swapped = [line[0].split(":")[0] for line in samples["lines"]]
    assert swapped == ["nothing", "name", "animal", "mood"]


@pytest.mark.parametrize(
    ("depth", "most", "layers"),
    [(3, 3, [1, 2, 3]), (8, 3, [3, 5, 8]), (8, 4, [2, 4, 6, 8]), (10, 4, [2, 5, 8, 10])],
)
def test_layers_are_spaced_to_the_last(depth, most, layers):
    assert spaced_layers(depth, most) == layers
