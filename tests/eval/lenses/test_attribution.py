"""Attribution against Captum, linear models, one occlusion at a time."""

import pytest
import torch
from captum.attr import InputXGradient, Occlusion
from scipy.stats import spearmanr

from eval import RequestError
from eval.lenses import attribution
from eval.lenses.attribution import Output
from eval.lenses.lens import lenses
from eval.models import open_checkpoint
from tests.eval.lenses.cases import figures, look, of


def prompt(length=12):
    return torch.randint(250, (length,), generator=torch.Generator().manual_seed(3))


def own_answer(model, tokens):
    return Output(len(tokens) - 1, int(model(tokens[None])[0, -1].argmax()))


def test_embeddings_predict_what_ids_do_and_occlusion_together_is_one_by_one(model):
    tokens, mean = prompt(), model.embedding.weight.mean(0)
    embeddings, predicted = model.embed(tokens[None]), model(tokens[None])
    assert torch.equal(model.logits(model.hidden(embeddings, len(model.blocks))), predicted)
    torch.testing.assert_close(Output(7, 5).of(model, embeddings), predicted[:, 7, 5])
    whole, without = attribution.occluded(model, tokens)
    torch.testing.assert_close(whole, predicted[0, -1], atol=1e-5, rtol=1e-5)
    for t in range(len(tokens)):
        changed = embeddings.clone()
        changed[0, t] = mean
        alone = model.logits(model.hidden(changed, len(model.blocks)))[0, -1]
        torch.testing.assert_close(without[t], alone, atol=1e-5, rtol=1e-5)


def test_captum_gives_the_same(small_model):
    model, tokens = small_model(mixers=("attention",)), prompt()
    mean = model.embedding.weight.mean(0)
    output, embeddings = own_answer(model, tokens), model.embed(tokens[None])
    theirs = InputXGradient(lambda x: output.of(model, x)).attribute(embeddings.requires_grad_())
    ours = attribution.gradient_x_input(model, tokens, output)
    torch.testing.assert_close(ours, theirs[0])
    with torch.no_grad():
        falls = Occlusion(lambda x: output.of(model, x)).attribute(
            embeddings, (1, model.config.d_model), baselines=mean.expand_as(embeddings)
        )
    whole, without = attribution.occluded(model, tokens)
    ours = (whole - without)[:, output.token]
    torch.testing.assert_close(ours, falls[0, :, 0].float(), atol=1e-5, rtol=1e-4)


def test_gradients_of_a_linear_model_are_its_weights(small_model):
    """With identities for blocks, a logit is a sum over the last token's features alone."""
    model = small_model(mixers=("identity",), final_norm=False, n_layers=1)
    model.blocks = torch.nn.ModuleList()
    tokens, output = prompt(), Output(11, 5)
    product = attribution.gradient_x_input(model, tokens, output)
    assert not product[:-1].any()
    torch.testing.assert_close(product[-1], model.embed(tokens)[-1] * model.head.weight[5])


def test_the_combination_is_the_mean_of_two_normalised():
    both = attribution.combined(torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.0, 5.0, 10.0]))
    assert both.tolist() == [0.25, 0.75, 0.5]
    assert attribution.combined(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


def test_a_pad_that_was_never_trained_says_nothing_of_a_token(small_model):
    """A pad's vector is as it was drawn, so occlusion does not read it."""
    model, tokens = small_model(mixers=("attention",)), prompt()
    with torch.no_grad():
        expected = attribution.occluded(model, tokens)[1]
        mean = model.embedding.weight.mean(0)
        model.embedding.weight[0] += 5.0  # the pad
        model.embedding.weight[399] -= 5.0  # the mean is as it was
        torch.testing.assert_close(model.embedding.weight.mean(0), mean)
        assert not torch.isin(tokens, torch.tensor([0, 399])).any()
        found = attribution.occluded(model, tokens)[1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_lens_tells_every_method_and_how_they_agree(model_directory):
    checkpoint = open_checkpoint(model_directory(mixers=("attention",)))
    prompts = prompt(9).tolist(), (5, 6, 7, 8)
    found = look("attribution", checkpoint, *prompts)
    scores = of(found, "attribution", output="own answer")
    methods = found.of("attribution")[0].axes["method"]
    assert {"occlusion", "occlusion, every logit", "combined"} <= set(methods)
    own = own_answer(checkpoint.model, torch.tensor(prompts[1]))
    assert found.notes["answers"]["text 1"] == checkpoint.pieces([own.token])[0]
    alone = of(
        found, "attribution", prompt="text 1", output="own answer", method="gradient x input"
    )
    product = attribution.gradient_x_input(checkpoint.model, torch.tensor(prompts[1]), own)
    torch.testing.assert_close(alone[:4], product.sum(-1))
    assert alone[4:].isnan().all()
    pairs = figures(found, "rank correlation")
    assert len(pairs) == len(methods) * (len(methods) - 1) // 2
    for row in pairs:
        one, other = (methods.index(row[name]) for name in ("method", "with"))
        each = [values[~values[:, 0].isnan()].abs().numpy() for values in scores]
        expected = [float(spearmanr(x[:, one], x[:, other]).statistic) for x in each]  # pyright: ignore
        assert row["value"] == pytest.approx(sum(expected) / 2, abs=1e-6)
        assert row["low"] <= row["value"] <= row["high"]
    word = checkpoint.pieces([300])[0]
    chosen = look("attribution", checkpoint, *prompts, words=(word,))
    assert chosen.of("attribution")[0].axes["output"] == [word]
    (text, *_) = lenses()["attribution"].html({"flat at 0": found})
    assert "data-score" in text
    with pytest.raises(RequestError, match=r"has 40 tokens; the context of .* is 32"):
        look("attribution", checkpoint, range(40))
