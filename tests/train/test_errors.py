"""Bad input: one line that names the flag and the value, exit code 2, nothing written."""

import pytest
import torch
import yaml

from tests.train.cases import TINY
from train.__main__ import main

VALUES = """
--trainer.max_steps 0
--model.mixers flat
--model.norm batchnorm
--optimizer.lr 0.0
--optimizer.clip nan
--optimizer.beta2 1.0
--optimizer.name muon --optimizer.muon_lr 0.0
--optimizer.name muon --optimizer.muon_momentum 1.0
--optimizer.muon_lr 0.1
--schedule.floor 2.0
--schedule.warmup_steps -1
--schedule.decay wsd --schedule.decay_steps 0
--schedule.decay_steps 3
--batch.size 0
--seed 4294967296
--save_every 0
--save_steps [-1]
--trainer.strategy fsdp
"""
"""Flags of `fit`; the last one of a line is refused."""
SWEEP = {"method": "grid", "command": ["python", "${args}"], "parameters": {"seed": {"value": 1}}}
FILES = {
    "typo.yaml": "model:\n  d_modl: 3\n",
    "type.yaml": "optimizer:\n  lr: fast\n",
    "broken.yaml": "model: [\n",
    "word.yaml": "flat\n",
    "octal.yaml": "seed: 010\n",
    "clock.yaml": "minutes: 1:30\n",
    "empty.yaml": "optimizer:\n  lr:\n",
    "null.yaml": "seed: null\n",
    "section.yaml": "model:\n  d_model: 32\nmodel.d_model: 64\n",
    "lr.yaml": "lr: 0.5\n",
    "some.ckpt": "nothing",
    "bayes.yaml": yaml.safe_dump(SWEEP | {"method": "bayes"}),
    "none.yaml": yaml.safe_dump(SWEEP | {"parameters": None}),
    "number.yaml": yaml.safe_dump(SWEEP | {"parameters": {"seed": 3}}),
    "apart.yaml": yaml.safe_dump(SWEEP | {"command": ["python"]}),
    "sweep.yaml": yaml.safe_dump(SWEEP),
    "script.yaml": yaml.safe_dump(SWEEP | {"command": ["sh", "-c", "fit --lr=1 $@", "${args}"]}),
    "variable.yaml": yaml.safe_dump(SWEEP | {"command": ["env", "A=1", "fit", "${args}"]}),
    "run.yaml": yaml.safe_dump(SWEEP | {"command": ["fit", "--run=x", "${args}"]}),
}
FIT = f"fit --data {{data}} --run {{run}} {TINY}"
PLAN = f"plan {TINY}"


@pytest.fixture
def place(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "utf16.yaml").write_text("seed: 3\n", encoding="utf-16")
    return tmp_path


@pytest.mark.parametrize("flags", VALUES.strip().splitlines())
def test_a_bad_value(data, tmp_path, flags, refused):
    run = tmp_path / "run"
    line = refused(main(f"{FIT} {flags}".format(data=data, run=run).split()))
    assert " is ".join(flags.split()[-2:]).lstrip("-") in line
    assert not run.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{FIT} --model.vocab_size 401", "--model.vocab_size is 401"),
        (f"{FIT} --layout rows", "its layout is packed, the recipe's is rows"),
        (f"{FIT} --batch.size 5000", "fewer than one batch of 5000"),
        (f"{FIT} --batch.micro 3", "--batch.size 4 is not a multiple of 3 windows"),
        (f"{FIT} --resume nowhere.ckpt", "--resume nowhere.ckpt: no such checkpoint"),
        (f"{FIT} --resume {{at}}/some.ckpt", "some.ckpt: cannot be read as a checkpoint"),
        (f"{FIT} --model.mixers [flatt]", "did you mean 'flat'?"),
        (f"{FIT} --model.d_modl 8", "--model.d_modl; did you mean --model.d_model?"),
        (f"{FIT} --learning_rate 8", "did you mean --optimizer.lr?"),
        (f"{FIT} --lr fast", "--optimizer.lr is fast"),
        (f"{FIT} --model.d-model wide", "--model.d_model is wide"),
        (f"{FIT} --schedule.decay wsd --schedule.decay_steps 5", "a fall of 5 steps"),
        (f"{FIT} --tf32 true", "--tf32 true needs a GPU"),
        (f"{FIT} --loggers [mlflow]", "--loggers"),
        (f"{FIT} --config {{at}}/lama.yaml", "no such recipe or file; did you mean llama?"),
        (f"{FIT} --config {{at}}/typo.yaml", "did you mean --model.d_model?"),
        (f"{FIT} --config {{at}}/type.yaml", "--optimizer.lr is fast"),
        (f"{FIT} --config {{at}}/broken.yaml", "not YAML ("),
        (f"{FIT} --config {{at}}/word.yaml", "holds no settings"),
        (f"{FIT} --config {{at}}/octal.yaml", "010 is no decimal number"),
        (f"{FIT} --config {{at}}/clock.yaml", "1:30 is no decimal number"),
        (f"{FIT} --config {{at}}/empty.yaml", "--optimizer.lr is null"),
        (f"{FIT} --config {{at}}/null.yaml", "--seed is null"),
        (f"{FIT} --config {{at}}/section.yaml", "model.d_model is set twice"),
        (f"{FIT} --config {{at}}/utf16.yaml", "utf16.yaml: not YAML ('utf-8'"),
        (f"{FIT} --save_steps [1,010]", "--save_steps is [1,010], which is read as [1, 8]"),
        (f"{FIT} --save_steps=[1:30]", "--save_steps is [1:30], which is read as [90]"),
        (f"{FIT} --minutes 1:30", "--minutes is 1:30"),
        (f"{FIT} --optimizer.lr=1:30", "--optimizer.lr is 1:30"),
        ("fit --data {at} --run {run}", "not a directory of packed data (no meta.json)"),
        ("fit --config demo --data {data}", "--run is missing"),
        ("fit", "--data is missing"),
        (f"{FIT} --optimizer {{at}}/lr.yaml", "is not read from a file of its own"),
        ("fit --config demo --run {run}", "--data is missing"),
        (f"fit --data {{data}} --run {{at}}/some.ckpt/run {TINY}", "ckpt/run: cannot be written ("),
        (f"fit --data {{data}} --run {{at}}/some.ckpt {TINY}", "some.ckpt: exists already"),
        (f"{PLAN} --model.vocab_size 401 --data {{data}}", "--model.vocab_size is 401"),
        (f"{PLAN} --data {{data}} --batch.size 5000", "fewer than one batch of 5000"),
        (f"{PLAN} --init_from pairs --model.tied true", "leave out --model.tied true"),
        (f"{PLAN} --data {{data}} --init_from pairs --model.d_model 400", "--model.d_model is 400"),
        (f"{PLAN} --eval_every 9 --eval slow", "--eval slow: no such suite or file"),
        (f"{PLAN} --trainer.accelerator gpux", "--trainer.accelerator gpux"),
        (f"{PLAN} --trainer.devices many", "--trainer.devices many"),
        (f"{PLAN} --trainer.devices [0,0]", "--trainer.devices [0, 0]"),
        ("sweep {at}/bayes.yaml", "method bayes runs at W&B only"),
        ("sweep {at}/none.yaml", "has no parameters"),
        ("sweep {at}/number.yaml", "seed needs a value or values"),
        ("sweep {at}/apart.yaml", "its command does not pass ${args} on"),
        ("sweep {at}/script.yaml", "script.yaml: command has 'fit --lr=1"),  # was left out
        ("sweep {at}/variable.yaml", "variable.yaml: command has 'A=1'"),
        ("sweep {at}/run.yaml", "--run=x: "),
        ("sweep {at}/sweep.yaml -- --run x", "--run: "),
        ("sweep {at}/broken.yaml", "broken.yaml: not YAML"),
        ("sweep {at}/gone.yaml", "gone.yaml: cannot be read"),
        ("fitt", "there is no command 'fitt'"),
        pytest.param(
            f"{FIT} --precision 16-mixed",
            "--precision 16-mixed needs a GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_cannot_be_done(data, place, words, message, refused):
    before = sorted(place.rglob("*"))
    places = {"data": data, "at": place, "run": place / "run"}
    for name, path in places.items():
        words = words.replace(f"{{{name}}}", str(path))
    assert message in refused(main(words.split()))
    assert sorted(place.rglob("*")) == before
