"""The trained models of the repository: what `remnant:NAME` opens."""

import json

import pytest
import torch

from arch import ModelError, load_model
from arch.__main__ import main as arch_main
from arch.storage import runs
from eval import loss, open_model
from eval.__main__ import main
from tests.said import one_line

NAMES = [path.name for path in runs.shipped_models()]
LARGEST = 12e6
"""Bytes of all of them."""


def test_they_are_small_enough_to_be_cloned():
    assert NAMES == ["flat-small", "llama-small"]
    assert sum(f.stat().st_size for f in runs.MODELS.rglob("*") if f.is_file()) < LARGEST


@pytest.mark.first(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_opens_a_trained_model_and_its_seed_the_untrained_one(name, tmp_path):
    model = open_model(f"remnant:{name}").model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    folder = runs.MODELS / name
    words = ["init", tmp_path / "untrained", "--config", folder / "config.json"]
    words += ["--tokenizer", folder / "tokenizer.json"]
    assert arch_main([*map(str, words)]) == 0
    untrained = load_model(tmp_path / "untrained")
    text = "Once upon a time, there was a little girl who had a big red ball. She was happy."
    bits = [
        loss(of, text=text).rows[0]["bits_per_byte"] for of in (f"remnant:{name}", untrained.path)
    ]
    assert bits[0] < 1.0 < 2.0 < bits[1]


def test_a_sentence_is_recovered_without_any_training(capsys):
    words = [
        "--text",
        "Tom had a red ball.",
        "--layers",
        "last",
        "--solvers",
        "propose",
        "--format",
        "json",
    ]
    assert main(["invert", "remnant:flat-small", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["found_text"] == row["truth_text"]


def test_another_name_is_refused_with_those_that_are_there(monkeypatch, tmp_path):
    with one_line(ModelError, "remnant:llama-small"):
        runs.find_model("remnant:llama")
    monkeypatch.setattr(runs, "MODELS", tmp_path / "none")
    with one_line(ModelError, "checkout"):
        runs.find_model("remnant:llama-small")


def test_the_explorer_without_any_model_says_how_to_make_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(runs, "MODELS", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    assert main(["explore"]) == 2
    assert "make demo" in capsys.readouterr().err
