"""The losses on record of six recipes, and the same however a step is computed."""

import signal
import subprocess
import sys

import pytest
import torch

from tests.train.cases import fail, fit, interrupt, losses
from tests.train.recorded import (
    FEW,
    FIXED,
    LLAMA,
    LOSSES,
    MARGIN,
    RECIPES,
    STEPS,
    THREE,
    exactly_on_record,
    flags,
    on_record,
    read_record,
)
from train import read_recipe
from train.steps.speed import choose_arithmetic, missing_for_cpp


@pytest.fixture
def fit_few(places, tmp_path, at_step):
    """Trains the first steps of a recipe on record, until a signal, and returns their losses."""

    def train(name, *more):
        at_step(FEW, interrupt(signal.SIGUSR1))
        code = fit(places[name], tmp_path / "run", *flags(name), *more)
        assert code == 128 + signal.SIGUSR1
        return losses(tmp_path / "run")

    return train


@pytest.mark.first(2)
@pytest.mark.parametrize("name", sorted(RECIPES, key=lambda name: name not in ("muon", "llama")))
def test_losses_are_those_on_record_and_those_of_a_resumed_run(
    places, tmp_path, at_step, fit_few, name
):
    assert fit(places[name], tmp_path / "whole", *flags(name)) == 0
    whole = losses(tmp_path / "whole")
    assert len(whole) == STEPS
    assert whole == on_record(name, STEPS)
    exact = exactly_on_record(name)
    assert exact in (None, whole)
    at_step(8, fail)
    more = ["--checkpoint_every", "3", "--resume", "auto"]
    with pytest.raises(ZeroDivisionError):
        fit(places[name], tmp_path / "run", *flags(name), *more)
    assert fit_few(name, *more) == whole[:FEW]


@pytest.mark.parametrize("path", sorted(LOSSES.iterdir()), ids=lambda path: path.stem)
@pytest.mark.parametrize("name", RECIPES)
def test_processors_on_record_differ_by_less_than_the_margin(name, path):
    """A processor without a file may differ from the first file by five times as much."""
    first, other = (read_record(each)["losses"][name] for each in (min(LOSSES.iterdir()), path))
    assert other == pytest.approx(first, rel=MARGIN[name] / 5)


@pytest.mark.parametrize("name", THREE)
def test_steps_in_parts_have_the_losses_of_whole_ones(fit_few, name):
    assert fit_few(name, "--batch.micro", "2") == on_record(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own doing
@pytest.mark.parametrize("name", ["bfloat16", "hybrid", "rows"])
def test_a_compiled_run_has_the_losses_of_a_plain_one(fit_few, monkeypatch, name):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_(f, backend="aot_eager", **how))
    torch.compiler.reset()
    assert fit_few(name, "--compile", "true") == on_record(name)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_for_cpp()), reason="needs a C++ compiler and Python.h")
def test_a_compiled_run_on_a_cpu_has_the_same_bits_twice(tmp_path, places):
    """Two processes, as a run and the one that resumes it are; gradients are added in order."""
    words = f"{FIXED} {LLAMA} --compile true --precision bf16-mixed --batch.size 16".split()
    for name in "ab":
        command = [sys.executable, "-m", "train", "fit", *words, "--wandb", "disabled"]
        places_of_run = ["--data", str(places["llama"]), "--run", str(tmp_path / name)]
        subprocess.run([*command, *places_of_run], check=True, capture_output=True)
    weights = [tmp_path / name / f"models/step-{STEPS:06d}/model.safetensors" for name in "ab"]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("words", "units", "chosen"),
    [
        ("--trainer.max_steps 1000", True, True),
        ("--minutes 5 --trainer.max_steps 10", True, True),
        ("--trainer.max_steps 1000", False, False),
        ("--trainer.max_steps 999", True, False),
        ("--minutes 1 --trainer.max_steps 2000", True, False),
        ("--trainer.max_steps 1000 --precision 32-true", True, False),
        ("--trainer.max_steps 1000 --compile false", True, False),
        ("--trainer.max_steps 1000 --model.mixers [mine.Mixer]", True, False),
    ],
)
def test_a_long_run_takes_the_processor_s_units(monkeypatch, words, units, chosen):
    monkeypatch.setattr("train.steps.speed.multiplies_bfloat16", lambda: units)
    monkeypatch.setattr("train.steps.speed.missing_for_cpp", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recipe = read_recipe("--config", "flat-small", *words.split())
    said = choose_arithmetic(recipe)
    assert bool(said) == chosen
    assert ((recipe.run.precision, recipe.run.compile) == ("bf16-mixed", True)) == chosen
