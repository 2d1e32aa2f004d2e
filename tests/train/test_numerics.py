"""The first 30 losses of six recipes: on record, and the same however a step is computed.

The losses on record hold on any processor: `MARGIN` is at least 15 times what other instruction
sets and numbers of threads changed (fp32 3e-7, Muon 3e-5, bfloat16 2e-4). Write them anew, after a
change that is meant, with `python -m tests.train.test_numerics`.
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from tests.train.cases import TINY, fit, losses, pack_toy
from tests.train.scale_runs import in_two_processes
from tokenizer import open_corpus, train_tokenizer
from tokenizer.pack import Layout

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
        for name in RECIPES
    ]
    in_two_processes(forked, [*commands], folder)
    return {name: losses(folder / name) for name in RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_losses_are_those_on_record(plain, name):
    expected = json.loads(LOSSES.read_text())[name]
    assert len(expected) == STEPS
    assert plain[name] == pytest.approx(expected, rel=MARGIN[name])


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_have_the_losses_of_one(plain, shared, name):
    assert shared[name] == pytest.approx(plain[name], rel=MARGIN[name])


@pytest.mark.parametrize("name", RECIPES)
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
@pytest.mark.parametrize("name", RECIPES)
def test_a_compiled_run_has_the_losses_of_a_plain_one(places, plain, tmp_path, monkeypatch, name):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_(f, backend="aot_eager", **how))
    torch.compiler.reset()
    assert fit(places[name], tmp_path / "run", *flags(name), "--compile", "true") == 0
    assert losses(tmp_path / "run") == pytest.approx(plain[name], rel=MARGIN[name])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        small = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=400)
        data = pack_both(small, Path(folder))
        for name in RECIPES:
            assert fit(data[name], Path(folder) / name, *flags(name)) == 0
        found = {name: [round(x, 6) for x in losses(Path(folder) / name)] for name in RECIPES}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
