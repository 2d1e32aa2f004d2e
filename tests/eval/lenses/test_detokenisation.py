"""Words of several tokens, and what probes read from their last one."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval import RequestError
from eval.lenses.detokenisation import (
    GROUPS,
    OFFSETS,
    alphabet,
    around,
    fit_probes,
    groups,
    inner,
    words_of,
)
from eval.lenses.stories import StoryWindows
from eval.lenses.trace import streams_of
from eval.models import open_checkpoint
from tests.eval.lenses.cases import look


def plain_words(text, spans):
    """Each word's last lettered token and how many lettered tokens it has, from the text itself."""
    found, start = [], 0
    for word in text.split(" "):
        own = [i for i, (a, b) in enumerate(spans) if start <= b - 1 < start + len(word)]
        lettered = [i for i in own if any(map(str.isalpha, text[slice(*spans[i])]))]
        if lettered:
            found.append((lettered[-1], len(lettered)))
        start += len(word) + 1
    return found


def test_words_are_those_of_the_text(small_tokenizer):
    text = "the elephant and a hippopotamus went walking (slowly) to Constantinople again"
    encoded = small_tokenizer.encode(text)
    ids = torch.tensor([encoded.ids])
    known = alphabet(small_tokenizer, small_tokenizer.get_vocab_size())
    lengths, last = words_of(ids, *known)
    ends = last[0].nonzero()[:, 0].tolist()
    expected = plain_words(text, encoded.offsets)
    assert expected[-1][0] == ids.shape[1] - 1  # it may go on after the window
    assert list(zip(ends, lengths[0, ends].tolist(), strict=True)) == expected[:-1]
    assert max(length for _, length in expected) >= 3


def test_a_sentencepiece_tokenizer_has_words_too():
    pieces = ["▁un", "happ", "y", "▁dog", ",", "s", "<0x0A>"]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    known = alphabet(tokenizer, len(pieces))
    length, last = words_of(torch.tensor([[0, 1, 2, 3, 4, 5, 6, 5, 3, 4]]), *known)
    assert length.tolist() == [[1, 2, 3, 1, 0, 1, 0, 1, 1, 0]]
    assert last[0].nonzero()[:, 0].tolist() == [2, 3, 5, 7, 8]


KNOWN = torch.tensor([True, False, False]), torch.tensor([True, True, False])
"""Of a beginning, a continuation, a comma: whether it begins a word, and has letters."""


def test_words_of_tokens_and_what_is_asked_around_them():
    length, last = words_of(torch.tensor([[1, 1, 0, 1, 1, 2, 1, 0, 0, 1]]), *KNOWN)
    assert length.tolist() == [[1, 2, 1, 2, 3, 0, 1, 1, 1, 2]]
    assert last.long().tolist() == [[0, 1, 0, 0, 1, 0, 1, 1, 0, 0]]
    tokens = torch.arange(20).view(2, 10)
    assert around(tokens).shape == (2, 7, len(OFFSETS))
    assert around(tokens)[1, 3].tolist() == [int(tokens[1, 5 + o]) for o in OFFSETS]
    found = groups(*words_of(torch.tensor([[0, 0, 1, 0, 1, 1, 2, 0, 0, 2]]), *KNOWN), seed=0)
    several, one, any_place = GROUPS
    for group, offset, expected in (
        (several, -1, [2, 5]), (several, -2, [5]), (several, 0, [2, 5]), (several, 1, [2, 5]),
        (one, -2, [7, 8]), (one, 0, [7, 8]), (any_place, 0, [*range(2, 9)]),
    ):  # fmt: skip
        assert (found[group, offset] + 2).tolist() == expected


def probed(model, windows, layers, classes):
    """Logits and right answers of probes fitted on the first 100 windows, at the others."""
    probes = fit_probes(StoryWindows(model, windows[:100]), layers, classes)
    streams = inner(streams_of(model, windows[100:]), layers).flatten(1, 2)
    right = torch.searchsorted(classes, around(windows[100:])).flatten(0, 1)
    return {
        (layer, o): (probes[layer, o](stream), right[:, i])
        for layer, stream in zip(layers, streams, strict=True)
        for i, o in enumerate(OFFSETS)
    }


def top1(logits, right):
    return float((logits.argmax(dim=1) == right).float().mean())


def test_probes_read_what_a_layer_has_and_nothing_else(small_model):
    """At the embedding the token itself; behind a mixer that takes the token before, that too."""
    model = small_model(d_model=64, n_layers=1)
    mixer: Any = model.blocks[0].token_mixer
    mixer.mix.weight.copy_(2 * torch.eye(32).roll(1, 0).tril())  # the token before, and it alone
    mixer.mix.bias.zero_()
    windows = 7 * torch.randint(20, (120, 32)) + 5
    found = probed(model, windows, [0, 1], torch.unique(windows))
    assert [o for o in OFFSETS if top1(*found[0, o]) > 0.9] == [0]
    assert [o for o in OFFSETS if top1(*found[1, o]) > 0.9] == [-1, 0]
    assert F.cross_entropy(*found[0, 0]) < 0.1
    nats = float(F.cross_entropy(*found[0, -1]))
    assert nats == pytest.approx(math.log(20), abs=0.3)  # as by chance


def test_the_lens(model_directory):
    checkpoint = open_checkpoint(model_directory(mixers=("attention+flat",)))
    found = look("detokenisation", checkpoint, range(30, 50), tokens=2000)
    read = [f for f in found.figures if f["figure"] == "read"]
    assert all(f["low"] <= f["value"] <= f["high"] for f in read)
    place = {"group": "any position", "offset": 0, "layer": 0}
    assert [f["value"] > 0.9 for f in read if f.items() >= place.items()] == [True]
    assert all(len(word) > 1 for word in found.notes["examples"])
    checkpoint.kept.clear()
    with torch.no_grad():
        checkpoint.model.blocks[1].norm_channel.weight[0] = torch.nan  # pyright: ignore
    with pytest.raises(RequestError, match="layer 2 gives numbers that are not finite"):
        look("detokenisation", checkpoint, range(30, 50), tokens=2000)


@pytest.mark.parametrize("context", [4, 5, 32, 128])
def test_too_little_text_is_refused_and_what_is_enough_is_enough(model_directory, context):
    """Windows are held back for the probes' factors: others must be left to fit on."""
    checkpoint = open_checkpoint(model_directory(context=context))
    least = 2 * context * math.ceil(128 / (context - 3))
    refusal = f"--tokens {least - 1}: probes of words need {least} at least; ask for more"
    with pytest.raises(RequestError, match=refusal):
        look("detokenisation", checkpoint, range(60, 64), tokens=least - 1)
    found = look("detokenisation", checkpoint, range(60, 64), tokens=least)
    assert found.figures
    assert all(math.isfinite(figure["value"]) for figure in found.figures)
    short = open_checkpoint(model_directory("short", context=3))
    with pytest.raises(RequestError, match="is 3; probes of words need more than 3: use a model"):
        look("detokenisation", short, (60, 61))
