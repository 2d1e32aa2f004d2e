"""Patching against forward hooks, itself, and whole replacement; pairs of stories."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from arch import LanguageModel
from arch.pretrained import PretrainedModel
from eval.checkpoints import open_checkpoint
from eval.errors import RequestError
from eval.lenses import contrast
from eval.lenses.intervention import Site, causal_trace, replaced, spans
from eval.lenses.lens import Request, lenses
from eval.lenses.pairs import Answers, prompt_pairs, swapped, telling_answers
from eval.lenses.trace import blocks_of
from eval.text import Prompt
from tests.arch_cases import byte_tokenizer
from tests.lens_cases import story_checkpoint, story_tokenizer
from tests.test_pretrained import their_model

Make = Callable[..., LanguageModel]
SITES = [Site(0), *(Site(layer, part) for layer in (1, 2) for part in ("mixer", "stream", "block"))]


def prompt(seed: int = 3, length: int = 10) -> Tensor:
    return torch.randint(250, (length,), generator=torch.Generator().manual_seed(seed))


def models(small_model: Make) -> list[LanguageModel]:
    mixers = ["flat", "attention(heads=2)", "headed(heads=2)", "attention+flat"]
    theirs = [
        PretrainedModel(their_model(family, dtype=torch.float32)) for family in ("gpt2", "gptj")
    ]
    return [*(small_model(mixers=(mixer,)) for mixer in mixers), *theirs]


def sites(model: LanguageModel) -> list[Site]:
    beside = type(model.blocks[0]).__name__ == "ParallelBlock"
    return [site for site in SITES if not (beside and site.part == "stream")]


@torch.no_grad()
def patched_logits(
    model: LanguageModel, source: Tensor, target: Tensor, site: Site, positions: Sequence[int]
) -> Tensor:
    """Logits of the target, `(T, V)`, with the source's activations at some positions of a site."""
    stream, other = replaced(model, source, target, site)
    stream = stream.clone()
    stream[list(positions)] = other[list(positions)]
    x = model.with_positions(stream[None]) if site.layer == 0 else stream[None]
    for block in blocks_of(model)[site.layer :]:
        x = block(x)
    return model.logits(x)[0]


def test_a_prompt_patched_with_itself_is_bit_for_bit_itself(small_model: Make) -> None:
    for model in models(small_model):
        tokens = prompt()
        whole = model(tokens[None])[0]
        both = model(torch.stack([tokens, tokens]))[0]
        for site in sites(model):
            patched = patched_logits(model, tokens, tokens, site, [0, 4, 9])
            assert torch.equal(patched, whole) or torch.equal(patched, both)


def test_patching_is_what_a_hook_does(small_model: Make) -> None:
    source, target, positions = prompt(1), prompt(2), [2, 5]
    for model in models(small_model):
        block: Any = model.blocks[1]
        for part, module in (("mixer", block.token_mixer), ("block", block)):
            outputs: list[Tensor] = []

            def keep(*call: Any, outputs: list[Tensor] = outputs) -> None:
                outputs.append(call[-1])

            def swap(*call: Any, outputs: list[Tensor] = outputs) -> Tensor:
                changed = call[-1].clone()
                changed[:, positions] = outputs[0][:, positions]
                return changed

            with torch.no_grad():
                handle = module.register_forward_hook(keep)
                model(source[None])
                handle.remove()
                handle = module.register_forward_hook(swap)
                expected = model(target[None])[0]
                handle.remove()
            found = patched_logits(model, source, target, Site(2, part), positions)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
            assert not torch.allclose(found, model(target[None])[0])


def test_all_positions_of_a_stream_make_the_source(small_model: Make) -> None:
    source, target = prompt(1), prompt(2)
    for model in models(small_model):
        for site in sites(model):
            if site.part != "mixer":
                found = patched_logits(model, source, target, site, range(10))
                torch.testing.assert_close(found, model(source[None])[0], atol=1e-5, rtol=1e-4)


def test_the_sweep_is_one_patch_after_the_other(small_model: Make) -> None:
    source, target = prompt(1), prompt(2)
    source[:3] = target[:3]
    for model in models(small_model):
        ends = [model(x[None])[0, -1] for x in (source, target)]
        answers = telling_answers(*ends)
        high, low = (float(answers.difference(end)) for end in ends)
        for part in {site.part for site in sites(model)}:
            runs, effects = causal_trace(model, source, target, answers, part, rows=4)
            assert [list(run) for run in runs] == [[3, 4], [5, 6], [7, 8], [9]]
            depth = len(model.blocks)
            assert effects.shape == (depth + (part == "block"), 4)
            for row, layer in enumerate(range(part != "block", depth + 1)):
                for run, effect in zip(runs, effects[row].tolist(), strict=True):
                    logits = patched_logits(model, source, target, Site(layer, part), run)[-1]
                    alone = (float(answers.difference(logits)) - low) / (high - low)
                    assert effect == pytest.approx(alone, abs=2e-3)
        assert causal_trace(model, source, target, answers)[1][-1, -1] == pytest.approx(1, abs=1e-4)


def test_runs_of_positions_cover_what_differs() -> None:
    assert spans(5, 2) == [range(2, 3), range(3, 4), range(4, 5)]
    assert [len(run) for run in spans(128, 7, 32)] == [4] * 30 + [1]


def test_answers_of_one_token_are_told_apart() -> None:
    source, target = torch.tensor([5.0, 1.0, 0.0]), torch.tensor([5.0, 0.0, 1.0])
    assert telling_answers(source, target) == Answers(1, 2)
    assert telling_answers(source.flip(0), target) == Answers(2, 0)


def test_stories_differ_in_one_token() -> None:
    tokenizer = story_tokenizer()
    known = contrast.attribute_words(tokenizer)
    assert set(known) == set(contrast.WORDS)
    for attribute, words in known.items():
        one, other = list(words)[:2]
        for frame, chosen in contrast.contexts(tokenizer, 5, held_out=False):
            assert frame in contrast.FRAMES[1:]
            told = [
                contrast.story(tokenizer, frame, attribute, chosen | {attribute: word})
                for word in (one, other)
            ]
            a, b = (story.tokens for story in told)
            places = [i for i in range(len(a)) if a[i] != b[i]]
            assert len(a) == len(b)
            assert places[0] == told[0].places[attribute] == told[1].places[attribute]
            assert (a[places[0]], b[places[0]]) == (words[one], words[other])
            assert [story.words[attribute] for story in told] == [words[one], words[other]]
            assert told[0].text == tokenizer.decode(list(a))


def test_a_tokenizer_without_such_words_shows_the_split() -> None:
    with pytest.raises(RequestError, match=r"Lily = ' ' \+ 'L' \+ 'i' \+ 'l' \+ 'y', dog = "):
        contrast.require_words(byte_tokenizer())
    assert contrast.attribute_words(byte_tokenizer()) == {}


def test_pairs_are_neighbours_or_swaps() -> None:
    checkpoint = story_checkpoint()
    word, other = list(contrast.attribute_words(checkpoint.tokenizer)["animal"].values())[:2]
    a, b = Prompt("text", 0, (5, word, 7)), Prompt("text", 1, (8, 9, 10))
    (pair,) = prompt_pairs(checkpoint, Request((a, b)))
    assert (pair.source.tolist(), pair.target.tolist()) == ([8, 9, 10], [5, word, 7])
    (pair,) = prompt_pairs(checkpoint, Request((a, Prompt("text", 1, (8, 9)))))
    assert (pair.source.tolist(), pair.kind) == ([5, other, 7], "swapped")
    assert swapped(checkpoint, torch.tensor([1, 2])) is None


def test_the_lens_traces_prompts_and_stories() -> None:
    checkpoint = story_checkpoint(mixers=("attention",))
    prompts = (Prompt("text", 0, (5, 6, 7, 8)), Prompt("text", 1, (5, 9, 7, 8)))
    found = lenses()["intervention"].find(checkpoint, Request(prompts))
    effect = found.arrays["effect"]
    assert list(effect.axes) == ["pair", "layer", "position"]
    first = effect.at(pair="text 1 in text 0").values[:, :4]
    assert first[:, 0].tolist() == [0, 0, 0]  # before they differ
    torch.testing.assert_close(first[0, 1], torch.tensor(1.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(first[-1, 3], torch.tensor(1.0), atol=1e-3, rtol=0)
    assert {row["pairs"] for row in found.figures} == {"prompts", "name", "animal", "mood"}
    start = {row["where"]: row["value"] for row in found.figures if row["layer"] == 0}
    assert start["last"] == pytest.approx(0, abs=1e-3)  # the cue is the same in both
    assert found.notes["pairs"][0]["target"] == checkpoint.pieces([5, 6, 7, 8])


def test_wrong_wishes(small_model: Make, model_directory: Callable) -> None:
    model, a = small_model(), prompt()
    with pytest.raises(RequestError, match="prompts of 10 and 9 tokens cannot be patched into"):
        causal_trace(model, a, a[1:], Answers(0, 1))
    with pytest.raises(RequestError, match="the two prompts are the same; give two that differ"):
        causal_trace(model, a, a, Answers(0, 1))
    with pytest.raises(RequestError, match="are answered alike"):
        causal_trace(model, a, a.flip(0), Answers(1, 1))
    with pytest.raises(RequestError, match="layer 3 does not exist"):
        replaced(model, a, a, Site(3))
    beside = PretrainedModel(their_model("gptj", dtype=torch.float32))
    with pytest.raises(RequestError, match="side by side, with no stream between them"):
        replaced(beside, a, a, Site(1, "stream"))
    checkpoint = open_checkpoint(model_directory(context=8))  # too short for the stories
    with pytest.raises(RequestError, match="nothing to patch: one prompt, in which no name"):
        lenses()["intervention"].find(checkpoint, Request((Prompt("text", 0, (1, 2)),)))
