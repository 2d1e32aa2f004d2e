"""Words of several tokens and hidden units: by restatement and by hand."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.lenses import features
from eval.lenses.detokenisation import GROUPS, alphabet, groups, words_of
from eval.lenses.lens import lenses
from eval.lenses.trace import trace
from eval.models.checkpoint import open_checkpoint
from tests.eval.lenses.cases import figures, look, some_tokens


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
    known = alphabet(small_tokenizer, small_tokenizer.get_vocab_size())
    lengths, last = words_of(torch.tensor([encoded.ids]), *known)
    ends = last[0].nonzero()[:, 0].tolist()
    expected = plain_words(text, encoded.offsets)
    assert expected[-1][0] == len(encoded.ids) - 1  # it may go on after the window
    assert list(zip(ends, lengths[0, ends].tolist(), strict=True)) == expected[:-1]
    assert max(length for _, length in expected) >= 3


def sentencepiece() -> tuple[torch.Tensor, torch.Tensor]:
    pieces = ["▁un", "happ", "y", "▁dog", ",", "s", "<0x0A>"]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return alphabet(tokenizer, len(pieces))


def wordpiece() -> tuple[torch.Tensor, torch.Tensor]:
    """No token has a blank: its decoder writes one before each that does not go on."""
    pieces = ["the", "dog", "##s", ",", "[UNK]"]
    known = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return alphabet(tokenizer, len(pieces))


KNOWN = torch.tensor([True, False, False]), torch.tensor([True, True, False])
"""Of a beginning, a continuation, a comma: whether it begins a word, and has letters."""


@pytest.mark.parametrize(
    ("known", "tokens", "lengths", "ends"),
    [
        (sentencepiece, [0, 1, 2, 3, 4, 5, 6, 5, 3, 4], [1, 2, 3, 1, 0, 1, 0, 1, 1, 0],
         [2, 3, 5, 7, 8]),
        (wordpiece, [0, 1, 2, 3, 0, 1, 1, 2, 2, 0], [1, 1, 2, 0, 1, 1, 1, 2, 3, 1],
         [0, 2, 4, 5, 8]),
        (lambda: KNOWN, [1, 1, 0, 1, 1, 2, 1, 0, 0, 1], [1, 2, 1, 2, 3, 0, 1, 1, 1, 2],
         [1, 4, 6, 7]),
    ],
)  # fmt: skip
def test_words_of_tokens(known, tokens, lengths, ends):
    length, last = words_of(torch.tensor([tokens]), *known())
    assert length[0].tolist() == lengths
    assert last[0].nonzero()[:, 0].tolist() == ends


def test_what_is_asked_around_words():
    found = groups(*words_of(torch.tensor([[0, 0, 1, 0, 1, 1, 2, 0, 0, 2]]), *KNOWN), seed=0)
    several, one, any_place = GROUPS
    for group, offset, expected in (
        (several, -1, [2, 5]), (several, -2, [5]), (several, 0, [2, 5]), (several, 1, [2, 5]),
        (one, -2, [7, 8]), (one, 0, [7, 8]), (any_place, 0, [*range(2, 9)]),
    ):  # fmt: skip
        assert found[group, offset].tolist() == expected


def test_the_lens_reads_what_a_layer_has_and_nothing_else(model_directory):
    """At the embedding the token itself; behind a mixer that takes the token before, that too."""
    checkpoint = open_checkpoint(model_directory(d_model=64, n_layers=1))
    mixer: Any = checkpoint.model.blocks[0].token_mixer
    with torch.no_grad():
        mixer.mix.weight.copy_(torch.eye(32).roll(1, 0).tril())  # the token before, and it alone
        mixer.mix.bias.zero_()
    found = look("detokenisation", checkpoint, range(30, 50), tokens=6000)
    read = {(row["layer"], row["offset"]): row["value"]
            for row in figures(found, "read") if row["group"] == "any position"}  # fmt: skip
    assert [o for o in (-2, -1, 0, 1) if read[0, o] > 0.6] == [0]
    assert [o for o in (-2, -1, 0, 1) if read[1, o] > 0.6] == [-1, 0]
    (chart,) = lenses()["detokenisation"].charts
    figure = chart.draw("detokenisation", {"flat": found})
    assert figure
    (panel,) = figure.panels.values()
    drawn = {record["group"] for record in panel.to_dict()["data"]["values"]}
    assert drawn == {row["group"] for row in figures(found, "read")}
    assert GROUPS[0] in drawn  # the words that the lens is for, of which the chart had none
    assert all(len(line[0]) > 1 for line in found.texts[0]["lines"])
    assert not figures(found, "read at the end less in the middle")  # one block has no middle


def test_hidden_units_make_the_channel_mixers_output(model):
    tokens = some_tokens(model)
    units, writes = features.hidden_units(model, tokens), trace(model, tokens).writes[:, 1]
    for block, values, written in zip(model.blocks, units, writes, strict=True):
        last = features._output_layer(block.channel_mixer)
        torch.testing.assert_close(last(values), written, atol=1e-5, rtol=1e-4)


def test_active_units_are_the_strongest_at_any_position():
    values = torch.tensor([[0.1, -3.0, 2.0, 0.0], [0.5, 0.2, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    for most, expected in ((1, [1, 1, 0, 0]), (2, [1, 1, 1, 0]), (4, [1, 1, 1, 0])):
        assert features.active_in_text(values, most).tolist() == expected


def test_overlaps_by_hand_and_by_chance():
    first = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    second = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    expected = torch.tensor([[1 / 2, 2 / 3, 0], [0, 1 / 4, 0], [0, 0, 0]]).double()
    torch.testing.assert_close(features.overlap(first, second), expected)
    retold, unrelated = features.overlap_of_tellings(first, second)
    assert retold.tolist() == [0.5, 0.25, 0]
    torch.testing.assert_close(unrelated, torch.tensor([1 / 6, 1 / 6, 0]).double())
    texts = torch.rand(60, 4000) < torch.rand(4000)
    others = features.overlap(texts, texts)[~torch.eye(60, dtype=torch.bool)]
    assert features.chance_overlap(texts) == pytest.approx(float(others.mean()), abs=2e-3)
    assert features.chance_overlap(torch.zeros(4, 5)) == 0
