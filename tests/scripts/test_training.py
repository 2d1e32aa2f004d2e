"""The benchmark of training, as far as it goes without timings."""

import csv
import os
from types import SimpleNamespace

import pytest

from arch import ModelConfig, describe
from scripts.bench import training as bench_training
from scripts.bench.baselines import Training, our_run, trainer_run
from scripts.bench.training import (
    COMPILED,
    KEPT,
    LLAMA,
    OURS,
    PEERS,
    Contender,
    Race,
    figures,
    races,
    read_flags,
    training_page,
)
from scripts.bench.turns import UNCOUNTED, Entrant, Over, Turn, Turns, race
from tests.scripts.steady import steady

TRAINER, REFERENCE = PEERS.values()


class FewSteps(Turns):
    """Stands for the race: lets three steps pass."""

    def __init__(self):
        self.remaining = 3

    def step(self):
        self.remaining -= 1
        if not self.remaining:
            raise Over


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("work", "name", "model"),
    [(our_run, "llama-small", LLAMA), (trainer_run, "llama", LLAMA), (trainer_run, "flat", {})],
)
def test_a_contender_trains_step_by_step(work, name, model, packed, tmp_path):
    pytest.importorskip("accelerate")
    turns = FewSteps()
    config = ModelConfig(vocab_size=400, context=16, d_model=16, n_layers=1, **model)
    with pytest.raises(Over):
        work(turns, Training(config, 4, "cpu", "fp32", False, packed.path, tmp_path), name)
    assert turns.remaining == 0


@pytest.mark.slow
def test_turns_and_a_contender_that_fails(tmp_path):
    well, ill = entrants = [
        Entrant("cpu", 1, tmp_path / f"{fails_at}.log", steady, fails_at, variables={"GIVEN": "it"})
        for fails_at in (0, UNCOUNTED + 2 + UNCOUNTED + 2 + 1)
    ]
    try:
        race(entrants, turn=0.01, until=0.0, rounds=(2, 9))
    finally:
        for entrant in entrants:
            entrant.end()
    assert well.failed is None
    assert len(well.readings) == 2
    assert all(t.seconds >= 0.001 * t.steps and t.memory > 1e6 for t in well.readings)
    assert (ill.failed, ill.readings) == ("ValueError: the first line", [])
    said = next(tmp_path.glob("[1-9]*.log")).read_text()
    assert "the second" in said
    assert "given it" in said
    assert "GIVEN" not in os.environ


def test_figures_of_a_contender():
    config = ModelConfig(vocab_size=400, context=25, d_model=16, n_layers=1)
    contenders = {name: Contender(our_run, (), "fp32") for name in (OURS, TRAINER)}
    mine = [Turn(10, seconds, seconds, 5) for seconds in (1.0, 2.0, 4.0)]
    its = [Turn(5, seconds, 3 * seconds, memory) for seconds, memory in ((1, 7), (2, 9), (3, 8))]
    entered = [SimpleNamespace(readings=turns, failed=None) for turns in (mine, its)]
    first, row = figures(Race("llama", config, 4, contenders), entered)  # pyright: ignore
    assert first["ratio"] == 1
    assert [row[name] for name in ("tokens", "least", "most")] == [250, 500 / 3, 500]
    assert (row["memory"], row["turns"]) == (9, 3)
    assert row["flops"] == 250 * describe(config).cost.training_flops
    names = ("ratio", "ratio_least", "ratio_most", "ratio_work")
    assert [row[name] for name in names] == pytest.approx([2, 1.5, 2, 6])


def test_races_of_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    planned = list(races(read_flags(["--device", "cuda"]), 4096))
    assert [one.name for one in planned] == ["llama", "flat"]
    assert {c.precision for one in planned for c in one.contenders.values()} == {"bf16", "fp16"}
    assert list(planned[1].contenders) == [OURS, REFERENCE, REFERENCE + COMPILED]


class Simulated:
    """Stands for an entrant: each turn takes a second a step; a contender may fail."""

    def __init__(self, device, threads, log, work, *_, variables):
        assert bool(variables) == ("/1/" in str(log))  # of the second alone, which is as it is
        self.readings, self.failed = [], "out of | memory" if work is trainer_run else None

    def turn(self, steps):
        return None if self.failed else Turn(steps, float(steps), 1.0, 5)

    def end(self):
        pass


def test_a_page_and_its_rows_from_one_command(packed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_training, "Entrant", Simulated)
    words = "--device cpu --only flat --eager --widths 16 --layers 1 --length 16 --batch 2"
    words += f" --rounds 1 --turn 2 --threads 1 --data {packed.path} --out {tmp_path / 'out'}"
    assert bench_training.main(words.split()) == 1  # a contender failed
    rows = csv.DictReader((tmp_path / "out/training-cpu.csv").read_text().splitlines())
    ours, theirs, kept = rows
    assert (ours["contender"], float(ours["tokens"])) == (OURS, 32.0)
    assert (theirs["contender"], theirs["failed"]) == (REFERENCE, "out of | memory")
    assert kept["contender"] == REFERENCE + KEPT
    text = (tmp_path / "out/training-cpu.md").read_text(encoding="utf-8")
    assert "out of \\| memory" in text
    assert str(tmp_path) not in text
    assert text in capsys.readouterr().out
    options = SimpleNamespace(device="cpu", threads=2, command="python -m x")
    assert "- headed: d=8" in training_page([], ["headed: d=8"], options)  # pyright: ignore


@pytest.mark.gpu
def test_races_on_a_gpu(tmp_path):
    pytest.importorskip("accelerate")
    words = "--device cuda --widths 64 --layers 1 --length 32 --batch 8 --turn 0.01 --rounds 1"
    words += f" --only llama flat --eager --seconds 150 --out {tmp_path}"
    assert bench_training.main(words.split()) == 0
    rows = [*csv.DictReader((tmp_path / "training-cuda.csv").read_text().splitlines())]
    assert [row["contender"] for row in rows] == [OURS, TRAINER, OURS, REFERENCE]
    assert all(not row["failed"] and float(row["tokens"]) > 0 for row in rows)
