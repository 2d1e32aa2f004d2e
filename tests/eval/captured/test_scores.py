"""Prompts from the log-probabilities of a few next tokens, as an API returns them."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from arch import LanguageModel, ModelConfig
from eval import RequestError, open_model, recover_scores
from eval.__main__ import main
from eval.captured.certainty.likelihood import limit_chances
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import V, their_model
from tests.eval.inversion.search_cases import TEXTS
from tests.said import one_line

TEXT = "Tom had a red ball."
K = 20


@pytest.fixture(scope="module", params=["flat", "attention(heads=4)"])
def scored(request, small_model, small_tokenizer):
    """An open model, a prompt's tokens, and the K best scores after each of them."""
    checkpoint = open_model(small_model(mixers=(request.param,)), tokenizer=small_tokenizer)
    tokens = torch.tensor([small_tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        best = checkpoint.model(tokens)[0].log_softmax(dim=-1).topk(K)
    return checkpoint, tokens[0].tolist(), best.indices, best.values


def printed(values: torch.Tensor, places: int) -> list[list[float]]:
    return [[round(value, places) for value in row] for row in values.tolist()]


@pytest.mark.parametrize("places", [6, 2])
def test_a_prompt_is_recovered_from_the_best_scores(scored, places):
    checkpoint, tokens, ids, values = scored
    found = recover_scores(checkpoint, ids, printed(values, places), corpus="toy:400")
    assert found.texts == [TEXT]
    assert found.tokens[0].tolist() == tokens
    assert all(found.certificates[0])


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
def test_a_small_vocabulary_is_run_whole(mixer):
    """Without tokens that had not been run, the search ended in a traceback."""
    config = ModelConfig(vocab_size=30, d_model=8, n_layers=1, context=16, mixers=(mixer,))
    torch.manual_seed(0)
    words = {chr(97 + i): i for i in range(30)}
    letters = Tokenizer(WordLevel(words, unk_token="a"))  # pyright: ignore[reportCallIssue]
    checkpoint = open_model(LanguageModel(config), tokenizer=letters)
    tokens = torch.tensor([[3, 1, 4, 15, 9]])
    with torch.no_grad():
        best = checkpoint.model(tokens)[0].log_softmax(dim=-1).topk(K)
    found = recover_scores(checkpoint, best.indices, printed(best.values, 6), corpus="toy:400")
    assert found.tokens.tolist() == tokens.tolist()


def test_ids_and_values_of_8_bits_are_numbers(scored):
    checkpoint, _, ids, values = scored
    found = recover_scores(
        checkpoint, ids[:3].int(), values[:3].to(torch.float8_e5m2), corpus="toy:400"
    )
    assert len(found.tokens[0]) == 3
    few, places = torch.tensor([[5, 6]] * 3), torch.full((3, 2), -2.0)
    asked = [recover_scores(checkpoint, kind(few), places, corpus="toy:400").tokens
             for kind in (torch.Tensor.byte, torch.Tensor.long)]  # fmt: skip
    assert torch.equal(*asked)


def test_a_softmax_over_rows_of_no_token_only_shifts_the_scores(capsys):
    theirs = their_model("llama 1", dtype=torch.float32, vocab_size=V + 14)
    tokens = torch.tensor([byte_tokenizer().encode(TEXTS[0]).ids])
    with torch.no_grad():
        scores = theirs(tokens).logits[0].log_softmax(dim=-1)[:, :V]
    best = scores.topk(K)
    checkpoint = open_model(theirs, tokenizer=byte_tokenizer())
    found = recover_scores(checkpoint, best.indices, best.values, corpus="toy:400")
    assert "14 logits" in capsys.readouterr().err
    assert found.texts == [TEXTS[0]]
    assert all(found.certificates[0])


def test_two_scores_up_to_a_constant_prove_no_token():
    """They are one number: of a softmax that counts rows of no token, wrong tokens were certain."""
    theirs = their_model("llama 1", dtype=torch.float32, vocab_size=V + 14)
    checkpoint = open_model(theirs, tokenizer=byte_tokenizer())
    tokens = torch.tensor([byte_tokenizer().encode(TEXTS[0]).ids])
    with torch.no_grad():
        best = theirs(tokens).logits[0].log_softmax(dim=-1)[:, :V].topk(2)
    found = recover_scores(checkpoint, best.indices, printed(best.values, 4), corpus="toy:400")
    assert not any(found.certificates[0])


@pytest.mark.first(1)
@pytest.mark.parametrize(("k", "places"), [(2, 6), (5, 2)])
def test_a_token_of_an_equal_row_is_certain_nowhere(k, places):
    """The likely one of two such tokens was run, and the other was not."""
    checkpoint = open_model("remnant:llama-small")
    model, text = checkpoint.model, "There was a dog and a cat."
    tokens = checkpoint.tokenizer.encode(text).ids
    assert len(set(tokens)) < len(tokens)
    twins = {token: 4000 + number for number, token in enumerate(dict.fromkeys(tokens))}
    true = [twins[token] for token in tokens]
    with torch.no_grad():
        model.embedding.weight[true] = model.embedding.weight[tokens]
        best = model(torch.tensor([true]))[0].log_softmax(dim=-1).topk(k)
    changed, scores = replace(checkpoint), printed(best.values, places)
    found = recover_scores(changed, best.indices, scores, corpus="toy:400")
    assert not any(found.certificates[0])
    assert len(found.alike[0]) == len(true)


@pytest.mark.parametrize("change", [lambda x: x / math.log(2), lambda x: x.roll(1, 0)])
def test_scores_that_fit_nowhere_are_said(scored, change, capsys):
    checkpoint, _, ids, values = scored
    found = recover_scores(checkpoint, ids, change(values), corpus="toy:400")
    assert not any(found.certificates[0])
    assert "scores: " in capsys.readouterr().err


@pytest.mark.parametrize(("k", "places", "is_said"), [(5, 2, True), (8, 4, False)])
def test_too_few_numbers_to_show_their_decimals_are_named(scored, k, places, is_said, capsys):
    """They were held against float32, and no reason was given that was theirs."""
    checkpoint, _, ids, values = scored
    scores = printed(values[:3, :k], places)
    found = recover_scores(checkpoint, ids[:3, :k], scores, corpus="toy:400")
    assert ("were they rounded" in capsys.readouterr().err) == is_said
    assert any(found.certificates[0]) != is_said


def test_a_probability_that_rounds_to_1_proves_nothing():
    """A few positions of scores that no token explains were left likely by it."""
    others = [0.01, None, 0.2, 0.0]
    assert limit_chances([1.0, *others], [False] * 5) == [0.5, *others]
    assert limit_chances([1.0, *others], [True, *[False] * 4]) == [1.0, *others]


def test_a_probability_that_something_speaks_against_explains_nothing():
    """Positions in another order left a wrong token likely, as capped ones counted as probable."""
    assert limit_chances([0.999, *[0.5] * 4], [False] * 5) == [0.5] * 5
    assert limit_chances([0.999, *[0.51] * 4], [False] * 5) == [0.999, *[0.51] * 4]


def test_a_tail_behind_proved_tokens_is_asked_on_its_own():
    """Rows of an overlapping chunk, or of another prompt, came near a token here and there."""
    proved, tail = [True] * 8 + [False] * 4, [0.2, 0.995, 0.3, 0.1]
    assert limit_chances([1.0] * 8 + tail, proved) == [1.0] * 8 + [0.2, 0.5, 0.3, 0.1]
    for noisy in ([0.2, 0.995, 0.9, 0.6], [0.995, None]):
        chances = [1.0] * (12 - len(noisy)) + noisy
        assert limit_chances(chances, [p == 1.0 for p in chances]) == chances


@pytest.mark.slow
def test_two_scores_of_one_decimal_prove_no_token():
    """Some of 4,096 tokens has them by chance: a wrong one was certain behind a wrong prompt."""
    checkpoint = open_model("remnant:llama-small")
    tokens = torch.randint(4096, (1, 20), generator=torch.Generator().manual_seed(1))
    scores, ids = checkpoint.model(tokens[:, :10]).log_softmax(dim=-1)[0].topk(2)
    few = scores.detach().double().mul(10).round() / 10
    found = recover_scores(checkpoint, ids, few, corpus="toy:400")
    assert not any(found.certificates[0])


def test_another_models_scores_are_certain_nowhere(scored):
    checkpoint, tokens, ids, values = scored
    noisy = values - torch.rand(values.shape, generator=torch.Generator().manual_seed(0))
    found = recover_scores(checkpoint, ids, noisy, corpus="toy:400")
    assert not any(found.certificates[0])
    for token, right, grade in zip(found.tokens[0].tolist(), tokens, found.grades[0], strict=True):
        assert grade == "unknown" or token == right


def test_a_token_that_fits_beside_misfits_is_not_certain(scored, capsys):
    """Of a model that computes in bf16, wrong ones fitted here and there, and were certain."""
    checkpoint, tokens, ids, values = scored
    values = values + 0.03 * torch.randn(values.shape, generator=torch.Generator().manual_seed(0))
    wrong = (tokens[3] + 7) % checkpoint.config.vocab_size
    with torch.no_grad():
        best = checkpoint.model(torch.tensor([[*tokens[:3], wrong]]))[0, 3].log_softmax(-1).topk(K)
    ids, values = ids.clone(), values.clamp(max=0)
    ids[3], values[3] = best.indices, best.values
    found = recover_scores(checkpoint, ids[:6], printed(values[:6], 2), corpus="toy:400")
    assert found.tokens[0, 3] == wrong
    assert float(found.residual[0, 3]) < float(found.floor[0, 3])
    assert not any(found.certificates[0])
    assert "no token fits at position" in capsys.readouterr().err


@pytest.mark.parametrize(("places", "certain"), [(3, False), (6, True)])
def test_a_token_of_a_crowd_is_certain_by_precise_scores(
    places, certain, small_model, small_tokenizer
):
    """Scores of tokens that are alike lie close: of a few coarse ones a wrong one fitted alone."""
    model, crowd = small_model(mixers=("flat",)), torch.arange(100, 132)
    apart = torch.randn(len(crowd), 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.embedding.weight[crowd] = model.embedding.weight[crowd[0]] + 0.02 * apart
        best = model(crowd[None, :9])[0].log_softmax(dim=-1).topk(3)
    checkpoint = open_model(model, tokenizer=small_tokenizer)
    found = recover_scores(checkpoint, best.indices, printed(best.values, places), corpus="toy:400")
    assert found.tokens[0].tolist() == crowd[:9].tolist()
    assert {proof is not None for proof in found.certificates[0]} == {certain}


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda ids, values: (ids[:, :1], values[:, :1]), "k at least 2"),
        (lambda ids, values: (ids[:-1], values), "give (T, k)"),
        (lambda ids, values: (ids, ids), "floats"),
        (lambda ids, values: (ids + 10_000, values), "the model has 0 to"),
        (lambda ids, values: (ids * 0 + 1, values), "stands twice"),
        (lambda ids, values: (ids, values + 20), "above 0"),
        (lambda ids, values: (ids, values.where(values > values.min(), -9999.0)), "-9999"),
        (lambda ids, values: (ids.repeat(9, 1), values.repeat(9, 1)), "positions"),
        (lambda ids, values: ([None, *ids.tolist()], values), "ids: no rows of numbers"),
        (lambda ids, values: (ids, [[-1.0], *values[1:].tolist()]), "values: no rows"),
        (lambda ids, values: (ids, values.to_sparse()), "values: no rows"),
        (lambda ids, values: (ids[:, :2] > ids[:, 1:3], values[:, :2]), "ids: no rows"),
        (lambda ids, values: (ids, values * 1j), "floats"),
    ],
)
def test_what_are_no_scores_is_one_line(scored, change, seen):
    checkpoint, _, ids, values = scored
    ids, values = change(ids, values)
    with one_line(RequestError, seen):
        recover_scores(checkpoint, ids, values, corpus="toy:400")


def test_the_command_reads_scores_from_a_file(model_directory, small_tokenizer, tmp_path, capsys):
    path = model_directory("flat")
    tokens = torch.tensor([small_tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        best = open_model(path).model(tokens)[0].log_softmax(dim=-1).topk(K)
    file = tmp_path / "scores.safetensors"
    save_file({"logprobs": best.values, "logprob_ids": best.indices}, file)
    words = ["recover", str(file), "--model", str(path), "--corpus", "toy:400"]
    assert main([*words, "--truth", TEXT, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["text"], row["right"], row["false_certain"]) == (TEXT, tokens.shape[1], 0)
    for flag in ("--positions 1 2", "--layer 0", "--first 0"):
        assert main([*words, *flag.split()]) == 2
        assert f"{flag.split()[0]}: logprobs holds scores" in capsys.readouterr().err
    assert main([*words, "--verify"]) == 2
    assert "--verify: no ids" in capsys.readouterr().err
    for values, ids, seen in (
        (best.values[:, :1], best.indices, "give (T, k) of both"),
        (best.values, best.indices.to(torch.int16), "int64"),
    ):
        save_file({"logprobs": values.contiguous(), "logprob_ids": ids}, file)
        assert main(words) == 2
        assert seen in capsys.readouterr().err
