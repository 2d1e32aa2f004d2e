"""Patching and steering against forward hooks; the stories that differ in a word."""

from itertools import product
from typing import Any

import pytest
import torch

from arch import generate
from eval import RequestError
from eval.lenses import stories
from eval.lenses.patching import causal_trace, prompt_pairs, spans, telling_answers
from eval.lenses.steering import (
    batch_stories,
    learn_directions,
    log_odds_change,
    logits_after,
    steered,
    swap_vectors,
)
from eval.lenses.trace import gather
from eval.models import open_checkpoint
from tests.arch.cases import byte_tokenizer
from tests.eval.lenses.cases import (
    ask,
    figures,
    look,
    some_tokens,
    story_checkpoint,
    story_tokenizer,
)


def hooked(module: Any, model: Any, tokens: Any, change: Any) -> Any:
    """A model's logits of `(T,)` tokens, outputs `(1, T, D)` of a module of it changed."""
    handle = module.register_forward_hook(lambda *call: change(call[-1]))
    logits = model(tokens[None])[0]
    handle.remove()
    return logits


@torch.no_grad()
def test_the_sweep_is_what_hooks_do_one_after_the_other(model):
    source, target = some_tokens(model, 2, 10)
    source[:3] = target[:3]
    ends = [model(x[None])[0, -1] for x in (source, target)]
    traced = causal_trace(model, source, target, rows=4)
    assert traced
    (mine, its), runs, effects = traced
    assert (mine, its) == telling_answers(*ends)
    high, low = (float(end[mine] - end[its]) for end in ends)
    assert [list(run) for run in runs] == [[3, 4], [5, 6], [7, 8], [9]]
    for layer in range(1, len(effects)):
        block, outputs = model.blocks[layer - 1], []
        hooked(block, model, source, outputs.append)
        for run, effect in zip(runs, effects[layer], strict=True):
            here = torch.zeros(10, 1).index_fill(0, torch.tensor([*run]), 1).bool()
            end = hooked(block, model, target, lambda x: torch.where(here, outputs[0], x))[-1]  # noqa: B023
            moved = (float(end[mine] - end[its]) - low) / (high - low)
            assert float(effect) == pytest.approx(moved, abs=2e-3)
    assert effects[-1, -1] == pytest.approx(1, abs=1e-4)
    _, _, whole = causal_trace(model, source, target, rows=1) or traced
    torch.testing.assert_close(whole, torch.ones_like(whole), atol=1e-3, rtol=0)


def test_runs_of_positions_and_answers_are_told():
    assert spans(5, 2) == [range(2, 3), range(3, 4), range(4, 5)]
    assert [len(run) for run in spans(128, 7, 32)] == [4] * 30 + [1]
    source, target = torch.tensor([5.0, 1.0, 0.0]), torch.tensor([5.0, 0.0, 1.0])
    assert telling_answers(source, target) == (1, 2)  # of one likeliest token
    assert telling_answers(source.flip(0), target) == (2, 0)


def test_stories_differ_in_one_token():
    tokenizer = story_tokenizer()
    known = stories.attribute_words(tokenizer)
    assert set(known) == set(stories.WORDS)
    for attribute, words in known.items():
        both = list(words)[:2]
        for frame, chosen in stories.contexts(tokenizer, 5, held_out=False):
            assert frame in stories.FRAMES[1:]
            told = [
                stories.tell_story(tokenizer, frame, attribute, chosen | {attribute: word})
                for word in both
            ]
            a, b = (story.tokens for story in told)
            places = [i for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other]
            assert places[0] == told[0].places[attribute] == told[1].places[attribute]
            expected = [words[word] for word in both]
            assert [a[places[0]], b[places[0]]] == expected
            assert [story.words[attribute] for story in told] == expected
            assert told[0].text == tokenizer.decode(list(a))


def test_a_tokenizer_without_such_words_shows_the_split():
    with pytest.raises(RequestError, match=r"Lily = ' ' \+ 'L' \+ 'i' \+ 'l' \+ 'y', dog = "):
        stories.require_words(byte_tokenizer())
    assert stories.attribute_words(byte_tokenizer()) == {}


def test_patching_traces_prompts_of_one_length_that_differ_and_stories():
    checkpoint = story_checkpoint(mixers=("attention",))
    request = ask((5, 6, 7), (8, 9, 10), (5, 6), (5,), (8, 9), (8, 9), (4,))
    (pair,) = prompt_pairs(checkpoint, gather(checkpoint, request.prompts), request)
    assert (pair.source.tolist(), pair.target.tolist()) == ([8, 9, 10], [5, 6, 7])
    found = look("patching", checkpoint, (5, 6, 7, 8), (5, 9, 7, 8))
    first = found.of("effect")[0]
    assert [*first.axes] == ["pair", "layer", "position"]
    effect = torch.from_numpy(first.values[0]).float()
    assert effect[:, 0].tolist() == [0, 0, 0]  # before they differ
    torch.testing.assert_close(effect[[0, -1], [1, 3]], torch.ones(2), atol=1e-3, rtol=0)
    rows = figures(found, "patching effect")
    assert {row["pairs"] for row in rows} == {"prompts", "name", "animal", "mood"}
    start = {row["where"]: row["value"] for row in rows if row["layer"] == 0}
    assert start["last"] == pytest.approx(0, abs=1e-3)  # the cue is the same in both
    assert found.pieces["text 1 in text 0"] == checkpoint.pieces([5, 6, 7, 8])


def test_a_pair_that_is_answered_alike_is_left_out_alone(model_directory):
    checkpoint = story_checkpoint(mixers=("identity",))  # whose answer is the last token's
    pairs = (5, 6, 7, 8), (5, 9, 7, 8), (5, 6, 7, 8), (5, 6, 7, 9)
    found = look("patching", checkpoint, *pairs)
    said = {line[0]: line[2] for line in found.texts[0]["lines"]}
    assert said["text 1 in text 0"] == "answered alike: left out"
    assert {row["pairs"] for row in figures(found, "patching effect")} == {"prompts"}
    with pytest.raises(RequestError, match="every pair are answered alike"):
        look("patching", checkpoint, *pairs[:2])
    short = open_checkpoint(model_directory(context=8))  # too short for the stories
    with pytest.raises(RequestError, match=r"nothing to patch: .*; give two prompts"):
        look("patching", short, (1, 2))


def test_a_vector_is_added_after_its_block_however_tokens_are_read(model):
    tokens, vectors = some_tokens(model, 3, 8), torch.randn(3, 1, model.config.d_model)
    plain, near = model(tokens), 1e-5
    with steered(model, 1, vectors):
        together = model(tokens)
        embeddings = model.embed(tokens)
        first, state = model.prefix(embeddings[:, :4])
        second, state = model.prefix(embeddings[:, 4:7], state)
        pieces = torch.cat([first, second, model.step(embeddings[:, 7:], state)], dim=1)
        whole = model.hidden(embeddings, len(model.blocks))
        torch.testing.assert_close(pieces, whole, atol=near, rtol=10 * near)
    for row, vector, found in zip(tokens, vectors, together, strict=True):
        alone = hooked(model.blocks[0], model, row, lambda x: x + vector)  # noqa: B023
        torch.testing.assert_close(found, alone, atol=near, rtol=10 * near)
    with steered(model, 1, 3 * vectors):
        text = generate(model, tokens, 3, temperature=0)
        for t in range(8, 11):
            assert torch.equal(model(text[:, :t])[:, -1].argmax(-1), text[:, t])
    assert torch.equal(model(tokens), plain)  # the model itself is as it was


def test_directions_are_differences_of_streams():
    """Before any mixing a word's direction is its embedding."""
    checkpoint = story_checkpoint()
    means, words = learn_directions(checkpoint), stories.attribute_words(checkpoint.tokenizer)
    assert set(means) == set(words)
    for attribute, known in words.items():
        tokens = list(known.values())
        embeddings = checkpoint.model.embed(torch.tensor(tokens))
        torch.testing.assert_close(means[attribute][:, 0], embeddings)
        swapped = swap_vectors(means[attribute][:, 0], known, tokens)[:, 0]
        torch.testing.assert_close(swapped, embeddings.roll(-1, 0) - embeddings)


def test_logits_of_stories_are_those_of_steered_models():
    checkpoint = story_checkpoint(mixers=("attention",))
    model, words = checkpoint.model, stories.attribute_words(checkpoint.tokenizer)
    pairs = stories.swaps(checkpoint.tokenizer, 3)[:9]
    assert {pair.attribute for pair in pairs} == {"name"}
    told = [pair.story for pair in pairs]
    assert [story.cue for story in told] == ["name", "animal", "mood"] * 3
    batch = batch_stories(checkpoint, told)
    other = batch_stories(checkpoint, [pair.swapped for pair in pairs])
    before, after = (one.at_last(model(one.tokens)) for one in (batch, other))
    vectors, start = torch.randn(len(told), 2, 32), batch.last - 3
    found = logits_after(batch, 1, vectors * torch.tensor([[0.0], [1.0]]), start)
    torch.testing.assert_close(found[:, 0], before)
    for row, story in enumerate(told):
        later = (torch.arange(len(story.tokens)) >= start[row])[:, None] * vectors[row, 1]
        tokens = torch.tensor(story.tokens)
        alone = hooked(model.blocks[0], model, tokens, lambda x: x + later)[-1]  # noqa: B023
        torch.testing.assert_close(found[row, 1], alone, atol=1e-5, rtol=1e-4)
    assert not log_odds_change(words, told, before, before).any()
    own, moved = told[0].words["name"], after - before
    expected = moved[0, stories.following(words["name"], own)] - moved[0, own]
    torch.testing.assert_close(log_odds_change(words, told, before, after)[0], expected)


def test_steering_measures_the_swapped_and_the_others():
    found = look("steering", story_checkpoint(), (1, 2, 3), tokens=5000)
    every = figures(found, "swap effect")
    rows = [row for row in every if row["by"] == "steered" and row["measured"] == "others"]
    places = [(row["attribute"], row["layer"]) for row in rows]
    assert places == [*product(("name", "animal", "mood"), (1, 2))]
    assert all(row["value"] >= 0 and row["n"] == 8 for row in rows)  # sizes
    assert {(r["by"], r["layer"]) for r in every} == {*product(("steered", "random"), (1, 2))}
    by_text = figures(found, "swap effect of the text")
    assert [row["n"] for row in by_text if row["measured"] == "swapped"] == [4] * 3
    swapped = [line[0].split(":")[0] for line in found.texts[0]["lines"]]
    assert swapped == ["nothing", "name", "animal", "mood"]
