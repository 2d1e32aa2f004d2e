"""Every lens on every family of models, and the text that lenses are fitted on."""

import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.language import measure_loss
from eval.lenses import stories as kept
from eval.lenses.lens import lenses
from eval.lenses.stories import StoryWindows, stories
from eval.lenses.trace import trace
from eval.models import Checkpoint, open_checkpoint
from eval.text import HeldOutText
from tests.eval.lenses.cases import ask, look, some_tokens, wrapped_checkpoint

FAMILIES = ("gpt2", "opt", "gptj", "llama 2, grouped, scaled", "llama 3")
LENSES = sorted(set(lenses()) - {"steering"})  # whose stories are longer than their contexts
MIXERS = ("flat", "attention(kv_heads=2)/expanded", "attention+headed")


@pytest.mark.parametrize(
    ("lens", "name"),
    [(lens, name) for lens in LENSES for name in FAMILIES + MIXERS],
)
def test_a_lens_on_a_model(lens, name, model_directory):
    if name in FAMILIES:
        checkpoint = wrapped_checkpoint(name)
    else:
        checkpoint = open_checkpoint(model_directory(mixers=tuple(name.split("/"))))
    found = look(lens, checkpoint, range(60, 72), range(40, 52), tokens=2000)
    rows = list(found.figures())
    assert rows
    for row in rows:
        assert math.isfinite(row["value"]), row
        assert row.get("low", row["value"]) <= row["value"] <= row.get("high", row["value"]), row


def plain_tokenizer() -> Tokenizer:
    """Bytes, and no special token at all, as of some pretrained models."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_stories_are_joined_without_an_end_of_text_where_there_is_none(small_model, tmp_path):
    stories = ("One cat.", "Two dogs.", "Unused.", "Unused too.")
    (tmp_path / "valid.txt").write_text("<|endoftext|>".join(stories), "utf-8")
    model, tokenizer = small_model(), plain_tokenizer()
    (windows,) = HeldOutText(str(tmp_path), tokenizer).windows("evaluation", 1, 17)
    assert tokenizer.decode(windows.tolist()) == "One cat.Two dogs."
    (tmp_path / "valid.txt").write_text("<|endoftext|>".join(stories[:2]), "utf-8")
    (tmp_path / "train.txt").write_text("Some.", "utf-8")
    checkpoint = Checkpoint(model, model.config, tokenizer, {"name": "m"}, tmp_path)
    loss = measure_loss(checkpoint, str(tmp_path))
    assert (loss["tokens"], loss["bytes"], loss["stories"]) == (16, 17, 2)


def test_streams_are_those_of_a_trace_kept_or_not(small_model, monkeypatch):
    model = small_model(mixers=("attention",))
    windows = some_tokens(model, 7, 12)
    expected = trace(model, windows).streams
    rows = torch.tensor([5, 0])
    for limit in (kept.KEPT, 0):
        monkeypatch.setattr(kept, "KEPT", limit)
        monkeypatch.setattr(kept, "PART", 12 * 3 * 32 * 2)
        found = StoryWindows(model, windows)
        torch.testing.assert_close(found.streams(rows), expected[:, rows])
        parts = list(found.batches(stop=5))
        assert [len(part) for part, _ in parts] == [2, 2, 1]
        torch.testing.assert_close(torch.cat([s for _, s in parts], dim=1), expected[:, :5])
        assert [len(part) for part, _ in found.batches(36)] == [3, 3, 1]


def test_the_same_text_is_read_once(model_directory):
    checkpoint = open_checkpoint(model_directory())
    request = ask(corpus="toy:400")
    first = stories(checkpoint, request, "fitting", 4)
    assert first.tokens.shape == (4, 32)
    assert stories(checkpoint, request, "fitting", 4) is first
    assert stories(checkpoint, request, "fitting", 5) is not first
    checkpoint.kept.clear()
    again = stories(checkpoint, request, "fitting", 4)
    assert again is not first
    assert torch.equal(again.tokens, first.tokens)
