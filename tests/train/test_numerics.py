"""The first 30 losses of six recipes: on record, and the same however a step is computed.

The losses on record hold on any processor: `MARGIN` is at least 15 times what other instruction
sets and numbers of threads changed (fp32 3e-7, Muon 3e-5, bfloat16 2e-4). Write them anew, after a
change that is meant, with `python -m tests.train.test_numerics`.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from tests.train.cases import TINY, fit, losses, pack_toy
from tests.train.scale_runs import in_two_processes
from tokenizer import open_corpus, train_tokenizer
from tokenizer.pack import Layout
from train import read_recipe
from train.speed import choose_arithmetic

STEPS = 30
FIXED = f"{TINY} --trainer.max_steps {STEPS} --checkpoint_every 100"
FIXED += " --validate_tokens 32 --optimizer.lr 0.01"
LLAMA = "--model.mixers [attention(heads=2)] --model.channel_mixer swiglu --model.norm rmsnorm"
RECIPES = {
    "flat": "",
    "llama": LLAMA,
    "muon": "--optimizer.name muon --optimizer.muon_mixing true --optimizer.embedding_lr 0.02",
    "hybrid": "--model.mixers [headed(heads=2),attention(heads=2)] --schedule.decay wsd",
    "rows": f"{LLAMA} --layout rows --schedule.decay linear --schedule.floor 0",
    "bfloat16": "--precision bf16-mixed",
}
THREE = ("hybrid", "muon", "rows")
"""Recipes that are computed in other ways, too: all mixers, optimisers and layouts are in them."""
LOSSES = Path(__file__).with_name("losses.json")
MARGIN = dict.fromkeys(RECIPES, 1e-5) | {"muon": 5e-4, "bfloat16": 3e-3}
"""Of a loss, relative: between processors, and between runs that sum in another order."""


def flags(name: str) -> list[str]:
    return f"{FIXED} {RECIPES[name]}".split()


def pack_both(tokenizer, folder: Path) -> dict[str, Path]:
    """Data of both layouts, by the names of the recipes."""
    packed = pack_toy(tokenizer, folder / "packed", 40).path
    layout = Layout("rows", 17, "right")
    return dict.fromkeys(RECIPES, packed) | {
        "rows": pack_toy(tokenizer, folder / "rows", 40, layout).path
    }


@pytest.fixture(scope="module")
def places(small_tokenizer, tmp_path_factory):
    return pack_both(small_tokenizer, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(places, tmp_path_factory):
    """The losses of each recipe as it stands."""
    folder = tmp_path_factory.mktemp("plain")
    for name in RECIPES:
        assert fit(places[name], folder / name, *flags(name)) == 0
    return {name: losses(folder / name) for name in RECIPES}


@pytest.fixture(scope="module")
def shared(places, forked, tmp_path_factory):
    """Losses in two processes."""
    folder, devices = tmp_path_factory.mktemp("two"), "--trainer.devices 2 --trainer.strategy ddp"
    commands = [
        f"fit --data {places[name]} --run {folder / name} {' '.join(flags(name))} {devices}".split()
        for name in THREE
    ]
    in_two_processes(forked, [*commands], folder)
    return {name: losses(folder / name) for name in THREE}


@pytest.mark.parametrize("name", RECIPES)
def test_losses_are_those_on_record(plain, name):
    expected = json.loads(LOSSES.read_text())[name]
    assert len(expected) == STEPS
    assert plain[name] == pytest.approx(expected, rel=MARGIN[name])


@pytest.mark.parametrize("name", THREE)
def test_two_processes_have_the_losses_of_one(plain, shared, name):
    assert shared[name] == pytest.approx(plain[name], rel=MARGIN[name])


@pytest.mark.parametrize("name", THREE)
def test_steps_in_parts_have_the_losses_of_whole_ones(places, plain, tmp_path, name):
    assert fit(places[name], tmp_path / "run", *flags(name), "--batch.micro", "2") == 0
    assert losses(tmp_path / "run") == pytest.approx(plain[name], rel=MARGIN[name])


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    places, plain, tmp_path, at_step, name
):
    at_step(18, lambda loss: 1 / 0)
    more = ["--checkpoint_every", "7", "--resume", "auto"]
    with pytest.raises(ZeroDivisionError):
        fit(places[name], tmp_path / "run", *flags(name), *more)
    at_step(18, lambda loss: loss)
    assert fit(places[name], tmp_path / "run", *flags(name), *more) == 0
    assert losses(tmp_path / "run") == plain[name]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own doing
@pytest.mark.parametrize("name", [*THREE, "bfloat16"])
def test_a_compiled_run_has_the_losses_of_a_plain_one(places, plain, tmp_path, monkeypatch, name):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_(f, backend="aot_eager", **how))
    torch.compiler.reset()
    assert fit(places[name], tmp_path / "run", *flags(name), "--compile", "true") == 0
    assert losses(tmp_path / "run") == pytest.approx(plain[name], rel=MARGIN[name])


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
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
    monkeypatch.setattr("train.speed.multiplies_bfloat16", lambda: units)
    monkeypatch.setattr("train.speed.has_cpp_compiler", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recipe = read_recipe("--config", "flat-small", *words.split())
    said = choose_arithmetic(recipe)
    assert bool(said) == chosen
    assert ((recipe.run.precision, recipe.run.compile) == ("bf16-mixed", True)) == chosen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        small = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=400)
        data = pack_both(small, Path(folder))
        for name in RECIPES:
            assert fit(data[name], Path(folder) / name, *flags(name)) == 0
        found = {name: [round(x, 6) for x in losses(Path(folder) / name)] for name in RECIPES}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
