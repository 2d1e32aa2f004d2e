"""The plan of what a run takes."""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import train.commands.plan
from arch import ModelConfig
from tests.train.cases import TINY, fit, names, pack_toy
from tests.train.forked import measure_growth
from tokenizer.pack import Layout
from train.__main__ import main
from train.commands.plan import Needs, Speed, count_memory, measure_speed
from train.recipe import Recipe
from train.rundir.rundir import RunDirectory
from train.settings import BatchSettings, TrainerSettings
from train.steps.module import LanguageModule
from train.trainer import build_trainer

SMALL = f"{TINY} --save_steps [3,9]"


def plan(*words: str) -> int:
    return main(["plan", *SMALL.split(), *words])


@pytest.fixture
def no_memory(monkeypatch):
    """Spares a plan the counting of its tensors, for a test of what else it says."""
    monkeypatch.setattr(train.commands.plan, "count_memory", lambda *_: Needs(4, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "again"), [("flat", True), ("attention(heads=4)", False)])
def test_the_memory_is_what_a_process_takes(mixer, again, forked, tmp_path):
    """Within a tenth of how much a process grows."""
    answer, other = forked.Pipe()
    process = forked.Process(target=measure_growth, args=(mixer, again, other), daemon=True)
    process.start()
    other.close()
    grown = answer.recv()  # EOFError: it did not end well
    process.join()
    recipe = Recipe(
        model=ModelConfig(400, 256, 256, 4, (mixer,)),
        batch=BatchSettings(16),
        trainer=TrainerSettings("cpu", max_steps=9),
    )
    trainer = build_trainer(recipe, RunDirectory(tmp_path), [])
    needs = count_memory(recipe, trainer, 16, 1, again)
    assert needs.peak / 1.1 < grown < needs.peak * 1.1
    assert needs.optimiser == pytest.approx(2 * needs.weights, rel=1e-4)


def test_a_plan_writes_nothing_and_ddp_keeps_the_gradients_once_more(tmp_path, monkeypatch, capsys):
    """In its buckets, of which the gradients are no views unless it is asked for that."""
    monkeypatch.chdir(tmp_path)
    assert plan("--run", str(tmp_path / "run")) == 0
    alone = capsys.readouterr().out
    devices = ("--trainer.devices", "2", "--batch.size", "8", "--trainer.strategy", "ddp")
    assert plan(*devices) == 0
    several = capsys.readouterr().out
    assert "validations not counted: give --data" in alone
    assert "buckets" not in alone
    assert "weights 69.4 KiB" in alone
    assert "DDP's buckets 69.4 KiB" in several
    assert "over" in several
    assert "times 2 devices" in several
    peaks = [float(re.findall(r"([\d.]+) KiB on each", text)[0]) for text in (alone, several)]
    assert peaks[1] - peaks[0] == pytest.approx(69.4, abs=0.2)
    assert not list(tmp_path.iterdir())


def test_on_a_gpu_the_peak_of_the_timed_steps_is_measured(monkeypatch):
    """Of those alone: the first two compile, and make the optimiser's moments."""
    seen: list[str] = []
    names = ("reset_peak_memory_stats", "synchronize", "max_memory_allocated")
    for name in names:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: seen.append(name) or 4096)
    draw = torch.randint
    monkeypatch.setattr(torch, "randint", lambda *sizes, device: draw(*sizes))
    monkeypatch.setattr(LanguageModule, "to", lambda module, device: module)
    monkeypatch.setattr(train.commands.plan, "prepare", lambda *_: None)
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("cuda", 0)),
        precision_plugin=SimpleNamespace(
            convert_module=lambda module: module, train_step_context=contextlib.nullcontext
        ),
        world_size=1,
    )
    speed = measure_speed(Recipe(model=ModelConfig(64, 8, 8, 1)), trainer, 2)
    assert speed.held == 4096
    reset, step, peak = names
    first = seen.index(reset)
    assert seen == [*[step] * first, reset, *[step] * (len(seen) - first - 2), peak]
    assert speed.steps * first == 2 * (len(seen) - first - 2)


def test_a_step_of_several_parts_has_one_of_the_optimiser(monkeypatch):
    """A plan stepped after every part; here a pass of four windows takes 2 s, a step 10."""
    now, learn = 0.0, LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        nonlocal now
        now += len(batch[0]) / 2
        return learn(self, batch, batch_idx)

    def clip(*_):
        nonlocal now
        now += 10

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    monkeypatch.setattr(train.commands.plan, "time", SimpleNamespace(perf_counter=lambda: now))
    for cheap in (2e11, 1.0):  # on a slow CPU fewer windows are timed
        monkeypatch.setattr(train.commands.plan, "CHEAP", cheap)
        recipe = Recipe(model=ModelConfig(64, 8, 8, 1), batch=BatchSettings(16, 4))
        trainer = build_trainer(recipe, RunDirectory(Path()), [])
        speed = measure_speed(recipe, trainer, 4)
        assert speed.positions == pytest.approx(16 * 8 / (4 * 2 + 10))


@pytest.mark.usefixtures("no_memory")
def test_a_plan_of_padded_rows_counts_positions(small_tokenizer, tmp_path, monkeypatch, capsys):
    """Its validations were real tokens, at a speed in positions."""
    monkeypatch.setattr(train.commands.plan, "measure_speed", lambda *_: Speed(10.0, 3, 4, None))
    data = pack_toy(small_tokenizer, tmp_path / "toy", 40, Layout("rows", 201))
    assert plan("--data", str(data.path), "--model.context", "200") == 0
    shown = capsys.readouterr().out
    assert re.search(r"6 steps of 4 x 200 = 4,800 positions, .* epochs", shown)
    assert " MFLOP a position, " in shown
    assert "speed    10 positions/s" in shown
    assert f"about 00:{2 * 200 * 3 // 30} for 3 validations" in shown  # of two stories


@pytest.mark.usefixtures("no_memory")
def test_what_was_measured_stands_beside_what_was_counted(monkeypatch, capsys):
    monkeypatch.setattr(train.commands.plan, "measure_speed", lambda *_: Speed(9.0, 3, 4, 3 << 30))
    assert plan() == 0
    shown = capsys.readouterr().out
    assert re.search(r"at the peak: .*\n +3.00 GiB measured on one cpu, over the timed", shown)


def test_a_plan_says_what_the_run_then_does(data, tmp_path, capsys):
    assert plan("--data", str(data)) == 0
    shown = capsys.readouterr().out
    assert fit(data, tmp_path / "run", *SMALL.split()) == 0
    started = capsys.readouterr().out
    said = re.search(r"model +([\d,]+) parameters: flat, d 16, n 2, context 16, voc", shown)
    assert said
    assert f"{said[1]} parameters on 1 cpu" in started
    epochs = re.search(r"6 steps of 4 x 16 = 384 tokens, (\d\.\d\d) epochs of", shown)
    assert epochs
    assert "measured on this" not in shown
    assert f"{epochs[1]} epochs" in started
    assert "--save_steps [9]: " in started
    assert re.search(r"memory +[\d.]+ [KM]iB on each of 1 cpu at the peak: weights 69.4 KiB", shown)
    assert re.search(r"speed +[\d,]+ tokens/s, measured over \d+ steps of 4 x 16 tokens on", shown)
    assert re.search(r"time +00:\d\d of training, about 00:\d\d for 3 validations", shown)
    size = (tmp_path / "run" / "models" / "step-000003" / "model.safetensors").stat().st_size
    found = re.search(
        r"disk .* 3 model directories of ([\d.]+) KiB, 2 checkpoints of ([\d.]+) Ki", shown
    )
    assert found
    assert float(found[1]) * 1024 == pytest.approx(size, rel=0.05)
    checkpoint = (tmp_path / "run" / "checkpoints" / "step-000006.ckpt").stat().st_size
    assert float(found[2]) * 1024 == pytest.approx(checkpoint, rel=0.25)


@pytest.mark.usefixtures("no_memory")
def test_a_plan_counts_every_model_that_a_run_saves(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("train.record.evaluate.measure", lambda *_: ({}, ""))
    flags = ["--save_steps", "[1]", "--save_every", "4", "--eval_every", "3", "--save_best", "true"]
    assert plan("--data", str(data), *flags) == 0
    shown, run = capsys.readouterr().out, tmp_path / "run"
    assert fit(data, run, *flags) == 0
    models = [*names(run / "models"), *run.glob("best")]
    assert len(models) == 6
    assert f"{len(models)} model directories of" in shown
    assert "for 5 validations; --eval_every's evaluations not counted" in shown


@pytest.mark.usefixtures("no_memory")
def test_a_plan_of_any_number_of_steps_lists_none_of_them(monkeypatch, capsys):
    """It took all memory."""
    monkeypatch.setattr(train.commands.plan, "measure_speed", lambda *_: Speed(6400.0, 3, 4, None))
    steps = int("9" * 20)
    assert plan("--trainer.max_steps", str(steps), "--save_every", "4", "--eval_every", "6") == 0
    models = 1 + steps // 4 + steps // 6 - steps // 12 + len([3, 9, steps])
    assert f": {models} model directories of" in capsys.readouterr().out


@pytest.mark.usefixtures("no_memory")
def test_validations_take_their_part_of_the_minutes(data, monkeypatch, capsys):
    monkeypatch.setattr(train.commands.plan, "measure_speed", lambda *_: Speed(6400.0, 3, 4, None))
    assert plan("--data", str(data), "--minutes", "1", "--validate_every", "5") == 0
    shown = capsys.readouterr().out
    steps, count = (
        int(re.search(pattern, shown)[1].replace(",", ""))  # pyright: ignore
        for pattern in (r"below: ([\d,]+) steps", r"for ([\d,]+) validations")
    )
    validation = 320 / (3 * 6400)
    assert steps * 64 / 6400 + (count - 2) * validation == pytest.approx(60, rel=0.01)


@pytest.mark.usefixtures("no_memory")
def test_a_plan_takes_a_text_and_minutes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("\n\n".join(f"Tom has {n} cats." for n in range(400)))
    fall = ["--schedule.decay", "wsd", "--schedule.decay_steps", "3000"]  # cut to what there is
    fall += ["--schedule.warmup_steps", "0"]
    assert plan("--data", "book.txt", "--minutes", "1", *fall) == 0
    shown, noted = capsys.readouterr()
    assert "--trainer.max_steps has no effect" in noted
    said = re.search(r"in 1 minutes, .*: ([\d,]+) steps of 4 x 16 .* epochs of book.txt; ", shown)
    speed = re.search(r"speed +([\d,]+) tokens/s", shown)
    assert said
    assert speed
    steps, tokens = (int(found[1].replace(",", "")) for found in (said, speed))
    assert steps * 4 * 16 == pytest.approx(60 * tokens, rel=0.01)
    assert names(tmp_path) == ["book.txt"]
    assert plan("--data", "none.txt") == 2
    noted = capsys.readouterr().err
    assert "none.txt: no such file" in noted
    assert "no effect" not in noted
