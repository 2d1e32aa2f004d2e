"""Models of transformers, with the hidden states that transformers itself computes."""

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import eval.models.checkpoint as models
from eval import open_model
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import saved, their_model
from tests.eval.inversion.search_cases import SHORT

FAMILIES = {"llama": "llama 2, grouped, scaled", "gpt2": "gpt2"}


@pytest.fixture(autouse=True)
def _fewer_prefixes(_few_prefixes, monkeypatch):
    """Maps of these small models are fitted after fewer prefixes yet."""
    monkeypatch.setattr("eval.inversion.guesses.PREFIXES", 12)


@pytest.fixture(scope="session")
def directories(tmp_path_factory):
    """Models in transformers' layout, each with its tokens and hidden states in a file."""
    place = tmp_path_factory.mktemp("theirs")
    tokens = torch.tensor([byte_tokenizer().encode(text).ids for text in SHORT])
    paths = {}
    for name, family in FAMILIES.items():
        path = paths[name] = saved(their_model(family, dtype=torch.float32), place / name)
        with torch.no_grad():
            theirs = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False)
            states = theirs(tokens, output_hidden_states=True).hidden_states[:-1]
        named = {str(layer): state.contiguous() for layer, state in enumerate(states)}
        save_file(named | {"tokens": tokens}, f"{path}/states.safetensors")
    return paths


@pytest.fixture(scope="session")
def opened(directories):
    """The same models, opened once: what is fitted of a model is kept with it."""
    return {name: open_model(f"hf:{path}") for name, path in directories.items()}


@pytest.fixture
def nowhere_else(monkeypatch):
    """No other site is looked for where tokens are unsure: what is said of it makes none surer."""
    monkeypatch.setattr("eval.captured.hints._look_elsewhere", lambda *_: "")


@pytest.fixture
def opened_once(directories, opened, monkeypatch):
    """Commands that are given the directory of one of these models take it as it is open."""
    known = {f"hf:{path}": opened[name] for name, path in directories.items()}
    open_anew = models.open_model
    monkeypatch.setattr(
        models, "open_model", lambda model, *more: known.get(model) or open_anew(model, *more)
    )
