"""Sweep files: as W&B's agent would start them, and as they are run here."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from arch.storage.runs import without_seed
from tests.train.cases import TINY, fail, interrupt, pack_toy, processes_by, rows
from train import read_recipe
from train.__main__ import main
from train.commands import sweep
from train.commands.cli import setting_names
from train.commands.sweep_file import list_trials, name_trials, read_sweep, trial_name

ROOT = Path(__file__).resolve().parents[3]
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


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(TOY))
    return path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_say_what_wandb_and_training_know(file):
    content = read_sweep(file)
    assert set(content) <= FIELDS
    assert content["metric"] == {"name": "val_bits_per_byte", "goal": "minimize"}
    assert set(content["parameters"]) <= set(setting_names())
    trials = list(list_trials(content))
    assert 10 < len(trials) < 100
    varied = [n for n in trials[0] if len({str(t[n]) for t in trials}) > 1]
    assert len({trial_name(trial, varied) for trial in trials}) == len(trials)
    # At a fixed rate, what is compared would be at the one that is best for the recipe's own model.
    (name,) = (word[9:] for word in map(str, content["command"]) if word.startswith("--config="))
    recipe = yaml.safe_load((ROOT / "train" / "configs" / f"{name}.yaml").read_text())
    rates = {f"optimizer.{key}" for key in ("lr", "muon_lr") if key in recipe["optimizer"]}
    assert rates <= set(content["parameters"])


def test_the_agent_starts_training_in_a_directory_of_its_own(tmp_path):
    """The command as `wandb agent` makes it, with a stand-in for python that says its flags."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    content = read_sweep(FILES[0])
    trial = next(list_trials(content))
    filled = create_sweep_command(list(content["command"]))
    flags = create_sweep_command_args({"args": {n: {"value": v} for n, v in trial.items()}})["args"]
    command = [word for part in filled for word in (flags if part == "${args}" else [part])]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}", "SWEEP_RUNS": str(tmp_path / "runs"),
    }  # fmt: skip

    def start(**more: str) -> subprocess.CompletedProcess[str]:
        about = environment | more
        return subprocess.run(command, cwd=ROOT, env=about, capture_output=True, text=True)

    alone = start()
    assert alone.returncode != 0
    assert "start this by wandb agent" in alone.stderr
    assert not (tmp_path / "runs").exists()
    done = start(WANDB_SWEEP_ID="swept", WANDB_RUN_ID="abc123")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "swept" / "abc123"
    said = done.stdout.splitlines()
    assert ((ROOT / said[0]).resolve(), *said[1:3]) == (Path(sweep.REMNANT), "train", "fit")
    assert said[-1] == f"--run={run}"
    assert {*flags, "--wandb=online"} < set(said)
    assert (run / "wandb_id").read_text() == "abc123"  # training goes on with this id


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs the commands of a sweep by their main functions; a process each would import it all."""

    def run(command):
        python, script, room, *words = command
        assert (python, script) == (sys.executable, sweep.REMNANT)
        code = import_module(f"{room}.__main__").main(words)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(sweep, "subprocess", processes_by(run))


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_here_goes_on_and_compares(file, stories, small_tokenizer, tmp_path, capfd):
    out, data = tmp_path / "out", shutil.copytree(stories.path, tmp_path / "data")
    words = ["sweep", str(file), "--data", str(data), "--out", str(out)]
    words += ["--", *TINY.split(), "--trainer.max_steps", "3"]
    assert main(words) == 0
    assert sorted(path.name for path in out.iterdir()) == ["lr=0.001", "lr=0.004"]
    shutil.rmtree(out / "lr=0.001")
    config = yaml.safe_load((out / "lr=0.004" / "config.yaml").read_text())
    assert config["optimizer"]["lr"] == 0.004
    assert (config["seed"], config["model"]["mixers"]) == (3, ["attention(heads=2)"])
    capfd.readouterr()
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert printed.count("finished before") == 1
    assert "lr=0.004" in printed.partition("bits/byte")[2]
    validated = rows(out / "lr=0.004")
    record = out / "lr=0.004" / "metrics.jsonl"  # of a run that is killed while it validates
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    assert main(words) == 0
    assert capfd.readouterr().out.count("finished before") == 1
    assert rows(out / "lr=0.004") == validated
    for more, said in (
        (["--trainer.max_steps", "4"], "trainer.max_steps 3, this sweep gives it 4"),
        (["--model.n_layers=3"], "model.n_layers 2, this sweep gives it 3"),
        (["--data=toy:50"], f"data {data}, this sweep gives it toy:50"),
    ):
        assert main([*words, *more]) == 2
        assert f"lr=0.001: it ended with {said}" in capfd.readouterr().err
    assert main([*words, "--log_every=3", "--compile=false"]) == 0
    moved = out.rename(tmp_path / "moved")
    capfd.readouterr()
    assert main([str(moved) if word == str(out) else word for word in words]) == 0
    assert capfd.readouterr().out.count("finished before") == 2
    shutil.rmtree(data)
    pack_toy(small_tokenizer, tmp_path / "other", 41).path.rename(data)
    assert main([str(moved) if word == str(out) else word for word in words]) == 2
    assert f"lr=0.001: it ended with other data than {data} has now" in capfd.readouterr().err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "ended",
    [
        "--early_stopping=1 --validate_every=1 --lr=90",
        "--minutes=1e-9 --save_every=1 --max_steps=2",  # whose model of step 2 is not the last
        pytest.param("--minutes=1e-9", marks=pytest.mark.slow),
    ],
)
def test_runs_that_ended_early_are_not_those_of_other_settings(
    file, stories, tmp_path, capfd, ended
):
    """Their last model is of no step that the settings tell."""
    words = ["sweep", str(file), "--data", str(stories.path), "--out", str(tmp_path / "out")]
    words += ["--", *TINY.split(), *ended.split()]
    text = file.read_text().replace("attention(heads=2)", "tests.arch.leaks.ForwardOnly")
    file.write_text(text.replace("optimizer.lr", "optimizer.eps"))
    assert main(words) == main(words) == 0
    assert "bits/byte" in capfd.readouterr().out.partition("is complete")[2]  # the table
    assert main([*words, "--dropout=0.5"]) == 2
    assert "it began with dropout 0.0, this sweep gives it 0.5" in capfd.readouterr().err


@pytest.mark.usefixtures("in_this_process")
def test_an_interrupted_run_does_not_go_on_with_other_settings(file, tmp_path, at_step, capfd):
    """It trained with both. Packed from a text, it was of other data by another path of --out."""
    words = ["sweep", str(file), "--data=toy:40", f"--out={tmp_path}/out", "--", *TINY.split()]
    at_step(2, interrupt(signal.SIGTERM))
    assert main(words) == 128 + signal.SIGTERM
    at_step(0, fail)
    assert main([*words, "--optimizer.weight_decay=0.5"]) == 2
    assert "lr=0.001: it began with optimizer.weight_decay" in capfd.readouterr().err
    words[3] = f"--out={tmp_path}/../{tmp_path.name}/out"
    assert main([*words, "--log_every=3"]) == 0


@pytest.mark.usefixtures("in_this_process")
def test_runs_that_fail_do_not_end_the_sweep(file, tmp_path, capfd):
    words = ["--out", str(tmp_path / "out"), "--", "--precision=high"]
    assert main(["sweep", str(file), *words]) == 1
    said = capfd.readouterr().err
    assert said.count("--precision") == 2
    assert said.count("did not end well") == 2


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL, -signal.SIGSEGV, 134])
def test_a_run_that_is_killed_or_crashes_does_not_end_the_sweep(
    file, tmp_path, monkeypatch, capsys, code
):
    """As where memory runs out, or a library fails."""
    codes = iter([code, 0, 0])  # the last is of the comparison

    def run(command):
        return subprocess.CompletedProcess(command, next(codes))

    monkeypatch.setattr(sweep, "subprocess", processes_by(run))
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"lr=0.001: was ended by signal {-code if code < 0 else code - 128}" in said
    assert said.count("did not end well") == 1
    assert next(codes, None) is None


@pytest.mark.parametrize(
    ("name", "values", "names"),
    [
        ("optimizer.lr", [0.00123411, 0.00123412], ["lr=0.00123411", "lr=0.00123412"]),
        ("optimizer.lr", [0.001, 0.004], ["lr=0.001", "lr=0.004"]),
        ("schedule.decay_steps", [None, 50], ["decay_steps=null", "decay_steps=50"]),
        ("model.tied", [True, False], ["tied=true", "tied=false"]),
        ("model.mixers", [["flat"], ["flat", "headed"]], ["mixers=flat", "mixers=flatheaded"]),
    ],
)
def test_every_trial_is_a_run_of_its_own(name, values, names):
    content = {"parameters": {name: {"values": values}, "seed": {"value": 1}}}
    trials = name_trials(content, Path("out"))
    assert [path.name for path in trials] == names
    assert [trial[name] for trial in trials.values()] == values


@pytest.mark.parametrize(
    "values",
    [["first run", "first,run"], ["a/b", "ab"], [0.5, 0.5], ["é", "è"], [["a"], "a"], [1, "1"]],
)
def test_two_trials_of_one_name_are_both_named(file, values, refused):
    file.write_text(yaml.safe_dump(TOY | {"parameters": {"wandb_project": {"values": values}}}))
    line = refused(main(["sweep", str(file), "--out", "out"]))
    assert all(repr(value) in line for value in values)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"command": "python ${args}"}, "command"),
        ({"command": ["python", 3, "${args}"]}, "command"),
        ({"command": None}, "command"),
        ({"command": ["python", "--data", "${envvar:DATA}", "${args}"]}, "${envvar:DATA}"),
        ({"run_cap": 1}, "run_cap"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 3}}, "early_terminate"),
        ({"parameters": {"seed": {"values": [1, 2], "probabilities": [0, 1]}}}, "probabilities"),
        ({"name": "../elsewhere"}, "name"),
        ({"name": 5}, "name"),
        ({"parameters": {"seed": {"values": "123"}}}, "seed"),
        ({"parameters": {"seed": {"values": []}}}, "seed"),
        ({"parameters": {"seed": {"value": 1, "values": [1, 2]}}}, "seed"),
        ({"parameters": {"run": {"value": "x"}}}, "run"),
        ({"parameters": {"lr": {"value": 1}, "optimizer.lr": {"value": 2}}}, "optimizer.lr"),
        ({"parameters": {n: {"values": [*range(101)]} for n in ("seed", "log_every")}}, "10201"),
    ],
)
def test_a_sweep_that_cannot_be_run(file, tmp_path, change, named, refused):
    file.write_text(yaml.safe_dump(TOY | change))
    assert named in refused(main(["sweep", str(file), "--out", str(tmp_path / "out")]))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def commands(monkeypatch):
    """What a sweep runs, in the place of running it."""
    given = []

    def run(command):
        given.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(sweep, "subprocess", processes_by(run))
    return given


def test_values_reach_a_run_as_they_stand_in_the_file(file, tmp_path, commands):
    text = yaml.safe_dump(TOY | {"parameters": {}}).replace("parameters: {}", "parameters:")
    text += "\n  optimizer.lr: {value: 1e-3}\n  schedule.decay_steps: {values: [null, ~]}\n"
    text += "  save_best: {value: true}\n  save_steps: {value: [1, 2]}\n  seed: {values: [1, 2]}\n"
    file.write_text(text.replace("values: [null, ~]", "value: null"))
    assert main(["sweep", str(file), "--out", str(tmp_path)]) == 0
    flags = {"--optimizer.lr=0.001", "--schedule.decay_steps=null", "--save_best=true"}
    assert flags | {"--save_steps=[1, 2]", "--seed=2", f"--run={tmp_path / 'seed=2'}"} <= {
        *commands[1]
    }
    recipe = read_recipe(*(word for word in commands[1][4:] if "--save_best" not in word))
    assert recipe.schedule.decay_steps is None


@pytest.fixture
def interruptible():
    """What Ctrl-C calls, also where the tests run in the background, in which it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("code", [130, 0])  # 0 of a run in its last step
def test_ctrl_c_lets_the_run_end_and_then_says_how_to_go_on(
    file, tmp_path, monkeypatch, capsys, code, interruptible
):
    commands = []

    def run(command):
        commands.append(command)
        os.kill(os.getpid(), signal.SIGINT)  # as a terminal does, to both
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(sweep, "subprocess", processes_by(run))
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert len(commands) == 1
    assert signal.getsignal(signal.SIGINT) is interruptible


TRAINS = """trap 'trap - TERM USR2; sleep 0.3; touch saved; exit 143' TERM USR2
touch begun; while :; do sleep 0.02; done"""
"""A program that ends as `fit` does by one signal, and unsaved by two."""


# the second as by systemd, or by timeout, which sends it to a group
@pytest.mark.parametrize(("number", "both"), [(signal.SIGTERM, False), (signal.SIGUSR2, True)])
def test_a_signal_to_the_sweep_ends_its_run_once(file, tmp_path, monkeypatch, number, both):
    """Its run went on, and the same command began the next one beside it."""
    monkeypatch.chdir(tmp_path)
    begun, start = [], subprocess.Popen

    def run(command):
        begun.append(start(["sh", "-c", TRAINS]))
        return begun[-1]

    def send():
        while not Path("begun").exists() or not sweep._catches(begun[0].pid, number):
            time.sleep(0.05)
        time.sleep(0.3)  # in which the sweep looks, too
        for process in [begun[0].pid] * both + [os.getpid()]:
            os.kill(process, number)

    monkeypatch.setattr(sweep, "PAUSE", 0.05)
    monkeypatch.setattr("train.commands.sweep.subprocess.Popen", run)
    threading.Thread(target=send).start()
    assert main(["sweep", str(file), "--out", "out"]) == 143
    assert (len(begun), Path("saved").exists()) == (1, True)


@pytest.mark.parametrize("words", ["--resume=a.ckpt", "--resume never"])
def test_a_sweep_begins_no_run_from_another_ones_checkpoint(file, words, refused):
    """Its own flag won, and the runs began from random weights in silence."""
    assert "--resume" in refused(main(["sweep", str(file), "--", *words.split()]))


def test_a_sweep_runs_in_a_thread_that_is_not_the_main_one(file, tmp_path, commands):
    codes = []
    words = ["sweep", str(file), "--out", str(tmp_path / "out")]
    thread = threading.Thread(target=lambda: codes.append(main(words)))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_long_name_is_cut_and_keeps_what_tells_it_from_others():
    values = [f"[{'attention(heads=4, qk_norm=true), ' * 8}{last}]" for last in "ab"]
    names = [trial_name({"mixers": value, "seed": 1}, ["mixers", "seed"]) for value in values]
    assert [len(name) for name in names] == [127, 127]
    assert len({without_seed(name) for name in names}) == 2
    other = trial_name({"mixers": values[0], "seed": 12}, ["mixers", "seed"])
    assert without_seed(other) == without_seed(names[0])


def test_seeds_stand_at_the_end_of_names():
    trial = {"seed": 1, "model.mixers": "[attention(heads=4)]", "optimizer.lr": 0.0123456}
    assert trial_name(trial, list(trial)) == "mixers=attentionheads=4_lr=0.01235_seed=1"


@pytest.mark.parametrize(
    ("command", "recipe"),
    [
        ("python -m train fit", None),
        ("python -m train fit -c flat-small", "flat-small"),
        ("python -m train fit -c=flat-small", "flat-small"),
        ("/bin/sh trial.sh -c flat-small", "flat-small"),
        ("/bin/sh -c fit", None),
    ],
)
def test_a_flag_and_its_value_may_be_two_words_of_a_command(
    file, tmp_path, commands, command, recipe
):
    """A recipe by its short flag was left out in silence."""
    words = [*command.split(), "--save_best", "false", "--seed", "3", "${args}"]
    file.write_text(yaml.safe_dump(TOY | {"command": words}))
    assert main(["sweep", str(file), "--out", str(tmp_path)]) == 0
    flags = commands[0][commands[0].index("fit") + 1 : -2]
    run = read_recipe(*flags).run
    assert (run.save_best, run.seed, run.recipe) == (False, 3, recipe)
