"""Hidden units against a restatement, overlaps by hand, autoencoders on streams that are sparse."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eval import RequestError
from eval.lenses import features
from eval.lenses.sparse import SparseFit, fit_sparse, sparse_quality
from eval.lenses.stories import retellings
from eval.lenses.trace import trace
from tests.eval.lenses.cases import at, look, story_checkpoint, wrapped


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


def test_stories_are_told_twice_in_other_words():
    names = {"Lily", "Tom", "Mia", "Ben", "Anna", "Lucy", "Sam", "Max", "Sue", "Amy", "Tim", "Jack"}
    assert len(retellings()) == len({text for pair in retellings() for text in pair}) / 2
    for pair in retellings():
        one, other = ({word.strip(".,!") for word in text.split()} for text in pair)
        assert not one & other & names
        assert len(one & other) / len(one | other) < 0.35


def test_the_features_lens_tells_overlap_by_layer():
    found = look("features", story_checkpoint())
    overlap = found.arrays["overlap"]
    assert overlap.axes == {
        "layer": ["tokens", 1, 2],
        "texts": ("retold", "unrelated", "chance"),
    }
    assert ((overlap.values >= 0) & (overlap.values <= 1)).all()
    above = [row for row in found.figures if row["figure"] == "overlap above unrelated"]
    assert [row["layer"] for row in above] == ["tokens", 1, 2]
    for row in above:
        retold, unrelated, _ = at(overlap, layer=row["layer"]).tolist()
        assert row["value"] == pytest.approx(retold - unrelated, abs=1e-6)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["n"] == len(retellings())


def test_an_autoencoder_finds_sparse_directions():
    """Sums of 2 of 24 directions in 16 dimensions, twice: what was put in is found."""
    true = F.normalize(torch.randn(2, 24, 16), dim=-1)
    codes = torch.rand(2, 4000, 24) + 0.5
    codes *= torch.rand(2, 4000, 24).argsort(-1) < 2
    streams = 3 * codes @ true + 5
    fit = SparseFit(expansion=2, active=2, epochs=30, batch=256)
    with torch.no_grad():  # as commands run
        found = fit_sparse(streams[:, :3500], fit)
    quality = sparse_quality(found, streams[:, 3500:])
    assert (quality["explained"] > 0.9).all()
    assert (quality["active"] <= 2).all()
    assert not found.decoder.requires_grad
    nearest = (true @ found.decoder.mT).amax(-1)
    assert (nearest > 0.9).float().mean() > 0.8
    torch.testing.assert_close(found.decoder.norm(dim=-1), torch.ones(2, 32))


def test_judging_counts_what_is_missed_and_what_is_dead():
    streams = torch.randn(1, 200, 8)
    found, again = (fit_sparse(streams, SparseFit(epochs=1, active=1)) for _ in range(2))
    assert torch.equal(again.decoder, found.decoder)
    quality = sparse_quality(found, streams)
    features_on = found.encode(streams) > 0
    assert float(quality["active"]) == pytest.approx(float(features_on.sum(-1).float().mean()))
    assert float(quality["dead"]) == pytest.approx(1 - float(features_on.any(1).float().mean()))
    rest = (found.decode(found.encode(streams)) - streams).square().sum()
    whole = (streams - streams.mean(1, keepdim=True)).square().sum()
    assert float(quality["explained"]) == pytest.approx(1 - float(rest / whole), abs=1e-5)


def test_the_sparse_lens_fits_every_chosen_layer():
    found = look("sparse", story_checkpoint(), tokens=2000)
    assert found.arrays["quality"].axes["layer"] == [1, 2]
    assert found.arrays["overlap"].axes["layer"] == ["tokens", 1, 2]
    assert found.notes["features"] == 128
    explained = [row["value"] for row in found.figures if row["figure"] == "sparse explained"]
    assert all(0 < value < 1 for value in explained)
