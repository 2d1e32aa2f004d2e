"""The benchmark of training, as far as it goes without timings."""

import csv
from types import SimpleNamespace

import pytest

from arch import ModelConfig, describe
from scripts import bench_training
from scripts.baselines import Training, our_run, trainer_run
from scripts.bench_training import (
    COMPILED,
    FIELDS,
    OURS,
    PEERS,
    Contender,
    Race,
    figures,
    races,
    read_flags,
    training_page,
)
from scripts.turns import UNCOUNTED, Entrant, Over, Turn, Turns, end, race
from tests.steady import steady

TRAINER, REFERENCE = PEERS.values()
LLAMA = {"mixers": ("attention(heads=4)",), "channel_mixer": "swiglu", "norm": "rmsnorm"}


class FewSteps(Turns):
    """Stands for the race: lets three steps pass."""

    def __init__(self):
        self.remaining = 3

    def step(self):
        self.remaining -= 1
        if not self.remaining:
            raise Over


def work_of(packed, folder, **model):
    sizes = {"vocab_size": 400, "context": 16, "d_model": 16, "n_layers": 1}
    config = ModelConfig(**{**sizes, **model})  # pyright: ignore[reportArgumentType]
    return Training(config, 4, "cpu", "fp32", False, packed.path, folder)


@pytest.mark.parametrize(("recipe", "model"), [("llama-small", LLAMA), ("flat-small", {})])
def test_ours_is_a_run_of_the_recipe(recipe, model, packed, tmp_path, capsys):
    turns = FewSteps()
    with pytest.raises(Over):
        our_run(turns, work_of(packed, tmp_path, **model), recipe)
    assert turns.remaining == 0
    assert "steps of 4 x 16 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["llama", "flat"])
def test_theirs_trains_under_trainer(kind, packed, tmp_path):
    pytest.importorskip("accelerate")
    turns = FewSteps()
    with pytest.raises(Over):
        trainer_run(turns, work_of(packed, tmp_path, **(LLAMA if kind == "llama" else {})), kind)
    assert turns.remaining == 0


def test_turns_and_a_contender_that_fails(tmp_path):
    well, ill = entrants = [
        Entrant("cpu", 1, tmp_path / f"{fails_at}.log", steady, None, fails_at)
        for fails_at in (0, UNCOUNTED + 2 + UNCOUNTED + 2 + 1)
    ]
    try:
        race(entrants, turn=0.01, until=0.0, rounds=(2, 9))
    finally:
        end(entrants)
    assert well.failed is None
    assert len(well.readings) == 2
    assert all(t.seconds >= 0.001 * t.steps and t.memory > 1e6 for t in well.readings)
    assert (ill.failed, ill.readings) == ("ValueError: the first line", [])
    assert "the second" in ill.log.read_text()
    assert [entrant.process.exitcode for entrant in entrants] == [0, 0]


def test_figures_of_a_contender():
    config = ModelConfig(vocab_size=400, context=25, d_model=16, n_layers=1)
    contenders = {name: Contender(steady, (), "fp32") for name in (OURS, TRAINER)}
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


def test_the_page_names_what_failed_and_what_there_was_no_time_for():
    size = ("llama", "d=8 n=1 T=4, 2 windows", TRAINER, "bf16")
    rows = [dict(zip(FIELDS, (*size, *[0] * 10, "out of | memory"), strict=True))]
    options = SimpleNamespace(device="cpu", threads=2, command="python -m x")
    text = training_page(rows, ["headed: d=8"], options, (4e12, "as said"))  # pyright: ignore
    assert "out of \\| memory" in text
    assert "- headed: d=8" in text


def test_races_of_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    planned = list(races(read_flags(["--device", "cuda"]), 4096))
    assert [one.name for one in planned] == ["llama", "flat"]
    assert {c.precision for one in planned for c in one.contenders.values()} == {"bf16", "fp16"}
    assert list(planned[1].contenders) == [OURS, REFERENCE, REFERENCE + COMPILED]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_table_from_one_command(real, packed, tmp_path, monkeypatch, capsys):
    """Real contenders take a minute; others only count."""

    def quick(one):
        steadies = {name: Contender(steady, (), "fp32") for name in one.contenders}
        return one._replace(contenders=steadies)

    if not real:
        monkeypatch.setattr(bench_training, "races", lambda *given: map(quick, races(*given)))
    words = "--device cpu --only flat --eager --widths 16 --layers 1 --length 16 --batch 2"
    words += f" --rounds 1 --turn 0.01 --threads 1 --data {packed.path} --out {tmp_path / 'out'}"
    assert table_of(words, tmp_path / "out/training-cpu") == [OURS, REFERENCE]
    text = (tmp_path / "out/training-cpu.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert text in capsys.readouterr().out


@pytest.mark.gpu
def test_races_on_a_gpu(tmp_path):
    pytest.importorskip("accelerate")
    words = "--device cuda --widths 64 --layers 1 --length 32 --batch 8 --turn 0.01 --rounds 1"
    words += f" --only llama flat --eager --seconds 150 --out {tmp_path}"
    assert table_of(words, tmp_path / "training-cuda") == [OURS, TRAINER, OURS, REFERENCE]


def table_of(words, stem):
    """The contenders in the rows that the command writes; each has trained."""
    assert bench_training.main(words.split()) == 0
    with open(stem.with_suffix(".csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(not row["failed"] and float(row["tokens"]) > 0 for row in rows)
    return [row["contender"] for row in rows]
