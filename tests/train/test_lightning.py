"""What a user of Lightning does with a module, a trainer and callbacks works here, too."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ThroughputMonitor

import train
from arch import load_model
from tests.train.cases import TINY, fit, rows
from train import read_recipe
from train.record import progress
from train.run import Run
from train.settings import RunError, ScheduleSettings
from train.steps import budget
from train.steps.module import LanguageModule


@pytest.fixture
def make(data, tmp_path):
    """A run that has not begun, by more flags."""
    words = [*TINY.split(), "--data", str(data), "--run", str(tmp_path / "run")]
    return lambda flags="": Run(read_recipe(*words, *flags.split()))


class Seen(Callback):
    """What Lightning has logged at the end of every step."""

    def __init__(self):
        self.steps = []

    def on_train_batch_end(self, trainer, *_):
        self.steps.append({**trainer.callback_metrics})


def test_callbacks_of_others_find_the_figures(make, data, tmp_path):
    run, seen = make("--loggers [csv] --trainer.max_steps 8 --validate_every 2"), Seen()
    stop = EarlyStopping("val_loss", patience=1, min_delta=100, check_on_train_epoch_end=False)
    own = ModelCheckpoint(tmp_path / "own", "{val_loss:.2f}", "val_loss")
    speed = ThroughputMonitor(lambda batch: len(batch[0]))
    run.trainer.callbacks += [seen, stop, own, speed]
    run.fit()
    names = {"loss", "bits_per_byte", "lr", "gradient_norm", "tokens_seen", "tokens_per_second"}
    assert names | {"val_loss", "val_bits_per_byte"} <= seen.steps[-1].keys()
    recorded = {row["step"]: row for row in rows(run.directory.path, "loss")}
    for step, figures in enumerate(seen.steps, 1):
        assert figures["loss"] == pytest.approx(recorded[step]["loss"])
    assert run.trainer.global_step == 4  # the second validation of `fit` stopped it
    assert load_model(tmp_path / "run/models/step-000004").meta["val_loss"] > 0
    assert own.best_model_path
    text = (tmp_path / "run/csv/version_0/metrics.csv").read_text()
    assert "train/batches" in text
    assert "lr-" not in text  # `lr` is the one name of the rate


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own use of torch
def test_a_trainer_validates_a_module_that_a_checkpoint_alone_gives(make, whole):
    path = whole / "checkpoints" / "step-000006.ckpt"
    loaded = LanguageModule.load_from_checkpoint(path, weights_only=True)
    saved = load_model(whole / "models" / "step-000006")
    for name, tensor in saved.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert loaded.hparams["optimizer"]["lr"] == loaded.optimizer_settings.lr == 1e-3
    run = make()
    (figures,) = run.trainer.validate(loaded, datamodule=run.datamodule, verbose=False)
    assert figures["val_loss"] == pytest.approx(saved.meta["val_loss"])
    assert not run.directory.path.exists()


def test_a_run_is_fitted_once_and_by_nobody_else_meanwhile(make):
    """The trained model was saved as that of step 0 and the record emptied, without a word."""
    first, others = make(), [make(), make("--resume auto --trainer.max_steps 8")]
    assert first.fit() is None
    files = [path for path in first.directory.path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    for run in (first, *others):
        with pytest.raises(RunError, match=r"^--run \S+run: "):
            run.fit()
    assert {path: path.read_bytes() for path in files} == before
    make("--resume auto --trainer.max_steps 8").fit()
    assert rows(first.directory.path)[-1]["step"] == 8


def test_a_notebook_trains_on_one_device(make, monkeypatch):
    """Lightning forked it: rows were written twice, and a GPU failed when the run had begun."""
    connector = "lightning.pytorch.trainer.connectors.accelerator_connector"
    monkeypatch.setattr(f"{connector}._IS_INTERACTIVE", True)
    with pytest.raises(RunError, match=r"--trainer.devices 2: a notebook"):
        make("--trainer.devices 2")
    make("--trainer.devices 1")


def test_no_private_attribute_of_another_object_is_written():
    for file in Path(train.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own or not node.attr.startswith("_"), f"{file}: line {node.lineno}"


@pytest.fixture
def clock(monkeypatch):
    """A clock on which a step takes as many seconds as `clock(function of its number)` says."""
    now, original = [0.0], LanguageModule.training_step

    def set_seconds(seconds):
        def training_step(self, batch, batch_idx):
            now[0] += seconds(self.trainer.global_step)
            return original(self, batch, batch_idx)

        monkeypatch.setattr(LanguageModule, "training_step", training_step)
        for module in (progress, budget):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        return now

    return set_seconds


BUDGET = "--log_every 5 --schedule.decay linear --schedule.floor 0.1 --checkpoint_every 10"


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (lambda step: 10.0 if step == 0 else 0.5, 41),  # the first compiles
        (lambda step: 1.0 if step < 16 else 2.0, 23),  # another process took a core
    ],
)
def test_a_budget_of_minutes_ends_the_schedule_on_time(data, tmp_path, clock, seconds, steps):
    now = clock(seconds)
    assert fit(data, tmp_path / "run", *BUDGET.split(), "--minutes", "0.5") == 0
    last = rows(tmp_path / "run", "loss")[-1]
    assert last["step"] == pytest.approx(steps, abs=2)
    assert now[0] == pytest.approx(30, abs=2)
    assert last["lr"] == pytest.approx(1e-3 * (0.1 + 0.9 / (last["step"] - 2)))
    meta = load_model(tmp_path / "run" / "models" / f"step-{last['step']:06d}").meta
    assert meta["recipe"]["minutes"] == 0.5


def test_within_minutes_the_warm_up_is_a_tenth(data, tmp_path, clock, capsys):
    clock(lambda step: 1.0)
    flags = "--minutes 1 --schedule.warmup_steps 500 --schedule.decay linear --schedule.floor 0"
    assert fit(data, tmp_path / "run", *flags.split()) == 0
    rates = {row["step"]: row["lr"] for row in rows(tmp_path / "run", "loss")}
    assert max(rates, key=lambda step: rates[step]) == pytest.approx(7, abs=1)
    assert max(rates.values()) == pytest.approx(1e-3)
    assert rates[max(rates)] == pytest.approx(1e-3 / 54, rel=0.1)
    assert "1 minutes are about 60 steps" in capsys.readouterr().out


def test_a_budget_goes_on_where_it_was_and_is_complete_in_the_end(data, tmp_path, clock, capsys):
    now, flags = clock(lambda step: 1.0), [*BUDGET.split(), "--resume", "auto"]
    assert fit(data, tmp_path / "run", *flags, "--minutes", "0.5") == 0
    assert now[0] == pytest.approx(30, abs=2)
    assert fit(data, tmp_path / "run", *flags, "--minutes", "0.5") == 0
    assert "raise --minutes to go on" in capsys.readouterr().out
    assert fit(data, tmp_path / "run", *flags, "--minutes", "1") == 0
    assert now[0] == pytest.approx(60, abs=4)
    assert "resumed at step 30 with minutes 0.5 -> 1.0" in capsys.readouterr().out
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert json.dumps(config["minutes"]) == "1.0"


def test_a_budget_is_spent_at_the_last_step(data, tmp_path, clock, monkeypatch, capsys):
    """With long validations before, another step fitted: the same command trained it."""
    now, validate = clock(lambda step: 1.0), LanguageModule.on_validation_epoch_start

    def slow(self):
        now[0] += 10
        validate(self)

    monkeypatch.setattr(LanguageModule, "on_validation_epoch_start", slow)
    flags = [*BUDGET.split(), "--minutes", "0.5", "--validate_every", "10", "--resume", "auto"]
    assert fit(data, tmp_path / "run", *flags) == 0
    assert "is complete" not in capsys.readouterr().out
    assert fit(data, tmp_path / "run", *flags) == 0
    assert f"{tmp_path}/run is complete" in capsys.readouterr().out


@pytest.mark.parametrize("pace", [None, 1.2])
def test_a_budget_that_is_spent_has_no_step(pace):
    spent = {"seconds": 60.0, "pace": pace}
    budgets = [
        budget.TimeBudget(minutes, 10, ScheduleSettings(), (1, 1), spent, print)
        for minutes in (1, 2)
    ]
    assert budgets[0].total(100, 1000) == 100
    assert budgets[1].total(100, 1000) > 100


def test_a_run_of_steps_goes_on_for_minutes(data, tmp_path, clock):
    run, flags = tmp_path / "run", ["--schedule.warmup_steps", "0", "--resume", "auto"]
    clock(lambda step: 5.0)
    assert fit(data, run, *flags) == 0
    assert fit(data, run, *flags, "--minutes", "1") == 0
    assert rows(run, "loss")[-1]["step"] == pytest.approx(6 + 12, abs=1)


def test_a_resumed_run_does_not_pay_for_compiling_again(data, tmp_path, clock):
    run, compiling = tmp_path / "run", []
    clock(lambda step: compiling.pop() if compiling else 1.0)
    for minutes, steps in (("0.5", 11), ("1", 41)):
        compiling.append(20.0)
        assert fit(data, run, *BUDGET.split(), "--resume", "auto", "--minutes", minutes) == 0
        assert rows(run, "loss")[-1]["step"] == pytest.approx(steps, abs=2)
