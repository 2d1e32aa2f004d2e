"""Hidden units against a restatement, overlaps by hand."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eval import RequestError
from eval.lenses import features
from eval.lenses.stories import retellings
from eval.lenses.trace import trace
from tests.eval.lenses.cases import figures, look, story_checkpoint, wrapped


def test_hidden_units_make_the_channel_mixers_output():
    ours = [story_checkpoint(channel_mixer=kind).model for kind in ("gelu", "swiglu")]
    tokens = torch.randint(250, (2, 9))
    for model in [*ours, *map(wrapped, ("gpt2", "gptj", "opt", "mistral"))]:
        units = features.hidden_units(model, tokens)
        writes = trace(model, tokens).writes[:, 1]
        for block, values, written in zip(model.blocks, units, writes, strict=True):
            last = features._output_layer(block.channel_mixer)  # pyright: ignore
            torch.testing.assert_close(last(values), written, atol=1e-5, rtol=1e-4)
    gelu = ours[0]
    block = gelu.blocks[0]
    x = gelu.embed(tokens)
    x = x + block.token_mixer(block.norm_token(x))  # pyright: ignore
    expected = F.gelu(block.channel_mixer.up(block.norm_channel(x)))  # pyright: ignore
    torch.testing.assert_close(features.hidden_units(gelu, tokens)[0], expected)
    gelu.blocks[1].channel_mixer = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(RequestError, match="a Sequential has no hidden units that are known"):
        features.hidden_units(gelu, tokens)


def test_active_units_are_the_strongest_at_any_position():
    values = torch.tensor([[0.1, -3.0, 2.0, 0.0], [0.5, 0.2, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert features.active_in_text(values, 1).tolist() == [True, True, False, False]
    assert features.active_in_text(values, 2).tolist() == [True, True, True, False]
    assert features.active_in_text(values, 4).tolist() == [True, True, True, False]


def test_overlaps_by_hand():
    first = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    second = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    expected = torch.tensor([[1 / 2, 2 / 3, 0], [0, 1 / 4, 0], [0, 0, 0]]).double()
    torch.testing.assert_close(features.overlap(first, second), expected)
    retold, unrelated = features.overlap_of_tellings(first, second)
    assert retold.tolist() == [0.5, 0.25, 0]
    torch.testing.assert_close(unrelated, torch.tensor([1 / 6, 1 / 6, 0]).double())


def test_independent_texts_overlap_as_chance_says():
    often = torch.rand(4000)
    texts = torch.rand(60, 4000) < often
    every = features.overlap(texts, texts)
    others = every[~torch.eye(60, dtype=torch.bool)]
    assert features.chance_overlap(texts) == pytest.approx(float(others.mean()), abs=2e-3)
    assert features.chance_overlap(torch.zeros(4, 5)) == 0


def test_the_features_lens_tells_overlap_by_layer():
    found = look("features", story_checkpoint(), (1, 2))
    texts = ("retold", "unrelated", "chance")
    for what, layers in (("feature", [1, 2]), ("token", [None])):
        rows = figures(found, f"{what} overlap")
        overlap = {(row.get("layer"), row["texts"]): row["value"] for row in rows}
        assert set(overlap) == set(product(layers, texts))
        assert all(0 <= value <= 1 for value in overlap.values())
        above = figures(found, f"{what} overlap above unrelated")
        assert [row.get("layer") for row in above] == layers
        for row in above:
            retold, unrelated = (overlap[row.get("layer"), text] for text in texts[:2])
            assert row["value"] == pytest.approx(retold - unrelated, abs=1e-6)
            assert row["low"] <= row["value"] <= row["high"]
            assert row["n"] == len(retellings())
