"""YAML files of settings: read as what they say, or refused in a line that names what is wrong."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from arch.storage.values import YamlDumper
from tests.train.cases import TINY
from train import RunError, fit, read_recipe
from train.__main__ import main
from train.recipe import model_id
from train.run import Run

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (BOMB, "aliases"),
        (BOMB + "model: {mixers: *l}\n", "aliases"),
        ("model: &a\n  mixers: [*a]\n", "aliases"),
        ("seed: 1\nseed: 2\n", "seed stands twice"),
        ("model: {d_model: 16, d_model: 32}\n", "d_model stands twice"),
        ("run: !!python/object/apply:os.getcwd []\n", "tag"),
        ("run: !mine x\n", "tag"),
        ("1: 2\n", "a key that is no text"),
        ("seed: 1\n---\nseed: 2\n", "not YAML"),
        ("a: " + "[" * 500 + "]" * 500, "recursion"),
        pytest.param("a: " + "[" * 200_000, "recursion", marks=pytest.mark.slow),
        ("# " + "x" * (1 << 20), "larger than"),
        ("seed: \x1b\n", "not YAML"),
        ("model: null\n", "--model is None"),
        ("optimizer: [1]\n", "--optimizer is [1]"),
        ('batch: "\\0"\n', "--batch is '\\x00'"),
        ("model: /etc/hostname\n", "--model is '/etc/hostname'"),
        ("config: /etc/hostname\n", "names another recipe"),
        ("learning_rate: 0.1\n", "no setting --learning_rate; did you mean --optimizer.lr?"),
        ("optimiser: {lr: 0.1}\n", "no setting --optimiser.lr; did you mean --optimizer.lr?"),
        ("optimizer: {lr: .nan}\n", "--optimizer.lr is nan"),
        ("optimizer: {lr: .inf}\n", "--optimizer.lr is inf"),
        ("optimizer: {clip: .inf}\n", "--optimizer.clip is inf"),
        ("minutes: .inf\n", "--minutes is inf"),
        ("trainer: {num_nodes: 0}\n", "--trainer.num_nodes is 0"),
        ("batch: {size: true}\n", "--batch.size is True"),
        ('run: "a\\0b"\n', "--run is 'a\\x00b'"),
        ('data: ""\n', "--data is ''"),
        ("data: ~nobody-of-this-name/x\n", "--data is '~nobody-of-this-name/x'"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, text, named):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError) as caught:
        read_recipe("--config", str(path))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_as_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "\ufeffoptimizer: &o {lr: 1e-3, weight_decay: 5E-2}\n"
        "schedule: {decay_steps: ~}\ndata: ~/stories\ninit_from: hf:~/llama\nrun: runs/a~b\n",
        encoding="utf-8",
    )
    recipe = read_recipe("--config=~/recipe.yaml", "--resume=~/a.ckpt")
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (0.001, 0.05)
    assert recipe.schedule.decay_steps is None
    assert (recipe.run.data, recipe.run.run) == (str(tmp_path / "stories"), "runs/a~b")
    assert recipe.run.init_from == f"hf:{tmp_path / 'llama'}"
    assert recipe.run.resume == str(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("run.run", Path("runs") / "flat", "runs/flat"),
        ("run.seed", np.int64(3), 3),
        ("run.save_steps", np.arange(2), [0, 1]),
        ("run.save_steps", (1, 2), [1, 2]),
        ("optimizer.lr", np.float64(0.5), 0.5),
        ("optimizer.weight_decay", 0, 0.0),
        ("optimizer.embedding_lr", 1, 1.0),
        ("trainer.devices", "2", "2"),
    ],
)
def test_settings_that_are_assigned_are_read_as_flags_are(name, value, read):
    recipe = read_recipe("--config", "flat-small", "--data", "data", "--run", "runs/flat")
    section, _, key = name.partition(".")
    setattr(getattr(recipe, section), key, value)
    recipe.check()
    assert repr(getattr(getattr(recipe, section), key)) == repr(read)


@pytest.mark.parametrize("train", [fit, Run])
@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("seed", 3, "recipe.seed: there is no such section; give recipe.run.seed"),
        ("optimiser", 3, "recipe.optimiser"),
        ("run", "runs/x", "recipe.run is 'runs/x'"),
        ("optimizer", {"lr": 1e-3}, "recipe.optimizer is {'lr': 0.001}"),
        ("model", None, "recipe.model is None"),
        ("run.save_evry", 2, "--save_evry"),  # nothing was saved, in silence
        ("run.data", 3, "--data is 3"),
        ("run.run", "\udce9", "--run is '\\udce9'"),
        ("run.precision", "bf16", "--precision is 'bf16'"),
        ("run.seed", 2.5, "--seed is 2.5"),
        ("run.seed", True, "--seed is True"),
        ("run.trust_code", "false", "--trust_code is 'false'"),  # its code was run
        ("run.compile", "false", "--compile is 'false'"),
        ("run.save_best", 0, "--save_best is 0"),
        ("run.save_steps", 100, "--save_steps is 100"),
        ("run.save_steps", [1, "2"], "--save_steps is '2'"),
        ("run.loggers", ["mlflow"], "--loggers is 'mlflow'"),
        ("run.wandb_tags", "abc", "--wandb_tags is 'abc'"),
        ("optimizer.lr", math.nan, "--optimizer.lr is nan"),
        ("optimizer.lr", True, "--optimizer.lr is True"),
        ("optimizer.clip", -1, "--optimizer.clip is -1"),  # the loss rose
        pytest.param("optimizer.eps", 10**400, "--optimizer.eps is 1000", id="no-float"),
        ("schedule.floor", 5, "--schedule.floor is 5"),
        ("schedule.decay", "linaer", "--schedule.decay is 'linaer'"),
        ("trainer.max_steps", "5", "--trainer.max_steps is '5'"),
    ],
)
def test_settings_that_are_assigned_and_not_allowed(train, name, value, flag):
    """`Run` took all of them, and any name in the recipe itself was ignored."""
    recipe = read_recipe("--config", "flat-small", "--data", "data", "--run", "runs/flat")
    section, _, key = name.rpartition(".")
    setattr(getattr(recipe, section) if section else recipe, key, value)
    with pytest.raises(RunError, match=f"^{re.escape(flag)}"):
        train(recipe)


def test_a_whole_number_that_is_assigned_is_the_number_of_a_flag(data, tmp_path):
    """Two seeds of one model had two ids."""
    words = [*TINY.split(), "--data", str(data), "--run", str(tmp_path / "run")]
    given = read_recipe(*words, "--weight_decay", "0", "--model.embedding_std", "1")
    assigned = read_recipe(*words)
    assigned.optimizer.weight_decay = 0
    assigned.model = dataclasses.replace(assigned.model, embedding_std=1)
    runs = [Run(recipe) for recipe in (given, assigned)]
    ids = {model_id("run", run.recipe.model, run.start.recipe, "data") for run in runs}
    assert len(ids) == 1


@pytest.mark.parametrize(
    "words",
    [
        (["--data", "stories", "--lr", "0.001", "--save_steps", "[1, 2]", "--seed", "3"],),
        ("--data", Path("stories"), "--lr", 1e-3, "--save_steps", [1, 2], "--seed", np.int64(3)),
    ],
)
def test_flags_in_python_may_be_values_and_one_list(words):
    run = read_recipe(*words).run
    assert (run.data, run.save_steps, run.seed) == ("stories", [1, 2], 3)
    assert read_recipe(*words).optimizer.lr == 0.001


NUMBERS = ("1e-3", "1.5e3", "12e45678", "1_0e2", "010", "1:30", "2024-01-01", "0x1f")
"""Texts that YAML 1.1 or 1.2 reads as something else."""


@pytest.mark.parametrize("text", NUMBERS)
def test_a_text_that_looks_like_a_number_stays_one_in_a_config(text, tmp_path):
    names = ("data", "run", "recipe", "wandb_project", "wandb_group")
    recipe = read_recipe(*(f"--{name}={text}" for name in names))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.dump(recipe.plain(), Dumper=YamlDumper))
    assert read_recipe("--config", str(config)) == recipe


def test_a_run_whose_name_looks_like_a_number_goes_on(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fit", *TINY.split(), "--data", str(data), "--trainer.max_steps", "1"]
    assert main([*words, "--run", "5e-4"]) == 0
    assert main(["fit", "--config", "5e-4/config.yaml", "--resume", "auto"]) == 0
    assert "5e-4 is complete" in capsys.readouterr().out


def test_a_recipe_is_the_same_after_its_run(data, tmp_path, monkeypatch):
    """A later run of it had the first one's data and vocabulary, and was compiled."""

    def choose(recipe):
        recipe.run.precision = "64-true"

    monkeypatch.setattr("train.run.choose_arithmetic", choose)
    for source, train in (("toy:20", fit), (str(data), Run)):
        run = tmp_path / train.__name__
        recipe = read_recipe(*TINY.split(), "--data", source, "--run", str(run))
        before = recipe.plain()
        train(recipe)
        assert recipe.plain() == before


@pytest.mark.parametrize(
    "words",
    [
        "--seed 3 --lr 0.5 --config {0}/a.yaml",
        "--config {0}/a.yaml --seed 3 --lr 0.5",
        "--seed=3 -c {0}/a.yaml --optimizer.lr=0.5",
        "-c={0}/b.yaml --seed 3 --lr 0.5 --config={0}/a.yaml",
    ],
)
def test_a_flag_wins_over_a_recipe_wherever_it_stands(tmp_path, words):
    """Flags before --config were lost in silence."""
    (tmp_path / "a.yaml").write_text("seed: 1\noptimizer: {lr: 0.1, weight_decay: 0.2}\n")
    (tmp_path / "b.yaml").write_text("optimizer: {weight_decay: 0.3}\n")
    recipe = read_recipe(*words.format(tmp_path).split())
    optimizer = recipe.optimizer
    assert (recipe.run.seed, optimizer.lr, optimizer.weight_decay) == (3, 0.5, 0.2)
    assert recipe.run.recipe == "a"
