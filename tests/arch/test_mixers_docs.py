"""The mixer that the documentation adds passes the tests that every mixer passes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arch import LanguageModel, ModelConfig, describe, generate, load_model, save_model
from arch.__main__ import main
from tests.arch import test_mixers as family
from tests.arch.cases import tokenizer_json
from tests.docs_cases import SMALL, commands
from tokenizer import pack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mixers.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _one_new_file(tmp_path, monkeypatch):
    (tmp_path / "my_mixers.py").write_text(EXAMPLE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_mixers", raising=False)


def test_it_is_short():
    lines = [line for line in EXAMPLE.splitlines() if line and not line.startswith(("from", '"'))]
    assert len(lines) <= 20


@pytest.mark.parametrize("entry", ["my_mixers.Gated", "my_mixers.Gated(bias=false)"])
def test_it_passes_what_every_mixer_passes(entry):
    for dtype in family.FLOATS:
        family.test_no_output_depends_on_a_later_token(entry, dtype)
        family.test_prefix_and_step_give_what_forward_gives(entry, dtype, [2, 5])
    family.test_a_state_stays_as_it_is_when_others_go_on_from_it(entry)
    family.test_gradients_are_those_of_finite_differences(entry)
    family.test_weights_above_a_diagonal_have_no_influence_and_no_gradient(entry)
    family.test_half_precision_is_near(entry)
    family.assert_compiles([entry], torch.float32, "aot_eager")


def test_the_commands_that_train_and_invert_it_work_from_its_folder(tmp_path, small_tokenizer):
    """Those of docs/extending.md, each in a process of its own."""
    page = PAGE.with_name("extending.md")
    asked = [c.text for c in commands(page.name, page.read_text("utf-8")) if "runs/gated" in c.text]
    small_tokenizer.save(str(tmp_path / "tokenizer.json"))
    pack("toy:600", tmp_path / "tokenizer.json", tmp_path / "data" / "tinystories")
    for text in asked:
        small = next(flags for name, flags in SMALL.items() if f"python -m {name}" in text)
        small = " ".join(small.split()) + " --model.vocab_size 400" * ("train fit" in text)
        done = subprocess.run(
            text.replace("python", sys.executable, 1) + f" {small}",
            shell=True, cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(PAGE.parents[1])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    rows = (tmp_path / "results" / "gated" / "rows.jsonl").read_text().splitlines()
    assert {name for row in rows for name in json.loads(row)["checkpoint"]["mixers"]} == {
        "my_mixers.Gated"
    }


def test_the_command_checks_it(capsys):
    assert main(["check", "my_mixers.Gated"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_models_of_it_start_save_load_generate_and_describe_themselves(tmp_path):
    config = ModelConfig(
        11, 12, 8, 2, mixers=("my_mixers.Gated", "attention(heads=2)+my_mixers.Gated(bias=false)")
    )
    model: Any = LanguageModel(config).eval()
    assert describe(config).cost.parameters == sum(p.numel() for p in model.parameters())
    for block in (model.blocks[0].token_mixer, model.blocks[1].token_mixer.mixers[1]):
        assert 0 < block.mix.weight.abs().max() <= 12**-0.5
        assert block.mix.weight.triu(1).count_nonzero() == 0
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    loaded = load_model(tmp_path / "m").model
    prompt = torch.randint(11, (2, 3))
    expected = generate(model, prompt, 9, temperature=0)
    assert torch.equal(generate(loaded, prompt, 9, temperature=0), expected)
