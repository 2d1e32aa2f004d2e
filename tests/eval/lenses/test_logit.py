"""The logit lens and the tuned lens: the model's own output at the last layer, known spaces."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import t

from eval.lenses import tuned
from eval.lenses.logit import read_layers, token_energy
from eval.lenses.markup import visible
from eval.lenses.stories import StoryWindows
from eval.lenses.trace import readers, trace
from eval.lenses.tuned import HELD, Tuned, divergences, fit_tuned
from eval.models import open_checkpoint
from tests.eval.lenses.cases import figures, look, of, some_tokens

PROMPTS = (40, 41, 42, 43, 44), (50, 51, 52)


def plain(model):
    return lambda _, stream: model.logits(stream)


def test_the_last_layer_is_the_models_output(model):
    tokens = some_tokens(model)
    found = read_layers(trace(model, tokens).streams, [3, 5], plain(model))
    logits = model(tokens)
    assert torch.equal(found["probability"][-1], logits.log_softmax(-1).exp()[..., [3, 5]])
    assert torch.equal(found["top"][-1], logits.topk(5).indices)
    assert float(found["divergence"][-1].abs().max()) == 0
    output = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(found["entropy"][-1], output.entropy() / math.log(2))
    layer = torch.distributions.Categorical(
        logits=model.logits(model.hidden(model.embed(tokens), 1))
    )
    expected = torch.distributions.kl_divergence(output, layer) / math.log(2)
    torch.testing.assert_close(found["divergence"][1], expected, atol=1e-3, rtol=1e-3)


def test_many_prompts_are_read_in_parts(small_model, monkeypatch):
    model = small_model()
    tokens = some_tokens(model).repeat(3, 1)
    streams = trace(model, tokens).streams
    whole = read_layers(streams, [1], plain(model))
    monkeypatch.setattr("eval.lenses.logit.WIDEST", 400 * 12 * 4)
    parts = read_layers(streams, [1], plain(model))
    torch.testing.assert_close(parts["entropy"], whole["entropy"])
    assert parts["probability"].shape == (3, 6, 12, 1)


def test_energy_is_the_cosine_to_tokens_over_theirs(small_model):
    """As Wendler et al. define it, written out."""
    model, x = small_model(), torch.randn(6, 32)
    units = torch.nn.functional.normalize(readers(model), dim=-1)
    cosines = torch.nn.functional.normalize(x, dim=-1) @ units.T
    own = (units @ units.T).square().mean()
    torch.testing.assert_close(token_energy(model, x), (cosines.square().mean(-1) / own).sqrt())
    among = token_energy(model, units).square().mean()  # tokens are as near to tokens as they are
    torch.testing.assert_close(among, torch.tensor(1.0))


def texts(model, *counts):
    return tuple(
        StoryWindows(model, some_tokens(model, count, 16, seed))
        for seed, count in enumerate(counts, 1)
    )


def test_the_tuned_lens_is_never_worse_on_held_out_text(model):
    """Its last layer is the model's output; a layer that learns nothing is the identity."""
    windows, tokens = texts(model, 24, 8, 8), some_tokens(model)
    (lens, report), (again, _) = (fit_tuned(model, windows) for _ in range(2))
    assert torch.equal(lens.weight, again.weight)
    assert (report["tuned"].mean(0) <= report["plain"].mean(0)).all()
    kept = ~report["learnt"]
    assert torch.equal(report["tuned"][:, kept], report["plain"][:, kept])
    torch.testing.assert_close(divergences(model, [lens], windows[2])[0], report["tuned"])
    last = trace(model, tokens).streams[-1]
    assert torch.equal(lens.read(model, len(model.blocks), last), model(tokens))
    with torch.no_grad():
        torch.testing.assert_close(Tuned.plain(model).read(model, 0, last), model(tokens))


def test_what_an_affine_map_undoes_is_undone(small_model):
    """Least squares finds the map where the rest of the model is one."""
    model = small_model(n_layers=1, final_norm=False)
    block: Any = model.blocks[0]
    for parameter in (*block.token_mixer.parameters(), *block.channel_mixer.parameters()):
        parameter.zero_()
    block.channel_mixer.down.bias.normal_(std=3.0)  # the block adds one vector to all
    _, report = fit_tuned(model, texts(model, 64, 8, 8))
    assert report["learnt"].tolist() == [True]
    assert float(report["tuned"].mean()) < 0.02 * float(report["plain"].mean())


def test_layers_that_do_not_gain_keep_the_identity(small_model, monkeypatch):
    model = small_model()
    monkeypatch.setattr(tuned, "SURE", float("inf"))
    lens, report = fit_tuned(model, texts(model, 8, 8, 8))
    assert not report["learnt"].any()
    assert torch.equal(lens.weight, Tuned.plain(model).weight)
    assert torch.equal(report["plain"], report["tuned"])


@pytest.mark.parametrize("lens", ["logit", "tuned"])
def test_prompts_of_unequal_lengths_stand_alone(model_directory, lens):
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
    assert means[1] == pytest.approx(float(of(found, "entropy")[1].nanmean()), rel=1e-5)
    falls = {f["layer"]: f["value"] for f in figures(found, "entropy fall")}
    assert falls == {n: pytest.approx(means[n - 1] - means[n], abs=1e-5) for n in (1, 2)}
    at_end = [f for f in figures(found, "probability at the end") if f["layer"] == 2]
    assert [f["word"] for f in at_end] == [token]
    ends = (curve[2, 0, 4] + curve[2, 1, 2]) / 2
    assert at_end[0]["value"] == pytest.approx(float(ends), rel=1e-5)


def test_without_words_the_models_answers_are_followed(model_directory):
    found = look("logit", open_checkpoint(model_directory()), *PROMPTS)
    (followed,) = found.of("probability")
    assert visible(found.notes["top"]["text 0"][-1][4][0]) in followed.axes["word"]
    assert not figures(found, "probability at the end")


def test_the_tuned_lens_reports_on_enough_windows(model_directory):
    """At its default it judged on three windows, with limits of a normal distribution."""
    found = look("tuned", open_checkpoint(model_directory()), *PROMPTS, tokens=400)
    rows = figures(found, "divergence on other stories")
    values = of(found, "divergence on other stories", method="plain")[:, 0].double().numpy()
    assert {row["n"] for row in rows} == {len(values)} == {HELD}
    half = t.ppf(0.975, HELD - 1) * values.std(ddof=1) / HELD**0.5
    (row,) = [r for r in rows if (r["method"], r["layer"]) == ("plain", 0)]
    assert (row["low"], row["high"]) == pytest.approx((row["value"] - half, row["value"] + half))
