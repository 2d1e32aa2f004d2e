"""Sweep files: as W&B's agent would start them, and as they are run here."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import (
    create_sweep_command,
    create_sweep_command_args,
)

from tests.train.cases import TINY, pack_toy
from train import sweep
from train.__main__ import main
from train.cli import settings
from train.sweep import plan, read_sweep, trial_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "train" / "sweeps").glob("*.yaml"))
FIELDS = {"name", "method", "metric", "command", "parameters"}
TOY: dict[str, Any] = {
    "name": "toy",
    "method": "grid",
    "command": ["sh", "trial.sh", "--seed=3", "${args}"],
    "parameters": {
        "optimizer.lr": {"values": [0.001, 0.004]},
        "model.mixers": {"value": "[attention(heads=2)]"},
    },
}


def save(path: Path, content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_say_what_wandb_and_training_know(file):
    content = read_sweep(file)
    assert set(content) <= FIELDS
    assert content["metric"] == {"name": "val_bits_per_byte", "goal": "minimize"}
    assert set(content["parameters"]) <= set(settings())
    trials = [trial for trial, _ in zip(plan(content), range(100), strict=False)]
    assert 10 < len(trials) < 100
    varied = [n for n in trials[0] if len({str(t[n]) for t in trials}) > 1]
    assert len({trial_name(trial, varied) for trial in trials}) == len(trials)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_sweep_over_rates_leaves_no_rate_of_its_recipe_fixed(file):
    """What is compared would else be at the rate that is best for the recipe's own model."""
    content = read_sweep(file)
    flags = [str(word) for word in content["command"]]
    (name,) = (word.removeprefix("--config=") for word in flags if word.startswith("--config="))
    recipe = yaml.safe_load((ROOT / "train" / "configs" / f"{name}.yaml").read_text())
    rates = {f"optimizer.{key}" for key in ("lr", "muon_lr") if key in recipe["optimizer"]}
    assert rates <= set(content["parameters"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_agent_starts_training_in_a_directory_of_its_own(file, tmp_path):
    """The command as `wandb agent` makes it, with a stand-in for python that says its flags."""
    content = read_sweep(file)
    trial = next(plan(content))
    filled = create_sweep_command(list(content["command"]))
    flags = create_sweep_command_args({"args": {n: {"value": v} for n, v in trial.items()}})["args"]
    command = [word for part in filled for word in (flags if part == "${args}" else [part])]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}", "WANDB_SWEEP_ID": "swept",
        "WANDB_RUN_ID": "abc123", "SWEEP_RUNS": str(tmp_path / "runs"),
    }  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "swept" / "abc123"
    said = done.stdout.splitlines()
    assert said[:3] == ["-m", "train", "fit"]
    assert said[-1] == f"--run={run}"
    assert set(flags) < set(said)
    assert "--wandb=online" in said
    assert (run / "wandb_id").read_text() == "abc123"  # training goes on with this id


def test_a_trial_without_an_agent_says_so(tmp_path):
    environment = {"PATH": os.environ["PATH"], "SWEEP_RUNS": str(tmp_path / "runs")}
    trial = ROOT / "train" / "sweeps" / "trial.sh"
    done = subprocess.run(["sh", trial], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "start this by wandb agent" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs the commands of a sweep by their main functions; a process each would import it all."""

    def run(command):
        python, flag, room, *words = command
        assert (python, flag) == (sys.executable, "-m")
        code = import_module(f"{room}.__main__").main(words)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(sweep, "subprocess", SimpleNamespace(run=run))


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_here_goes_on_and_compares(tmp_path, small_tokenizer, capfd):
    data = pack_toy(small_tokenizer, tmp_path / "packed", 200)
    file, out = save(tmp_path / "toy.yaml", TOY), tmp_path / "out"
    words = ["sweep", str(file), "--data", str(data.path), "--out", str(out), "--", *TINY.split()]
    assert main([*words[:6], "--limit", "1", *words[6:]]) == 0
    assert [path.name for path in out.iterdir()] == ["lr=0.001"]
    assert main(words) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["lr=0.001", "lr=0.004"]
    config = yaml.safe_load((out / "lr=0.004" / "config.yaml").read_text())
    assert config["optimizer"]["lr"] == 0.004
    assert (config["seed"], config["model"]["mixers"]) == (3, ["attention(heads=2)"])
    capfd.readouterr()
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert printed.count("finished before") == 2
    assert "lr=0.004" in printed.partition("bits/byte")[2]


def test_runs_that_fail_do_not_end_the_sweep(tmp_path, capfd):
    file = save(tmp_path / "toy.yaml", TOY)
    words = ["--out", str(tmp_path / "out"), "--", "--precision=high"]
    assert main(["sweep", str(file), *words]) == 1
    said = capfd.readouterr().err
    assert said.count("--precision") == 2  # of each process
    assert said.count("did not end well") == 2


def test_seeds_stand_at_the_end_of_names():
    trial = {"seed": 1, "model.mixers": "[attention(heads=4)]", "optimizer.lr": 0.0123456}
    assert trial_name(trial, list(trial)) == "mixers=attentionheads=4_lr=0.01235_seed=1"
