"""Patching against forward hooks and whole replacement; pairs of stories."""

from typing import Any

import pytest
import torch

from eval import RequestError
from eval.lenses import stories
from eval.lenses.patching import (
    Answers,
    causal_trace,
    prompt_pairs,
    spans,
    telling_answers,
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
    wrapped,
)

MIXERS = ["flat", "attention(heads=2)", "headed(heads=2)", "attention+flat"]


@torch.no_grad()
def hooked(model, source, target, layer, run):
    """The target's last logits with the source's vectors after a block put in by a hook."""
    module: Any = model.embedding if layer == 0 else model.blocks[layer - 1]
    outputs = []
    handle = module.register_forward_hook(lambda *call: outputs.append(call[-1]))
    model(source[None])
    handle.remove()

    def swap(*call):
        changed = call[-1].clone()
        changed[:, run.start : run.stop] = outputs[0][:, run.start : run.stop]
        return changed

    handle = module.register_forward_hook(swap)
    logits = model(target[None])[0, -1]
    handle.remove()
    return logits


@pytest.mark.parametrize("name", [*MIXERS, "gpt2", "gptj"])
def test_the_sweep_is_what_hooks_do_one_after_the_other(small_model, name):
    model = wrapped(name) if name not in MIXERS else small_model(mixers=(name,))
    source, target = some_tokens(model, 2, 10)
    source[:3] = target[:3]
    ends = [model(x[None])[0, -1] for x in (source, target)]
    traced = causal_trace(model, source, target, rows=4)
    assert traced
    answers, runs, effects = traced
    assert answers == telling_answers(*ends)
    high, low = (float(answers.difference(end)) for end in ends)
    assert [list(run) for run in runs] == [[3, 4], [5, 6], [7, 8], [9]]
    assert effects.shape == (len(model.blocks) + 1, 4)
    for layer, row in enumerate(effects.tolist()):
        for run, effect in zip(runs, row, strict=True):
            alone = answers.difference(hooked(model, source, target, layer, run))
            assert effect == pytest.approx((float(alone) - low) / (high - low), abs=2e-3)
    assert effects[-1, -1] == pytest.approx(1, abs=1e-4)
    _, _, whole = causal_trace(model, source, target, rows=1) or traced
    torch.testing.assert_close(whole, torch.ones_like(whole), atol=1e-3, rtol=0)


def test_runs_of_positions_and_answers_are_told():
    assert spans(5, 2) == [range(2, 3), range(3, 4), range(4, 5)]
    assert [len(run) for run in spans(128, 7, 32)] == [4] * 30 + [1]
    source, target = torch.tensor([5.0, 1.0, 0.0]), torch.tensor([5.0, 0.0, 1.0])
    assert telling_answers(source, target) == Answers(1, 2)  # of one likeliest token
    assert telling_answers(source.flip(0), target) == Answers(2, 0)


def test_stories_differ_in_one_token():
    tokenizer = story_tokenizer()
    known = stories.attribute_words(tokenizer)
    assert set(known) == set(stories.WORDS)
    for attribute, words in known.items():
        one, other = list(words)[:2]
        for frame, chosen in stories.contexts(tokenizer, 5, held_out=False):
            assert frame in stories.FRAMES[1:]
            told = [
                stories.tell_story(tokenizer, frame, attribute, chosen | {attribute: word})
                for word in (one, other)
            ]
            a, b = (story.tokens for story in told)
            places = [i for i in range(len(a)) if a[i] != b[i]]
            assert len(a) == len(b)
            assert places[0] == told[0].places[attribute] == told[1].places[attribute]
            assert (a[places[0]], b[places[0]]) == (words[one], words[other])
            assert [story.words[attribute] for story in told] == [words[one], words[other]]
            assert told[0].text == tokenizer.decode(list(a))


def test_a_tokenizer_without_such_words_shows_the_split():
    with pytest.raises(RequestError, match=r"Lily = ' ' \+ 'L' \+ 'i' \+ 'l' \+ 'y', dog = "):
        stories.require_words(byte_tokenizer())
    assert stories.attribute_words(byte_tokenizer()) == {}


def test_pairs_are_neighbours_of_one_length_that_differ():
    prompts = (5, 6, 7), (8, 9, 10), (5, 6), (5,), (8, 9), (8, 9), (4,)
    checkpoint, request = story_checkpoint(), ask(*prompts)
    (pair,) = prompt_pairs(checkpoint, gather(checkpoint, request.prompts), request)
    assert (pair.source.tolist(), pair.target.tolist()) == ([8, 9, 10], [5, 6, 7])
    assert pair.label == "text 1 in text 0"


def test_the_lens_traces_prompts_and_stories():
    checkpoint = story_checkpoint(mixers=("attention",))
    found = look("patching", checkpoint, (5, 6, 7, 8), (5, 9, 7, 8))
    first = found.of("effect")[0]
    assert (list(first.axes), first.axes["pair"]) == (
        ["pair", "layer", "position"], ["text 1 in text 0"]
    )  # fmt: skip
    effect = torch.from_numpy(first.values[0]).float()
    assert effect[:, 0].tolist() == [0, 0, 0]  # before they differ
    torch.testing.assert_close(effect[0, 1], torch.tensor(1.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(effect[-1, 3], torch.tensor(1.0), atol=1e-3, rtol=0)
    rows = figures(found, "patching effect")
    assert {row["pairs"] for row in rows} == {"prompts", "name", "animal", "mood"}
    start = {row["where"]: row["value"] for row in rows if row["layer"] == 0}
    assert start["last"] == pytest.approx(0, abs=1e-3)  # the cue is the same in both
    assert found.pieces["text 1 in text 0"] == checkpoint.pieces([5, 6, 7, 8])


def test_a_pair_that_is_answered_alike_is_left_out_alone(small_model):
    model = small_model()
    (a,) = some_tokens(model, 1, 10)
    assert causal_trace(model, a, a.flip(0), Answers(1, 1)) is None
    checkpoint = story_checkpoint(mixers=("identity",))  # whose answer is the last token's
    pairs = (5, 6, 7, 8), (5, 9, 7, 8), (5, 6, 7, 8), (5, 6, 7, 9)
    found = look("patching", checkpoint, *pairs)
    said = {line[0]: line[2] for line in found.texts[0]["lines"]}
    assert said["text 1 in text 0"] == "answered alike: left out"
    assert {row["pairs"] for row in figures(found, "patching effect")} == {"prompts"}
    with pytest.raises(RequestError, match="every pair are answered alike"):
        look("patching", checkpoint, *pairs[:2])


def test_wrong_wishes(model_directory):
    checkpoint = open_checkpoint(model_directory(context=8))  # too short for the stories
    with pytest.raises(RequestError, match=r"nothing to patch: .*; give two prompts"):
        look("patching", checkpoint, (1, 2))
