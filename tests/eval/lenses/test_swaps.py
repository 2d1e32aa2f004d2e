"""Patching and steering against forward hooks; the stories that differ in a word."""

import string
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from eval.lenses import stories
from eval.lenses.lens import word_tokens
from eval.lenses.patching import causal_trace, telling_answers
from eval.lenses.steering import (
    batch_stories,
    learn_directions,
    log_odds_change,
    logits_after,
    swap_vectors,
)
from eval.messages import RequestError, say_once
from tests.eval.lenses.cases import (
    look,
    prepending_tokenizer,
    some_tokens,
    story_checkpoint,
    story_tokenizer,
)
from tests.said import one_line


def hooked(module: Any, model: Any, tokens: Any, change: Any) -> Any:
    """A model's logits of `(T,)` tokens, outputs `(1, T, D)` of a module of it changed."""
    handle = module.register_forward_hook(lambda *call: change(call[-1]))
    logits = model(tokens[None])[0]
    handle.remove()
    return logits


@torch.no_grad()
def test_the_sweep_is_what_hooks_do_one_after_the_other(model):
    source, target = some_tokens(model, 2, 24)
    source[:3] = target[:3]
    ends = [model(x[None])[0, -1] for x in (source, target)]
    traced = causal_trace(model, source, target)
    assert traced
    (mine, its), effects = traced
    assert (mine, its) == telling_answers(*ends)
    high, low = (float(end[mine] - end[its]) for end in ends)
    assert not effects[:, :3].any()
    for layer in range(1, len(effects)):
        block, outputs = model.blocks[layer - 1], []
        hooked(block, model, source, outputs.append)
        for position, effect in enumerate(effects[layer]):
            here = (torch.arange(24) == position)[:, None]
            end = hooked(block, model, target, lambda x: torch.where(here, outputs[0], x))[-1]  # noqa: B023
            moved = (float(end[mine] - end[its]) - low) / (high - low)
            assert float(effect) == pytest.approx(moved, abs=2e-3)
    assert effects[-1, -1] == pytest.approx(1, abs=1e-4)


def test_words_are_answers_in_the_order_of_the_texts():
    """They were said to be each other's."""
    checkpoint = story_checkpoint(mixers=("attention",))
    words = checkpoint.pieces([40]), checkpoint.pieces([41])
    asked = {"words": tuple(word for (word,) in words)}
    found = look("patching", checkpoint, range(60, 66), range(70, 76), **asked)
    assert found.texts[0]["lines"][0][2] == checkpoint.words([40, 41])


def test_words_answer_each_pair_of_texts_or_all_of_them(capsys):
    """All but the first two were left aside, and one alone, too."""
    checkpoint = story_checkpoint(mixers=("attention",))
    words = [piece for token in range(40, 44) for piece in checkpoint.pieces([token])]
    texts = [range(start, start + 6) for start in (60, 70, 80, 90)]
    for given, answers in ((words, [40, 41, 42, 43]), (words[:2], [40, 41, 40, 41])):
        lines = look("patching", checkpoint, *texts, words=tuple(given)).texts[0]["lines"]
        said = [word for line in lines[:2] for word in line[2]]
        assert said == checkpoint.words(answers)
    with one_line(RequestError, "--words"):
        look("patching", checkpoint, *texts, words=(words[0], words[0], *words[2:]))
    capsys.readouterr()
    own = look("patching", checkpoint, *texts).texts[0]["lines"]
    for given in (words[:1], words[:3]):  # as other lenses follow them; the lens was left out
        assert look("patching", checkpoint, *texts, words=tuple(given)).texts[0]["lines"] == own
        assert f"--words: {len(given)} are given" in capsys.readouterr().err
    assert look("patching", checkpoint, texts[0], words=tuple(words[:1])).texts  # built-in stories
    look("direction", checkpoint, texts[0], words=tuple(words[:3]))
    assert "--words: direction takes the first two of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "pairs"),
    [
        ((0, 1, 0, 2), ["text 1 in text 0", "text 2 in text 0"]),
        ((0, 1, 1, 0), ["text 1 in text 0", "text 0 in text 1"]),
        ((0, 1, 0, 1, 2, 0), ["text 1 in text 0", "text 0 in text 2"]),
    ],
)
def test_a_text_given_again_stands_in_each_of_its_pairs(order, pairs):
    """It was left out, and others were paired than were given."""
    checkpoint = story_checkpoint(mixers=("attention",))
    texts = [range(start, start + 6) for start in (60, 70, 80)]
    table = look("patching", checkpoint, *texts, order=order)
    lines = table.texts[0]["lines"]
    assert [line[0] for line in lines if line[0].startswith("text")] == pairs
    assert lines[0][1] == checkpoint.tokenizer.decode(list(texts[1]))


def test_a_pair_given_with_two_pairs_of_answers_is_two():
    checkpoint = story_checkpoint(mixers=("attention",))
    words = tuple(piece for token in range(40, 44) for piece in checkpoint.pieces([token]))
    asked = {"words": words, "order": (0, 1, 0, 1)}
    found = look("patching", checkpoint, range(60, 66), range(70, 76), **asked)
    lines = [line for line in found.texts[0]["lines"] if line[0].startswith("text")]
    assert len({line[0] for line in lines}) == len(lines) == 2
    assert [line[2] for line in lines] == [checkpoint.words([40, 41]), checkpoint.words([42, 43])]


def test_given_texts_that_make_no_pair_are_refused_or_named(capsys):
    """Built-in stories alone were shown, without a word about the texts."""
    checkpoint = story_checkpoint(mixers=("attention",))
    with one_line(RequestError, "(text 0 has 6 tokens, text 1 has 5 tokens)"):
        look("patching", checkpoint, range(60, 66), range(70, 75))
    say_once.cache_clear()
    for third, said in (((), False), ((range(40, 44),), True)):
        found = look("patching", checkpoint, range(60, 66), range(70, 76), *third)
        assert found.texts[0]["lines"][0][0] == "text 1 in text 0"
        assert ("(text 2 has 4 tokens)" in capsys.readouterr().err) == said
    for order in ((), (0, 0)):  # built-in stories, as of one text
        assert look("patching", checkpoint, range(60, 66), order=order).texts


def test_a_word_after_a_space_is_the_token_that_it_is_in_a_text():
    """Llama 2's tokenizer puts another space before it, and no word was one token."""
    tokenizer = prepending_tokenizer()
    assert len(tokenizer.encode(" dog").ids) == 2
    checkpoint = replace(story_checkpoint(), tokenizer=tokenizer)
    dog = tokenizer.get_vocab()["▁dog"]
    assert word_tokens(checkpoint, ["dog", " dog"]) == {"dog": dog, " dog": dog}
    found = look("direction", checkpoint, range(9), words=("dog", " dog"))
    ((first, second),) = found.notes["ends"].values()
    assert first == checkpoint.words([dog])[0] != second  # one token makes no plane


def test_an_unknown_word_is_no_token_of_its_own():
    """The token of unknown words was followed under the name of one, and swapped for itself."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "dog": 2, "dog.": 3}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.normalizer = normalizers.Lowercase()
    checkpoint = replace(story_checkpoint(), tokenizer=tokenizer)
    assert word_tokens(checkpoint, ["Dog", "<unk>"]) == {"Dog": 2, "<unk>": 0}
    with one_line(RequestError, '--words "zebra": is read as "<unk>"'):
        word_tokens(checkpoint, ["zebra"])
    assert stories.attribute_words(tokenizer) == {}


def test_words_that_a_full_stop_joins_are_not_swapped():
    """Steering took another token's place for theirs."""
    words = [end for word in stories.WORDS["animal"].split() for end in (word, f"{word}.")]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "dog"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert stories.attribute_words(tokenizer) == {}
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert len(stories.attribute_words(tokenizer)["animal"]) == stories.MOST


@pytest.mark.parametrize("joined", [True, False])
def test_words_that_a_token_joins_with_the_one_before_are_not_swapped(joined):
    """By a tokenizer whose tokens reach over blanks: directions were learnt of another token."""
    merges = [(" ", "d"), (" d", "o"), (" do", "g"), (" ", "c"), (" c", "a"), (" ca", "t")]
    merges += [("e", " dog"), ("e", " cat")] * joined  # as in "little dog"
    names = dict.fromkeys([*string.printable, *map("".join, merges)])
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, merges))
    expected = {} if joined else {"animal": ["dog", "cat"]}
    found = stories.attribute_words(tokenizer)
    assert {attribute: [*words] for attribute, words in found.items()} == expected


@pytest.mark.parametrize("tokenizer", [story_tokenizer, prepending_tokenizer])
def test_stories_differ_in_one_token(tokenizer):
    tokenizer = tokenizer()
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


def test_special_tokens_of_a_pair_are_shown():
    checkpoint = story_checkpoint()
    end = checkpoint.tokenizer.token_to_id("<|endoftext|>")
    found = look("patching", checkpoint, (end, 40, 41), (end, 50, 51))
    (text,) = found.texts
    assert text["lines"][0][1].startswith("<|endoftext|>")
