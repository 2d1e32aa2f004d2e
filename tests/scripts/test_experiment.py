"""Experiments: trained, measured and resumed as registered; registrations stay as they were."""

import pytest
import yaml

from eval.rows import read_rows
from scripts import experiment

FIT = (
    "--config demo --model.context 32 --model.d_model 16 --model.n_layers 1 --model.vocab_size 300 "
    "--batch.size 2 --trainer.max_steps 2 --schedule.warmup_steps 1 --save_steps [1]"
)
SMALL = {
    "name": "small",
    "design": {
        "vocabulary": 300,
        "fit": FIT,
        "architectures": {"flat": "--model.mixers [flat]"},
        "seeds": [3],
        "steps": [0, 1, 2],
        "passages": {"count": 2, "before": 2, "candidates": 50, "counted": 500},
        "measured": {"distances": [1, 2], "noise": [1.0], "quantisers": ["int4"], "draws": 2},
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    return tmp_path


def test_an_experiment_is_trained_measured_resumed_and_saved(folder, tmp_path, capsys, monkeypatch):
    words = ["small", "--corpus", "toy:400", "--out", str(tmp_path / "out")]
    assert experiment.main(words) == 0, capsys.readouterr().err
    rows = read_rows([tmp_path / "out"])
    registration = experiment.Registration.read("small", folder)
    assert [row["checkpoint"]["step"] for row in rows] == [0, 0, 1, 1, 2, 2]
    about = {"name": "small", "registration": registration.hash, "architecture": "flat", "seed": 3}
    assert all(row["experiment"] == about for row in rows)
    monkeypatch.setattr(experiment, "_give", None)
    assert experiment.main(words) == 0
    assert read_rows([tmp_path / "out"]) == rows
    assert experiment.main(["small", "--out", str(tmp_path / "out"), "--save"]) == 0
    saved = read_rows([folder / "small.parquet"])
    assert [row["bits"] for row in saved] == [row["bits"] for row in rows]
    assert str(tmp_path) not in str(saved)


def test_rows_of_another_registration_are_not_saved(folder, tmp_path):
    registration = experiment.Registration("small", b"name: small")
    (tmp_path / "rows.jsonl").write_text("")
    assert experiment.save(registration, tmp_path, tmp_path / "small.parquet") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["e99", "--out", "x"], "experiment 'e99': none is registered so; there are e1"),
        (["e1", "--out", "x"], "--corpus: missing; "),
        (["e1"], "--out: missing; "),
        (["e2", "--out", "x", "--corpus", "toy"], "e2: is registered, and has no command yet"),
    ],
)
def test_bad_requests_are_one_line(words, message, capsys):
    assert experiment.main(words) == 2
    assert message in capsys.readouterr().err
