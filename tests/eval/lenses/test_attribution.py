"""Attribution against Captum, linear models, one occlusion at a time."""

import re
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

from eval import RequestError
from eval.lenses.attribution import attribute, combined, gradient_x_input, logits_after, occluded
from eval.lenses.lens import lenses
from eval.lenses.table import Table
from eval.models.checkpoint import open_checkpoint
from tests.eval.lenses.cases import figures, look, of, some_tokens


def test_embeddings_predict_what_ids_do_and_occlusion_together_is_one_by_one(model):
    (tokens,), mean = some_tokens(model, 1), model.embedding.weight.mean(0)
    predicted = model(tokens[None])[0, -1]
    near: Any = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(logits_after(model, model.embed(tokens[None]))[0], predicted, **near)
    whole, without = occluded(model, tokens)
    torch.testing.assert_close(whole, predicted, **near)
    for t in range(len(tokens)):
        changed = model.embed(tokens[None]).clone()
        changed[0, t] = mean
        alone = model.logits(model.hidden(changed, len(model.blocks)))[0, -1]
        torch.testing.assert_close(without[t], alone, **near)


def test_captum_gives_the_same(small_model):
    from captum.attr import InputXGradient, Occlusion

    model = small_model(mixers=("attention",))
    (tokens,), token = some_tokens(model, 1), 5
    embeddings, mean = model.embed(tokens[None]), model.embedding.weight.mean(0)

    def logit(x):
        return logits_after(model, x)[:, token]

    theirs = InputXGradient(logit).attribute(embeddings.requires_grad_())
    torch.testing.assert_close(gradient_x_input(model, tokens, [7, token])[1], theirs[0])
    with torch.no_grad():
        falls = Occlusion(logit).attribute(
            embeddings, (1, model.config.d_model), baselines=mean.expand_as(embeddings)
        )
    whole, without = occluded(model, tokens)
    ours = (whole - without)[:, token]
    torch.testing.assert_close(ours, falls[0, :, 0].float(), atol=1e-5, rtol=1e-4)


def test_gradients_of_a_linear_model_are_its_weights(small_model):
    """With identities for blocks, a logit is a sum over the last token's features alone."""
    model = small_model(mixers=("identity",), final_norm=False, n_layers=1)
    model.blocks = torch.nn.ModuleList()
    (tokens,) = some_tokens(model, 1)
    (product,) = gradient_x_input(model, tokens, [5])
    assert not product[:-1].any()
    torch.testing.assert_close(product[-1], model.embed(tokens)[-1] * model.head.weight[5])


def test_the_combination_is_the_mean_of_two_normalised():
    both = combined(torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.0, 5.0, 10.0]))
    assert both.tolist() == [0.25, 0.75, 0.5]
    assert combined(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


def test_logits_of_half_precision_are_summed_in_single(small_model):
    """Changes of all logits together were infinite, and so their ranks wrong."""
    model = small_model(mixers=("attention",))
    with torch.no_grad():
        model.head.weight *= 3000
    (tokens,) = some_tokens(model, 1)
    scores = attribute(model.half(), tokens, [5])
    assert all(values.isfinite().all() for values in scores.values())
    assert scores["occlusion, every logit"].max() > torch.finfo(torch.float16).max


def test_a_score_that_is_no_number_leaves_the_others_their_places_and_colours():
    """An infinite one ended the page, and so did one that is missing."""
    table = Table(pieces={"text 0": [*"abcd"]}, notes={"answers": {"text 0": "e"}})
    values = torch.tensor([[torch.inf, 1.0, torch.nan, -2.0]])
    where: Any = {"prompt": ["text 0"], "position": range(4)}
    table.add("attribution", values, rows=False, method="gradient", output="own answer", **where)
    (text,) = lenses()["attribution"].html({"flat at 0": table})
    drawn = re.findall('<span[^>]* class="(.*?)" style="--shade:(.*?)"', text)
    assert drawn == [("", "0"), ("f", "0.5"), ("", "0"), ("a", "1.0")]


def test_tokens_stand_below_the_answer_that_they_are_of():
    """Below a word that was followed stood the model's own answer, and ` a` read as `a`."""
    table = Table(pieces={"text 0": [*"ab"]}, notes={"answers": {"text 0": "mine"}})
    where: Any = {"prompt": ["text 0"], "position": range(2), "output": [" a", "a"]}
    table.add("attribution", torch.rand(1, 2, 2), rows=False, method="gradient", **where)
    shown = lenses()["attribution"].html({"flat at 0": table})
    assert [re.findall("<code>(.*?)</code>", text) for text in shown] == [["·a"], ["a"]]


def test_the_lens_tells_every_method_and_how_they_agree(model_directory):
    checkpoint = open_checkpoint(model_directory(mixers=("attention",)))
    model, prompts = checkpoint.model, ([9, 30, 61, 17, 250, 3, 77, 12, 5], [5, 6, 7, 8])
    found = look("attribution", checkpoint, *prompts)
    (numbers,) = found.of("attribution")
    methods = numbers.axes["method"]
    assert {"occlusion", "occlusion, every logit", "combined"} <= set(methods)
    tokens = torch.tensor(prompts[1])
    own = int(model(tokens[None])[0, -1].argmax())
    assert found.notes["answers"]["text 1"] == checkpoint.pieces([own])[0]
    place = {"prompt": "text 1", "output": "own answer", "method": "gradient x input"}
    alone = of(found, "attribution", **place)
    torch.testing.assert_close(alone[:4], gradient_x_input(model, tokens, [own])[0].sum(-1))
    assert alone[4:].isnan().all()
    pairs, scores = figures(found, "rank correlation"), of(found, "attribution")[..., 0]
    assert len(pairs) == len(methods) * (len(methods) - 1) // 2
    for row in pairs:
        one, other = (methods.index(row[name]) for name in ("method", "with"))
        each = [values[~values[:, 0].isnan()].abs().numpy() for values in scores]
        expected = [float(spearmanr(x[:, one], x[:, other]).statistic) for x in each]  # pyright: ignore
        assert row["value"] == pytest.approx(sum(expected) / 2, abs=1e-6)
    word = checkpoint.pieces([300])[0]
    chosen = look("attribution", checkpoint, *prompts, words=(word,))
    assert chosen.of("attribution")[0].axes["output"] == [word]
    (text, *_) = lenses()["attribution"].html({"flat at 0": found})
    assert "data-score" in text
    with pytest.raises(RequestError, match=r"has 40 tokens; the context of .* is 32"):
        look("attribution", checkpoint, range(40))
