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
from tests.eval.lenses.cases import figures, look, some_tokens, story_checkpoint


def test_hidden_units_make_the_channel_mixers_output(model):
    tokens = some_tokens(model)
    units, writes = features.hidden_units(model, tokens), trace(model, tokens).writes[:, 1]
    for block, values, written in zip(model.blocks, units, writes, strict=True):
        last = features._output_layer(block.channel_mixer)
        torch.testing.assert_close(last(values), written, atol=1e-5, rtol=1e-4)


def test_hidden_units_are_those_after_the_activation(small_model):
    model = small_model()
    block, tokens = model.blocks[0], some_tokens(model)
    x = model.embed(tokens)
    x = x + block.token_mixer(block.norm_token(x))
    expected = F.gelu(block.channel_mixer.up(block.norm_channel(x)))
    torch.testing.assert_close(features.hidden_units(model, tokens)[0], expected)
    model.blocks[1].channel_mixer = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(RequestError, match="a Sequential has no hidden units that are known"):
        features.hidden_units(model, tokens)


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


def test_the_lens_tells_overlap_by_layer():
    found = look("features", story_checkpoint(), (1, 2))
    texts = ("retold", "unrelated", "chance")
    for what, layers in (("feature", [1, 2]), ("token", [None])):
        rows = figures(found, f"{what} overlap")
        overlap = {(row.get("layer"), row["texts"]): row["value"] for row in rows}
        assert set(overlap) == set(product(layers, texts))
        above = figures(found, f"{what} overlap above unrelated")
        assert [(row.get("layer"), row["n"]) for row in above] == [
            (n, len(retellings())) for n in layers
        ]
        for row in above:
            retold, unrelated = (overlap[row.get("layer"), text] for text in texts[:2])
            assert row["value"] == pytest.approx(retold - unrelated, abs=1e-6)
