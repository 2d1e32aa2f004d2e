"""One door to models: a module in memory answers as the same model does from its directory."""

from typing import Any

import pytest
import torch
import transformers

import eval as evals
from arch import LanguageModel, ModelError
from eval.inversion.questions import derive
from tests.arch.cases import byte_tokenizer
from tests.arch.test_pretrained import their_model
from tests.said import one_line

ASKED: dict[str, Any] = {"text": "Tom sat.", "layers": 2, "methods": "sweep"}


@pytest.fixture(params=["gpt2", "ours"])
def module(request, small_model):
    """A model in memory that is being trained."""
    made = their_model("gpt2", dtype=torch.float32) if request.param == "gpt2" else small_model()
    return made.train()


def test_a_module_answers_as_its_directory_does_and_stays_as_it_is(
    module, tmp_path, small_tokenizer
):
    ours = isinstance(module, LanguageModel)
    tokenizer: Any = small_tokenizer if ours else fast_tokenizer()
    before = {n: (p.shape, p.requires_grad) for n, p in module.named_parameters()}
    opened = evals.open_model(module, tokenizer=tokenizer, name="mine")
    result = evals.invert(opened, **ASKED)
    assert {n: (p.shape, p.requires_grad) for n, p in module.named_parameters()} == before
    assert module.training
    assert all(row["checkpoint"]["name"] == "mine" for row in result.rows)
    if ours:
        shown = opened.model.embedding.weight
        assert shown.untyped_storage().data_ptr() == module.embedding.weight.data_ptr()
        assert derive(opened, "identity").meta["name"] == "mine [identity]"
        return
    module.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    saved = evals.invert(f"hf:{tmp_path / 'small'}", **ASKED)
    fields = ("truth", "found", "rank", "floor", "residual")
    assert [[r[n] for n in fields] for r in result.rows] == [
        [r[n] for n in fields] for r in saved.rows
    ]
    assert result.rows[0]["checkpoint"]["weights_sha256"] == opened.weights_sha256


def test_other_weights_in_memory_are_another_model(small_model, small_tokenizer):
    module = small_model()
    first = evals.open_model(module, tokenizer=small_tokenizer)
    with torch.no_grad():
        module.embedding.weight.mul_(2)
    second = evals.open_model(module, tokenizer=small_tokenizer)
    assert first.provenance["name"] == second.provenance["name"] == "LanguageModel"
    assert first.model_id != second.model_id


def test_a_model_that_sees_the_future_is_refused(small_model, small_tokenizer):
    module = small_model(mixers=("flat", "tests.arch.leaks.Mean"))
    with one_line(ModelError, "layer 2 (Mean) is not causal"):
        evals.open_model(module, tokenizer=small_tokenizer)


def fast_tokenizer() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
