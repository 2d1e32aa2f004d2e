"""The logit lens and the tuned lens: the model's own output at the last layer, known spaces."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eval.drawing.markup import visible
from eval.lenses import tuned
from eval.lenses.logit import draw_words, read_layers, token_energy
from eval.lenses.table import Table
from eval.lenses.trace import readers, trace
from eval.lenses.tuned import RIDGE, fit_tuned, least_squares, tuned_read
from eval.models.checkpoint import open_checkpoint
from tests.eval.lenses.cases import figures, look, of, some_tokens

PROMPTS = (40, 41, 42, 43, 44), (50, 51, 52)


def test_the_last_layer_is_the_models_output(model, monkeypatch):
    """Divergence and entropy are those of torch's distributions; parts are as the whole."""
    tokens = some_tokens(model)
    streams, logits = trace(model, tokens).streams, model(tokens)

    def read():
        return read_layers(streams, [3, 5], lambda _, stream: model.logits(stream))

    found = read()
    torch.testing.assert_close(found["probability"][-1], logits.softmax(-1)[..., [3, 5]])
    assert torch.equal(found["top"][-1], logits.topk(5).indices)
    assert float(found["divergence"][-1].abs().max()) == 0
    output, layer = (torch.distributions.Categorical(logits=model.logits(s))
                     for s in (streams[-1], streams[1]))  # fmt: skip
    torch.testing.assert_close(found["entropy"][-1], output.entropy() / math.log(2))
    expected = torch.distributions.kl_divergence(output, layer) / math.log(2)
    torch.testing.assert_close(found["divergence"][1], expected, atol=1e-3, rtol=1e-3)
    monkeypatch.setattr("eval.lenses.logit.WIDEST", logits.shape[-1] * 12)
    for name, part in read().items():
        torch.testing.assert_close(part, found[name])


def test_energy_is_the_cosine_to_tokens_over_theirs(small_model):
    """As Wendler et al. define it, written out."""
    model, x = small_model(), torch.randn(6, 32)
    units = F.normalize(readers(model), dim=-1)
    cosines, own = F.normalize(x, dim=-1) @ units.T, (units @ units.T).square().mean()
    torch.testing.assert_close(token_energy(model, x), (cosines.square().mean(-1) / own).sqrt())
    among = token_energy(model, units).square().mean()  # tokens are as near to tokens as they are
    torch.testing.assert_close(among, torch.tensor(1.0))


def texts(model, *counts):
    return [some_tokens(model, count, 16, seed) for seed, count in enumerate(counts, 1)]


def test_the_tuned_lens_is_never_worse_on_held_out_text(model):
    """Its last layer is the model's output; a layer that learns nothing is the identity."""
    windows, tokens = texts(model, 24, 8, 8), some_tokens(model)
    found, again = (fit_tuned(model, *windows) for _ in range(2))
    assert torch.equal(found["weight"], again["weight"])
    assert (found["tuned"].mean(0) <= found["plain"].mean(0) + 1e-6).all()  # rounding of a llama's
    kept = ~found["learnt"]
    assert torch.equal(found["tuned"][:, kept], found["plain"][:, kept])
    last = trace(model, tokens).streams[-1]
    read = tuned_read(model, found["weight"], found["bias"])
    assert torch.equal(read(len(model.blocks), last), model(tokens))


def test_maps_are_those_of_ridge_regression(small_model):
    """Ridge is least squares with a row of zeros to be met by each weight times its strength."""
    model = small_model(mixers=("attention",))
    (windows,) = texts(model, 40)
    weight, bias = least_squares(model, windows)
    streams = trace(model, windows).streams.flatten(1, 2).double().numpy()
    centred = streams - streams.mean(1, keepdims=True)
    for layer in range(2):
        strength = RIDGE * centred[layer].var(0) * windows.numel()
        inputs = np.concatenate([centred[layer], np.diag(strength**0.5)])
        outputs = np.concatenate([centred[-1], np.zeros((32, 32))])
        expected = np.linalg.lstsq(inputs, outputs)[0]
        np.testing.assert_allclose(weight[layer], expected, atol=1e-5)
        rest = streams[-1].mean(0) - streams[layer].mean(0) @ expected
        np.testing.assert_allclose(bias[layer], rest, atol=1e-5)


def test_a_feature_a_thousand_times_as_large_leaves_the_maps_as_they_are(small_model, monkeypatch):
    """The ridge followed the few large ones, and shrank all others."""
    model, factors = small_model(mixers=("attention",)), torch.ones(32)
    (windows,) = texts(model, 40)
    plain, _ = least_squares(model, windows)
    factors[3] = 1000.0

    def scaled(*given: Any) -> Any:
        found = trace(*given)
        return found._replace(streams=found.streams * factors)

    monkeypatch.setattr(tuned, "trace", scaled)
    found, _ = least_squares(model, windows)
    expected = plain * factors / factors[:, None]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("lens", ["logit", "tuned"])
def test_prompts_of_unequal_lengths_stand_alone(model_directory, lens):
    """Without words the model's answers are followed."""
    checkpoint = open_checkpoint(model_directory())
    token = checkpoint.pieces([60])[0]
    found = look(lens, checkpoint, *PROMPTS, words=(token,), tokens=400)
    curve = of(found, "probability", word=visible(token))
    assert curve[:, 1, 3:].isnan().all()
    logits = checkpoint.model(torch.tensor([[50, 51, 52]]))
    expected = logits.softmax(-1)[0, :, 60]
    torch.testing.assert_close(curve[-1, 1, :3], expected, atol=1e-6, rtol=1e-4)
    best = found.notes["top"]["text 1"][-1][2][0]
    assert best == checkpoint.pieces([int(logits[0, -1].argmax())])[0]
    means = {f["layer"]: f["value"] for f in figures(found, "entropy")}
    falls = {f["layer"]: f["value"] for f in figures(found, "entropy fall")}
    assert falls == {n: pytest.approx(means[n - 1] - means[n], abs=1e-5) for n in (1, 2)}
    (at_end,) = (f for f in figures(found, "probability at the end") if f["layer"] == 2)
    ends = (curve[2, 0, 4] + curve[2, 1, 2]) / 2
    assert (at_end["word"], at_end["value"]) == (token, pytest.approx(float(ends), rel=1e-5))
    without = look(lens, checkpoint, *PROMPTS, tokens=400)
    (followed,) = without.of("probability")
    assert visible(without.notes["top"]["text 0"][-1][4][0]) in followed.axes["word"]
    assert not figures(without, "probability at the end")


def test_what_an_affine_map_undoes_is_undone(small_model, monkeypatch):
    """Least squares finds the map where the rest of the model is one, if it is sure enough."""
    model = small_model(n_layers=1, final_norm=False)
    block: Any = model.blocks[0]
    for parameter in (*block.token_mixer.parameters(), *block.channel_mixer.parameters()):
        parameter.zero_()
    block.channel_mixer.down.bias.normal_(std=3.0)  # the block adds one vector to all
    found = fit_tuned(model, *texts(model, 64, 8, 8))
    assert found["learnt"].tolist() == [True]
    assert float(found["tuned"].mean()) < 0.02 * float(found["plain"].mean())
    monkeypatch.setattr(tuned, "SURE", float("inf"))
    found = fit_tuned(model, *texts(model, 8, 8, 8))
    assert not found["learnt"].any()
    assert torch.equal(found["plain"], found["tuned"])


def test_a_token_that_is_cut_says_so():
    """It looked like a token of nine letters, which `internati` may be."""
    words = "elephant", "elephants", "international"
    table = Table(pieces={"text 0": [*"abc"]}, notes={"top": {"text 0": [[[w] for w in words]]}})
    where: Any = {"layer": [0], "prompt": ["text 0"], "position": range(3)}
    table.add("top probability", torch.rand(1, 1, 3), rows=False, **where)
    (figure,) = draw_words("logit", {"flat at 0": table})
    (chart,) = figure.panels.values()
    says = [row["says"] for row in chart.to_dict()["data"]["values"]]
    assert says == ["elephant", "elephants", "internat…"]
