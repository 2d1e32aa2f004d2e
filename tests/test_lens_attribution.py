"""Attribution against Captum's own ablation, linear models, and one occlusion at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arch import LanguageModel
from arch.pretrained import PretrainedModel
from eval.checkpoints import open_checkpoint
from eval.errors import RequestError
from eval.lenses import attribution, gradients
from eval.lenses.gradients import Output, own_answer
from eval.lenses.lens import Request, lenses
from eval.ranks import spearman
from eval.text import Prompt
from tests.test_pretrained import their_model

Make = Callable[..., LanguageModel]
MIXERS = ["flat", "attention(heads=2)", "expanded(factor=2)", "attention+flat"]


def prompt(length: int = 12, top: int = 250) -> Tensor:
    return torch.randint(top, (length,), generator=torch.Generator().manual_seed(3))


def wrapped(family: str) -> LanguageModel:
    return PretrainedModel(their_model(family, dtype=torch.float32))


def models(small_model: Make) -> list[LanguageModel]:
    ours = [small_model(mixers=(mixer,)) for mixer in MIXERS]
    return [*ours, *map(wrapped, ("gpt2", "gptj", "opt", "llama 2, grouped, scaled"))]


def test_embeddings_predict_what_ids_do(small_model: Make) -> None:
    """Embeddings fed in directly give the outputs of the token ids they are of."""
    for model in models(small_model):
        tokens = prompt()[None]
        embeddings = model.embed(tokens)
        predicted = model(tokens)
        assert torch.equal(model.logits(model.hidden(embeddings, len(model.blocks))), predicted)
        torch.testing.assert_close(Output(11, 5).of(model, embeddings), predicted[:, -1, 5])


def test_occlusion_together_is_one_by_one(small_model: Make) -> None:
    for model in models(small_model):
        tokens, nothing = prompt(), torch.randn(model.config.d_model)
        for position in (-1, 7):
            whole, without = attribution.occluded(model, tokens, nothing, position)
            T = position % len(tokens) + 1
            torch.testing.assert_close(
                whole, model(tokens[None])[0, position], atol=1e-5, rtol=1e-5
            )
            for t in range(T):
                embeddings = model.embed(tokens[None]).clone()
                embeddings[0, t] = nothing
                hidden = model.hidden(embeddings, len(model.blocks))
                alone = model.logits(hidden)[0, position]
                torch.testing.assert_close(without[t], alone, atol=1e-5, rtol=1e-5)
            for t in range(T, len(tokens)):  # what comes later does not matter
                torch.testing.assert_close(without[t], whole)


def test_occlusion_is_captums_ablation(small_model: Make) -> None:
    from captum.attr import FeatureAblation

    model, tokens = small_model(mixers=("attention",)), prompt()
    mean = attribution.replacements(model, None)["mean"]
    output = own_answer(model, tokens)
    whole, without = attribution.occluded(model, tokens, mean)
    embeddings = model.embed(tokens[None])
    expected = FeatureAblation(lambda x: output.of(model, x)).attribute(
        embeddings,
        mean.expand_as(embeddings),
        feature_mask=torch.arange(len(tokens))[None, :, None],
    )[0, :, 0]
    torch.testing.assert_close(output.read(whole) - output.read(without), expected)


@pytest.mark.parametrize("kind", ["logit", "log_probability", "every_logit"])
def test_integrated_gradients_are_complete(small_model: Make, kind: str) -> None:
    with torch.no_grad():  # as commands run
        for model in models(small_model):
            tokens = prompt()
            output = Output(11, own_answer(model, tokens).token, kind)
            baseline = next(iter(attribution.replacements(model, 257).values()))
            found = gradients.integrated_gradients(model, tokens, output, baseline)
            ends = torch.stack([model.embed(tokens), baseline.expand(len(tokens), -1)])
            prompted, silent = output.of(model, ends)
            assert found.error <= 1e-3
            assert float(found.scores.sum()) == pytest.approx(
                float(prompted - silent), rel=2e-3, abs=1e-5
            )


def test_gradients_of_a_linear_model_are_its_weights(small_model: Make) -> None:
    """With identities for blocks, a logit is a sum over the last token's features alone."""
    model = small_model(mixers=("identity",), final_norm=False, n_layers=1)
    model.blocks = torch.nn.ModuleList()
    tokens = prompt()
    product = gradients.gradient_x_input(model, tokens, Output(11, 5))
    assert not product[:-1].any()
    torch.testing.assert_close(product[-1], model.embed(tokens)[-1] * model.head.weight[5])
    integral = gradients.integrated_gradients(
        model, tokens, Output(11, 5), torch.zeros(model.config.d_model)
    )
    torch.testing.assert_close(integral.scores, product.sum(-1))
    assert integral.steps == gradients.NODES  # one piece is enough


def test_the_combination_is_the_mean_of_two_normalised() -> None:
    found = attribution.combined(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.0, 5.0, 10.0]))
    assert found.tolist() == [0.25, 0.75, 0.5]
    assert attribution.combined(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


def test_rank_correlation_is_spearmans() -> None:
    from scipy.stats import spearmanr

    a, b = torch.randn(30).round(decimals=1), torch.randn(30).round(decimals=1)
    expected = float(spearmanr(a.numpy(), b.numpy()).statistic)  # pyright: ignore
    assert spearman(a, b) == pytest.approx(expected)


def test_the_lens_tells_every_method_and_how_they_agree(model_directory: Callable) -> None:
    checkpoint = open_checkpoint(model_directory(mixers=("attention",)))
    prompts = (Prompt("text", 0, tuple(prompt(9).tolist())), Prompt("text", 1, (5, 6, 7, 8)))
    found = lenses()["attribution"].find(checkpoint, Request(prompts))
    scores = found.arrays["attribution"]
    assert list(scores.axes) == ["prompt", "output", "method", "position"]
    methods = list(scores.axes["method"])
    assert methods[0] == "gradient x input"
    assert {"occlusion, pad", "occlusion, pad, every logit", "combined"} <= set(methods)
    own = own_answer(checkpoint.model, torch.tensor(prompts[1].tokens))
    assert found.notes["answers"][1] == checkpoint.pieces([own.token])[0]
    alone = scores.at(prompt="text 1", output="own answer", method="gradient x input").values
    expected = gradients.gradient_x_input(checkpoint.model, torch.tensor([5, 6, 7, 8]), own)
    torch.testing.assert_close(alone[:4], expected.sum(-1))
    assert alone[4:].isnan().all()
    pairs = [row for row in found.figures if row["figure"] == "rank correlation"]
    assert len(pairs) == len(methods) * (len(methods) - 1) // 2
    assert all(-1 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in pairs)
    word = checkpoint.pieces([300])[0]
    chosen = lenses()["attribution"].find(checkpoint, Request(prompts, words=(word,)))
    assert chosen.arrays["attribution"].axes["output"] == [word]


def test_wrong_wishes(model_directory: Callable) -> None:
    checkpoint = open_checkpoint(model_directory())
    long = Prompt("text", 0, tuple(range(40)))
    with pytest.raises(RequestError, match=r"has 40 tokens; the context of .* is 32"):
        lenses()["attribution"].find(checkpoint, Request((long,)))
    with pytest.raises(RequestError, match="output 'odds' does not exist; use one of logit, log"):
        Output(0, 0, "odds")
    with pytest.raises(RequestError, match="40 tokens is longer than the model's context of 32"):
        attribution.occluded(checkpoint.model, prompt(40), torch.zeros(32))
