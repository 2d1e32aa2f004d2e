"""The mixer of docs/extending.md passes the tests that every mixer passes, and trains."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from arch import (
    LanguageModel,
    ModelConfig,
    ModelError,
    describe,
    generate,
    load_model,
    save_model,
)
from arch.__main__ import main
from tests.arch.cases import tokenizer_json
from tests.arch.mixers import test_mixers as family
from tests.docs_cases import FEW, SMALL, commands, expanded
from tests.said import one_line
from tokenizer import pack

PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
SECTION = PAGE.read_text("utf-8").partition("## A lens")[0]
(SHORT,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
EXAMPLE = (PAGE.parent / "examples" / "my_mixers.py").read_text("utf-8")


@pytest.fixture(autouse=True)
def _one_new_file(tmp_path, monkeypatch):
    for name, code in (("my_mixer", SHORT), ("my_mixers", EXAMPLE)):
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "entry", ["my_mixer.Mean", "my_mixers.Recurrent", "my_mixers.Recurrent(heads=2)"]
)
def test_it_passes_what_every_mixer_passes(entry):
    family.test_no_output_depends_on_a_later_token(entry)
    family.test_prefix_and_step_give_what_forward_gives(entry)
    family.test_a_state_stays_as_it_is_when_others_go_on_from_it(entry)
    family.test_gradients_are_those_of_finite_differences(entry)
    family.test_half_precision_is_near(entry)


@pytest.mark.slow
def test_the_commands_that_train_and_invert_it_work(tmp_path, small_tokenizer, monkeypatch):
    found = commands(PAGE.name, PAGE.read_text("utf-8"))
    asked = [command.text for command in found if re.search("runs/(recurrent|mean)", command.text)]
    small_tokenizer.save(str(tmp_path / "tokenizer.json"))
    pack("toy:100", tmp_path / "tokenizer.json", tmp_path / "data" / "tinystories")
    monkeypatch.chdir(tmp_path)
    for text in asked:
        words = expanded(text.removeprefix("python -m "), tmp_path, must_match=True)
        named = " ".join(words[:2])
        small = f"{SMALL[named]} {FEW.get(named, '')}"
        assert import_module(f"{words[0]}.__main__").main([*words[1:], *small.split()]) == 0
    for run, mixer in (("mean", "my_mixer.Mean"), ("recurrent", "my_mixers.Recurrent")):
        rows = (tmp_path / "results" / run / "rows.jsonl").read_text().splitlines()
        assert {name for row in rows for name in json.loads(row)["checkpoint"]["mixers"]} == {mixer}


def test_heads_that_do_not_fit_are_refused():
    with one_line(ModelError, "Recurrent: heads=3 must divide d_model=8"):
        LanguageModel(ModelConfig(16, 8, 8, 1, mixers=("my_mixers.Recurrent(heads=3)",)))


def test_the_command_checks_it(monkeypatch, capsys):
    monkeypatch.setattr("arch.check.MOST", 64)  # it takes its positions one by one
    assert main(["check", "my_mixers.Recurrent"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_models_of_it_start_save_load_generate_and_describe_themselves(tmp_path):
    mixers = ("my_mixers.Recurrent", "attention(heads=2)+my_mixers.Recurrent(heads=2)")
    config = ModelConfig(11, 12, 8, 2, mixers=mixers)
    model: Any = LanguageModel(config).eval()
    assert describe(config).cost.parameters == sum(p.numel() for p in model.parameters())
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    loaded = load_model(tmp_path / "m", trust_code=True).model
    prompt = torch.randint(11, (2, 3))
    expected = generate(model, prompt, 9, temperature=0)
    assert torch.equal(generate(loaded, prompt, 9, temperature=0), expected)
