"""A directory of transformers that tests change.

The kernels' tests run where torch, triton, numpy and pytest are alone: others are imported below.
"""

import json
import shutil

import pytest
import torch

SETTINGS = {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 32}  # fmt: skip


@pytest.fixture(scope="session")
def saved_once(tmp_path_factory):
    """Saves a random model of transformers once for all tests, which copy its directory."""
    from tests.arch.pretrained.test_pretrained import random_model

    known = {}

    def save(family, settings):
        key = family, repr(settings)
        if key not in known:
            known[key] = tmp_path_factory.mktemp("theirs") / "m"
            random_model(family, torch.float32, settings).save_pretrained(known[key])
        return known[key]

    return save


@pytest.fixture
def llama(tmp_path, saved_once):
    """Saves a Llama with other settings, weights or files; its directory."""
    from safetensors.torch import load_file, save_file

    from tests.arch.cases import byte_tokenizer

    def make(config=(), weights=None, tokenizer=None, family="Llama", **settings):
        place = tmp_path / "m"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(saved_once(family, {**SETTINGS, **settings}), place)
        torch.manual_seed(0)  # whether it was saved before or now
        (place / "tokenizer.json").write_text((tokenizer or byte_tokenizer()).to_str())
        known = json.loads((place / "config.json").read_text())
        known = {k: v for k, v in (known | dict(config)).items() if v is not KeyError}
        (place / "config.json").write_text(json.dumps(known))
        if weights:
            path = place / "model.safetensors"
            save_file(weights(load_file(path)), path)
        return place

    return make


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Puts a directory in a cache of the hub, whose network is off; the model's name there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def keep(directory):
        place, commit = tmp_path / "hub" / "models--me--m", "a" * 40
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(directory, place / "snapshots" / commit, symlinks=True)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)
        return "me/m"

    return keep
