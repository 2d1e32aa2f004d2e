"""Runs that are interrupted, go on, or must not."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from tokenizers import Tokenizer
from torch import Tensor

from arch import load_model
from tests.train_cases import fit, pack_toy
from train import saving
from train.module import LanguageModule
from train.windows import Batch


@pytest.fixture(scope="module")
def data(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4).path


Act = Callable[[Tensor], Tensor]
AtStep = Callable[[int, Act], None]


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> AtStep:
    """Does something while a step is computed: `at_step(7, lambda loss: ...)`."""
    original = LanguageModule.training_step

    def patch(step: int, act: Act) -> None:
        def training_step(self: LanguageModule, batch: Batch, batch_idx: int) -> Tensor:
            loss = original(self, batch, batch_idx)
            first = batch_idx % self.trainer.accumulate_grad_batches == 0
            return act(loss) if first and self.trainer.global_step == step - 1 else loss

        monkeypatch.setattr(LanguageModule, "training_step", training_step)

    return patch


def interrupt(number: int) -> Act:
    def act(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), number)
        return loss

    return act


def fail(loss: Tensor) -> Tensor:
    raise ZeroDivisionError


def metrics(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ("", signal.SIGTERM),
        ("--batch.micro 2 --log_every 4", signal.SIGINT),
        ("--trainer.max_steps 60 --resume never", signal.SIGTERM),  # over an epoch's edge
    ],
)
def test_an_interrupted_run_goes_on_to_the_bit(
    data: Path,
    tmp_path: Path,
    at_step: AtStep,
    flags: str,
    number: int,
    capsys: pytest.CaptureFixture[str],
):
    chosen = ["--trainer.max_steps", "12", "--save_steps", "[5]", *flags.split()]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    before = signal.getsignal(signal.SIGINT)
    assert fit(data, whole, *chosen) == 0
    at_step(7, interrupt(number))
    assert fit(data, parts, *chosen) == 128 + number
    assert "stopped at step 7 and saved; go on with --resume auto" in capsys.readouterr().out
    assert (
        signal.getsignal(signal.SIGINT) is before
    )  # ignored, where the tests run in the background
    at_step(7, lambda loss: loss)
    assert names(parts / "checkpoints") == ["step-000007.ckpt"]
    assert fit(data, parts, *chosen, "--resume", "auto") == 0
    assert names(parts / "models") == names(whole / "models")
    for name in names(whole / "models"):
        a, b = (run / "models" / name for run in (whole, parts))
        assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
        assert {**load_model(a).meta, "name": ""} == {**load_model(b).meta, "name": ""}
    if "log_every" not in flags:
        assert metrics(parts) == metrics(whole)


def test_after_one_signal_another_ends_the_run_at_once(data: Path, tmp_path: Path, at_step: AtStep):
    handlers = []

    def act(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGUSR1)
        handlers.extend(map(signal.getsignal, (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)))
        return loss

    at_step(3, act)
    assert fit(data, tmp_path / "run") == 128 + signal.SIGUSR1
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler]


def test_files_of_other_names_are_no_checkpoints(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert fit(data, run, "--checkpoint_every", "2") == 0
    strays = ["step-000004 copy.ckpt", "step-000008.ckpt.ckpt", "step-x.ckpt"]
    for name in strays:
        (run / "checkpoints" / name).write_bytes(b"something else")
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 0
    assert names(run / "checkpoints") == sorted(["step-000006.ckpt", "step-000008.ckpt", *strays])


def test_a_killed_runs_later_figures_are_dropped_on_resume(
    data: Path, tmp_path: Path, at_step: AtStep
):
    run = tmp_path / "run"
    at_step(6, fail)
    with pytest.raises(ZeroDivisionError):
        fit(data, run, "--checkpoint_every", "3")
    assert metrics(run)[-1]["step"] == 5
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    at_step(6, lambda loss: loss)
    assert fit(data, run, "--resume", "auto") == 0
    assert [row["step"] for row in metrics(run)] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_auto_starts_where_there_is_nothing_to_go_on_from(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert fit(data, run, "--resume", "auto") == 0
    assert load_model(run / "models" / "step-000006").meta["step"] == 6


def test_a_complete_run_stays_as_it_is(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    assert fit(data, run) == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fit(data, run, "--resume", "auto") == 0
    assert "is complete: 6 of 6 steps; raise --trainer.max_steps" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_a_longer_run_goes_on_from_a_complete_one(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert fit(data, run) == 0
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 0
    assert load_model(run / "models" / "step-000008").meta["tokens_seen"] == 8 * 4 * 16


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_goes_on_with_the_optimisers_settings_that_it_is_given(
    data: Path, tmp_path: Path, optimizer: str
):
    run, flags = tmp_path / "run", ["--optimizer.name", optimizer]
    assert fit(data, run, *flags) == 0
    more = ["--resume", "auto", "--trainer.max_steps", "8", "--optimizer.lr", "1e-12"]
    assert fit(data, run, *flags, *more) == 0
    a, b = (load_model(run / "models" / f"step-00000{step}").model for step in (6, 8))
    for old, new in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(new, old, atol=1e-9, rtol=0)


def test_a_new_run_may_start_from_another_ones_checkpoint(data: Path, tmp_path: Path):
    assert fit(data, tmp_path / "a") == 0
    flags = ["--resume", tmp_path / "a" / "checkpoints" / "step-000006.ckpt"]
    assert fit(data, tmp_path / "b", *flags, "--trainer.max_steps", "8") == 0
    assert names(tmp_path / "b" / "models") == ["step-000008"]


def test_resuming_another_model_or_other_data_is_refused_by_name(
    data: Path, small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    assert fit(data, run) == 0
    other = pack_toy(small_tokenizer, tmp_path / "other", 5).path
    flags = ["--model.n_layers", "1", "--model.norm", "rmsnorm", "--resume", "auto"]
    assert fit(other, run, *flags) == 2
    message = capsys.readouterr().err
    assert "model.n_layers is 1, the checkpoint has 2" in message
    assert "model.norm is rmsnorm, the checkpoint has layernorm" in message
    assert "data_sha256 is " in message
    assert "d_model" not in message


def test_an_existing_run_is_not_overwritten(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert fit(data, tmp_path / "run") == 0
    assert fit(data, tmp_path / "run") == 2
    assert "exists already; go on with --resume auto, or choose" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run_at_the_last_good_checkpoint(
    data: Path, tmp_path: Path, at_step: AtStep, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    at_step(5, lambda loss: loss * torch.nan)
    assert fit(data, run, "--checkpoint_every", "2", "--log_every", "1") == 2
    message = capsys.readouterr().err
    assert re.search(r"the loss is nan at step 5; the last good checkpoint is \S+4\.ckpt;", message)
    assert names(run / "checkpoints") == ["step-000002.ckpt", "step-000004.ckpt"]


def test_weights_that_are_no_numbers_are_not_saved(
    data: Path, tmp_path: Path, at_step: AtStep, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    at_step(3, lambda loss: loss * torch.nan)
    assert fit(data, run, "--checkpoint_every", "2", "--log_every", "100") == 2
    assert "the weights are not finite after step 4; the last good" in capsys.readouterr().err
    assert names(run / "checkpoints") == ["step-000002.ckpt"]


def test_a_gradient_that_is_no_number_ends_the_run_too(
    data: Path, tmp_path: Path, at_step: AtStep, capsys: pytest.CaptureFixture[str]
):
    at_step(3, lambda loss: loss + (loss * 0).sqrt())  # finite, but its slope is not
    assert fit(data, tmp_path / "run", "--checkpoint_every", "2") == 2
    message = capsys.readouterr().err
    assert re.search(r"gradient's norm is nan at step 3; the last good check\S+ is \S+2\.", message)


def test_a_checkpoint_without_a_younger_setting_is_resumed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    assert fit(data, run, "--trainer.max_steps", "3") == 0
    path = run / "checkpoints" / "step-000003.ckpt"
    content = torch.load(path, weights_only=True)
    del content["remnant"]["model"]["embedding_std"], content["remnant"]["optimizer"]["muon_mixing"]
    torch.save(content, path)
    assert fit(data, run, "--resume", "auto", "--model.embedding_std", "0.1") == 2
    message = "model.embedding_std is 0.1, the checkpoint has None; give what the run was started"
    assert message in capsys.readouterr().err
    assert fit(data, run, "--resume", "auto") == 0


def test_a_jump_of_the_loss_ends_the_run_at_the_checkpoint_before_it(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    original = LanguageModule.training_step

    def training_step(self: LanguageModule, batch: Batch, batch_idx: int) -> Tensor:
        loss = original(self, batch, batch_idx)
        return loss + 5 if self.trainer.global_step >= 23 else loss

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    run, flags = tmp_path / "run", "--trainer.max_steps 60 --log_every 5 --checkpoint_every 3"
    assert fit(data, tmp_path / "warned", *flags.split()) == 0
    warnings = re.findall(r"step (\d+)  warning: the loss jumped: ", capsys.readouterr().out)
    assert warnings == ["35"]
    assert fit(data, run, *flags.split(), "--stop_on_spike", "2") == 2
    captured = capsys.readouterr()
    skipped = re.findall(r"step (\d+)  the loss is jumping: no checkpoint is taken", captured.out)
    assert skipped == ["24", "27", "30", "33"]
    pattern = (
        r"error: the loss jumped: \d+\.\d{3} over steps 26 to 35, \d\.\d{3} above its lowest "
        r"\(--stop_on_spike 2\); the last good checkpoint is (\S+); go on from it with "
        r"--resume \1, a lower --optimizer.lr and another --run\n"
    )
    found = re.fullmatch(pattern, captured.err)
    assert found
    assert found[1] == str(run / "checkpoints" / "step-000018.ckpt")
    assert names(run / "checkpoints") == ["step-000018.ckpt", "step-000021.ckpt"]
    more = ["--resume", found[1], "--stop_on_spike", "0", "--trainer.max_steps", "40"]
    assert fit(data, tmp_path / "again", *more) == 0


def test_a_model_is_saved_before_it_is_validated(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    original = saving.validation_loss

    def no_memory(trainer: Trainer, module: LanguageModule) -> tuple[float, int]:
        if trainer.global_step:
            raise torch.OutOfMemoryError
        return original(trainer, module)

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert fit(data, whole) == 0
    monkeypatch.setattr(saving, "validation_loss", no_memory)
    assert fit(data, run) == 2
    message = "error: the device is out of memory after step 6; what was saved stays; lower --batch"
    assert capsys.readouterr().err.startswith(message)
    model, checkpoint = run / "models" / "step-000006", run / "checkpoints" / "step-000006.ckpt"
    assert checkpoint.exists()
    assert "val_loss" not in load_model(model).meta
    monkeypatch.undo()
    assert fit(data, run, "--resume", "auto") == 0  # the validation is made up for
    expected = load_model(whole / "models" / "step-000006").meta
    assert load_model(model).meta == expected | {"name": "run"}
    assert metrics(run) == metrics(whole)
    assert fit(data, run, "--resume", "auto") == 0
    assert "is complete: 6 of 6 steps" in capsys.readouterr().out


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_a_damaged_checkpoint_is_passed_over(
    data: Path,
    tmp_path: Path,
    at_step: AtStep,
    damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
):
    run = tmp_path / "run"
    at_step(6, fail)
    with pytest.raises(ZeroDivisionError):
        fit(data, run, "--checkpoint_every", "2")
    at_step(6, lambda loss: loss)
    damage(run / "checkpoints" / "step-000004.ckpt")
    capsys.readouterr()
    assert fit(data, run, "--resume", "auto") == 0
    shown = capsys.readouterr().out
    pattern = r"step-000004.ckpt cannot be read \(.*\) and is now called step-000004.unreadable; go"
    assert re.match(pattern, shown)
    assert "; from step 2, " in shown
    kept = ["step-000002.ckpt", "step-000004.unreadable", "step-000006.ckpt"]
    assert names(run / "checkpoints") == kept
    for path in (run / "checkpoints").glob("*.ckpt"):
        damage(path)
    assert fit(data, run, "--resume", "auto") == 2
    assert (
        f"--resume auto: no checkpoint in {run} can be read (step-000006.ckpt, step-000002.ckpt); "
        "start anew in another --run"
    ) in capsys.readouterr().err


def test_a_run_that_another_process_trains_is_left_alone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    run.mkdir()
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX)"
    words = [sys.executable, "-c", f"{code}; print(flush=True); input()", str(run / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        assert fit(data, run, "--resume", "auto") == 2
        other.communicate(b"\n")
    assert f"--run {run}: another process is training it; wait" in capsys.readouterr().err
    assert names(run) == [".lock"]
    assert fit(data, run, "--resume", "auto") == 0


def test_a_run_with_checkpoints_takes_no_other_runs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("a", "b"):
        assert fit(data, tmp_path / name) == 0
    other = tmp_path / "a" / "checkpoints" / "step-000006.ckpt"
    assert fit(data, tmp_path / "b", "--resume", other, "--trainer.max_steps", "8") == 2
    line = f"--resume {other}: {tmp_path / 'b'} has a last checkpoint of its own, step-000006.ckpt"
    assert line in capsys.readouterr().err


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file can grow above so many bytes: the nearest to a full disk that needs no root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_to_go_on_from(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    assert fit(data, run, "--trainer.max_steps", "3") == 0
    weights = (run / "models" / "step-000003" / "model.safetensors").stat().st_size
    checkpoint = (run / "checkpoints" / "step-000003.ckpt").stat().st_size
    more = ["--resume", "auto", "--trainer.max_steps", "6"]
    for limit, expected in ((weights // 2, "step-000006: cannot"), (checkpoint // 2, "6.ckpt: ca")):
        with disk_of(limit):
            assert fit(data, run, *more) == 2
        message = capsys.readouterr().err
        assert f"{expected}" in message
        assert "the last checkpoint is step-000003.ckpt; mend that" in message
        assert not list(run.rglob("*.tmp"))
        assert names(run / "checkpoints") == ["step-000003.ckpt"]
    assert fit(data, run, *more) == 0
    assert load_model(run / "models" / "step-000006").meta["step"] == 6


@pytest.mark.parametrize("share", [0.002, 0.02, 0.05, 0.4, 0.97])
def test_wherever_the_disk_is_full_the_run_goes_on_later(
    data: Path, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
):
    """config.yaml, metrics.jsonl and tokenizer.json, weights, checkpoint do not fit, in turn."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    flags = ["--checkpoint_every", "2", "--save_every", "1"]
    assert fit(data, whole, *flags) == 0
    largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    with disk_of(int(share * largest)):
        assert fit(data, run, *flags, "--resume", "auto") == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert "cannot be saved (File too large)" in message or "cannot be written (File" in message
    for path in (run / "models").glob("*"):
        load_model(path)
    assert not list(run.rglob("*.tmp"))
    assert fit(data, run, *flags, "--resume", "auto") == 0
    assert metrics(run) == metrics(whole)
    for name in names(whole / "models"):
        a, b = (each / "models" / name / "model.safetensors" for each in (whole, run))
        assert a.read_bytes() == b.read_bytes()
