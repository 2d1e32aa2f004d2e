"""What a run would need, compared with what it takes."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from lightning.pytorch import Trainer

import train.plan
from arch import ModelConfig
from tests.train.cases import TINY, fit
from train.__main__ import main
from train.plan import memory
from train.run import build_trainer
from train.rundir import RunDirectory
from train.settings import BatchSettings, Recipe, TrainerSettings

SMALL = f"{TINY} --save_steps [3]"

CASES = [("flat", False), ("flat", True), ("attention(heads=4)", False)]

MEASURE = """
import os, resource, sys
import torch
from arch import LanguageModel, ModelConfig
from train.module import LanguageModule
from train.settings import OptimizerSettings, ScheduleSettings

def train(mixer, again, d, n, context):
    config = ModelConfig(400, context, d, n, (mixer,))
    module = LanguageModule(LanguageModel(config), OptimizerSettings(), ScheduleSettings(), 9)
    module.model.checkpoint_activations = again == "True"
    optimizer = module.configure_optimizers()["optimizer"]
    tokens = torch.zeros(16, context, dtype=torch.long)
    for count in (1, 16):  # the first step makes the moments, the second needs the most
        part = tokens[:count]
        module.training_step((part, part, 1.0), 0).backward()
        optimizer.step()
        optimizer.zero_grad()

def grown(*case):
    train(*case, 8, 1, 8)  # imports what is imported late
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train(*case, 256, 4, 256)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

torch.set_num_threads(1)
for case in zip(sys.argv[1::2], sys.argv[2::2]):
    if not os.fork():  # a process of its own, as what is grown is not given back
        print(grown(*case), flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_memory_is_what_a_process_takes(tmp_path):
    """Within a tenth of how much a process grows."""
    words = [sys.executable, "-c", MEASURE, *(str(word) for case in CASES for word in case)]
    # Every tensor a mapping of its own, gone when it is freed: glibc would keep pieces of its heap.
    own = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=own)
    for (mixer, again), grown in zip(CASES, done.stdout.split(), strict=True):
        recipe = Recipe(
            model=ModelConfig(400, 256, 256, 4, (mixer,)),
            batch=BatchSettings(16),
            trainer=TrainerSettings("cpu", max_steps=9),
        )
        trainer = build_trainer(recipe, RunDirectory(tmp_path), [])
        needs = memory(recipe, trainer, 16, 1, again)
        assert needs.peak / 1.1 < int(grown) < needs.peak * 1.1
        assert needs.optimiser == pytest.approx(2 * needs.weights, rel=1e-4)


def test_both_mixed_precisions_need_alike(tmp_path):
    recipe = Recipe(
        model=ModelConfig(400, 64, 64, 2, ("flat",)),
        batch=BatchSettings(16),
        trainer=TrainerSettings("cpu", max_steps=9),
    )
    trainer = build_trainer(recipe, RunDirectory(tmp_path), [])
    peaks = {}
    for precision in ("bf16-mixed", "16-mixed"):
        # A trainer of 16-mixed cannot be made without a GPU.
        known = SimpleNamespace(precision=precision, strategy=trainer.strategy)
        peaks[precision] = memory(recipe, cast(Trainer, known), 16, 1, False).peak
    assert peaks["16-mixed"] == pytest.approx(peaks["bf16-mixed"], rel=0.02)


def test_ddp_keeps_the_gradients_once_more(capsys):
    """In its buckets, of which the gradients are no views unless it is asked for that."""
    assert plan("--measure", "false") == 0
    alone = capsys.readouterr().out
    devices = ("--trainer.devices", "2", "--batch.size", "8", "--trainer.strategy", "ddp")
    assert plan("--measure", "false", *devices) == 0
    several = capsys.readouterr().out
    assert "buckets" not in alone
    assert "weights 69.4 KiB" in alone
    assert "DDP's buckets 69.4 KiB" in several
    peaks = [float(re.findall(r"([\d.]+) KiB on each", text)[0]) for text in (alone, several)]
    assert peaks[1] - peaks[0] == pytest.approx(69.4, abs=0.2)


def plan(*words: str) -> int:
    return main(["plan", *SMALL.split(), *words])


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
    assert f"{epochs[1]} epochs" in started
    assert re.search(r"memory +[\d.]+ [KM]iB on each of 1 cpu at the peak: weights 69.4 KiB", shown)
    assert re.search(r"speed +[\d,]+ tokens/s, measured over \d+ steps of 4 x 16 tokens on", shown)
    assert re.search(r"time +0:\d\d of training, about 0:\d\d for 3 validations", shown)
    size = (tmp_path / "run" / "models" / "step-000003" / "model.safetensors").stat().st_size
    found = re.search(
        r"disk .* 3 model directories of ([\d.]+) KiB, 2 checkpoints of ([\d.]+) Ki", shown
    )
    assert found
    assert float(found[1]) * 1024 == pytest.approx(size, rel=0.05)
    checkpoint = (tmp_path / "run" / "checkpoints" / "step-000006.ckpt").stat().st_size
    assert float(found[2]) * 1024 == pytest.approx(checkpoint, rel=0.25)


def test_a_plan_writes_nothing(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert plan("--run", str(tmp_path / "run"), "--precision", "bf16-mixed") == 0
    assert not list(tmp_path.iterdir())
    assert "validations not counted: give --data" in capsys.readouterr().out


def test_without_measuring_a_peak_and_an_assumed_share_are_stated(monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(train.plan, "peak_flops", lambda device, precision: 1e12)
        assert plan("--measure", "false", "--batch.micro", "1") == 0
    assert "tokens/s, assuming 40% of 1.0 TFLOP/s on each of 1" in capsys.readouterr().out
    assert plan("--measure", "false", "--optimizer.name", "muon") == 0
    assert "speed    not known: no peak is known for this device" in capsys.readouterr().out
