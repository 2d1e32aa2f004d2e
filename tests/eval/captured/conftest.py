"""Models of transformers, with the hidden states that another process captured."""

import subprocess
import sys

import pytest
import torch

from eval import open_model
from tests.arch.test_pretrained import saved, their_model
from tests.eval.inversion.search_cases import TEXTS

FAMILIES = {"llama": "llama 2, grouped, scaled", "gpt2": "gpt2"}
CAPTURE = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
*places, first, second = sys.argv[1:]
for place in places:
    model = AutoModelForCausalLM.from_pretrained(place)
    tokens = AutoTokenizer.from_pretrained(place)([first, second], return_tensors="pt").input_ids
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states[:-1]
    named = {str(layer): state.contiguous() for layer, state in enumerate(states)}
    save_file(named | {"tokens": tokens}, place + "/states.safetensors")
"""


@pytest.fixture(scope="session")
def directories(tmp_path_factory):
    """Models in transformers' layout, each with its hidden states, captured by another process."""
    place = tmp_path_factory.mktemp("theirs")
    paths = {
        name: saved(their_model(family, dtype=torch.float32), place / name)
        for name, family in FAMILIES.items()
    }
    command = [sys.executable, "-c", CAPTURE, *paths.values(), *TEXTS]
    subprocess.run(command, check=True, capture_output=True)
    return paths


@pytest.fixture(scope="session")
def opened(directories):
    """The same models, opened once: what is fitted of a model is kept with it."""
    return {name: open_model(f"hf:{path}") for name, path in directories.items()}
