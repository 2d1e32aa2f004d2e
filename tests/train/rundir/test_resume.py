"""Runs that are interrupted, go on, or must not."""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch
import yaml

from arch import load_model
from tests.train.cases import TINY, fail, fit, interrupt, names, pack_toy, rows, weights
from train import read_recipe
from train.__main__ import main
from train.run import Run
from train.rundir.checkpoints import read_checkpoint
from train.steps.module import LanguageModule


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("flags", "number"),
    [
        (
            "--dropout 0.3 --batch.micro 2 --checkpoint_activations true --log_every 4",
            signal.SIGINT,
        ),
        # over an epoch's edge
        ("--batch.size 12 --batch.micro 6 --precision 64-true", signal.SIGTERM),
        ("", signal.SIGTERM),
        (
            "--optimizer.name muon --optimizer.muon_mixing true --schedule.decay wsd"
            " --log_every 100",
            signal.SIGTERM,
        ),
        ("--precision bf16-true", signal.SIGTERM),
    ],
)
def test_an_interrupted_run_goes_on_to_the_bit(data, tmp_path, at_step, flags, number, capsys):
    chosen = ["--trainer.max_steps", "12", "--save_steps", "[5]", *flags.split()]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    before = signal.getsignal(signal.SIGINT)
    assert fit(data, whole, *chosen) == 0
    at_step(7, interrupt(number))
    assert fit(data, parts, *chosen) == 128 + number
    assert "stopped at step 7 and saved; go on with --resume auto" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before  # ignored, in the background
    at_step(7, lambda loss: loss)
    assert names(parts / "checkpoints") == ["step-000005.ckpt", "step-000007.ckpt"]
    assert fit(data, parts, *chosen, "--resume", "auto") == 0
    assert "resumed" not in capsys.readouterr().out  # as nothing was changed
    assert names(parts / "models") == names(whole / "models")
    for name in names(whole / "models"):
        a, b = (run / "models" / name for run in (whole, parts))
        assert weights(whole, int(name[5:])) == weights(parts, int(name[5:]))
        metas = [{**load_model(path).meta, "name": "", "model_id": ""} for path in (a, b)]
        assert metas[0] == metas[1]
    assert rows(parts) == rows(whole)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_after_one_signal_another_ends_the_run_at_once(data, tmp_path, at_step, number):
    """SIGUSR2, by which LSF, Grid Engine and submitit announce the end, ended it unsaved."""
    handlers = []

    def act(loss):
        assert callable(signal.getsignal(number))  # or this process would end
        os.kill(os.getpid(), number)
        handlers.extend(map(signal.getsignal, (number, signal.SIGTERM, signal.SIGINT)))
        return loss

    at_step(3, act)
    assert fit(data, tmp_path / "run") == 128 + number
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler]


@pytest.mark.parametrize("flags", ["", "--lr 90 --validate_every 1 --early_stopping 1"])
def test_a_signal_while_a_run_ends_is_no_interruption(
    data, tmp_path, at_step, monkeypatch, flags, capsys
):
    """It ended with the signal's exit code, and said to go on with a run that is complete."""
    run, original = tmp_path / "run", LanguageModule.validation_step
    sent = []

    def validation_step(self, batch, batch_idx):
        if self.trainer.global_step and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        return original(self, batch, batch_idx)

    if flags:  # the first validation after that of step 0 is the last
        monkeypatch.setattr(LanguageModule, "validation_step", validation_step)
    else:
        at_step(6, interrupt(signal.SIGTERM))
    assert fit(data, run, *flags.split()) == 0
    assert "go on with" not in capsys.readouterr().out
    assert fit(data, run, *flags.split(), "--resume", "auto") == 0
    assert f"{run} is complete" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_is_saved(data, tmp_path):
    """It ended at once, and what it had learnt since the last checkpoint was lost."""
    run, (ours, theirs) = tmp_path / "run", pty.openpty()
    words = [sys.executable, "-m", "train", "fit", "--data", data, "--run", run, *TINY.split()]
    words += ["--trainer.max_steps", "1000000"]

    def own_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=own_terminal,
    ) as process:  # fmt: skip
        os.close(theirs)
        record = run / "metrics.jsonl"
        while process.poll() is None and not (record.is_file() and '"lr"' in record.read_text()):
            time.sleep(0.05)
        os.close(ours)
        assert process.wait(60) == 128 + signal.SIGHUP
    assert len(names(run / "checkpoints")) == 1


def test_a_killed_runs_later_figures_are_dropped_on_resume(data, tmp_path, at_step):
    run = tmp_path / "run"
    at_step(6, fail)
    with pytest.raises(ZeroDivisionError):
        fit(data, run, "--checkpoint_every", "3")
    assert rows(run)[-1]["step"] == 5
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    at_step(6, lambda loss: loss)
    assert fit(data, run, "--resume", "auto") == 0
    assert [row["step"] for row in rows(run)] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_a_complete_run_stays_as_it_is_and_a_longer_one_goes_on_from_it(
    data, finished, monkeypatch, capsys
):
    run = finished()
    strays = ["step-000004 copy.ckpt", "step-000008.ckpt.ckpt", "step-x.ckpt"]
    for name in strays:
        (run / "checkpoints" / name).write_bytes(b"no checkpoint")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fit(data, run, "--resume", "auto") == 0
    assert "is complete: 6 of 6 steps; raise --trainer.max_steps" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr("train.run.is_first", lambda: False)  # another process, which says nothing
        assert fit(data, run, "--resume", "auto") == 0
        assert capsys.readouterr().out == ""
    assert fit(data, run, "--resume", "auto", "--dropout", "0.5", "--log_every", "3") == 2
    said = f"error: --run {run}: it is complete and had dropout 0.0, now 0.5: 6 of 6 steps; raise"
    assert said in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 0
    assert load_model(run / "models" / "step-000008").meta["tokens_seen"] == 8 * 4 * 16
    assert names(run / "checkpoints") == sorted(["step-000006.ckpt", "step-000008.ckpt", *strays])


@pytest.mark.parametrize("flags", ["", "--lr 90 --validate_every 1 --early_stopping 1"])
def test_a_complete_run_without_checkpoints_stays_as_it_is(
    data, tmp_path, flags, monkeypatch, capsys
):
    run = tmp_path / "run"
    assert fit(data, run, *flags.split()) == 0
    shutil.rmtree(run / "checkpoints")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    capsys.readouterr()
    monkeypatch.setattr("train.run.use_machine", lambda: {"torch": "of tomorrow"})
    assert fit(data, run, *flags.split(), "--resume", "auto") == 0
    said = capsys.readouterr().out
    assert f"{run} is complete: its checkpoints are gone; choose another --run" in said
    assert fit(data, run, *flags.split(), "--resume", "auto", "--dropout", "0.5") == 2
    assert "it is complete and had dropout 0.0, now 0.5: its che" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_goes_on_with_the_optimisers_settings_that_it_is_given(data, tmp_path, optimizer):
    run, flags = tmp_path / "run", ["--optimizer.name", optimizer]
    assert fit(data, run, *flags) == 0
    more = ["--resume", "auto", "--trainer.max_steps", "8", "--optimizer.lr", "1e-12"]
    assert fit(data, run, *flags, *more) == 0
    a, b = (load_model(run / "models" / f"step-00000{step}").model for step in (6, 8))
    for old, new in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(new, old, atol=1e-9, rtol=0)


def test_a_new_run_may_start_from_another_ones_checkpoint_and_a_begun_one_not(
    data, tmp_path, whole, finished, refused, capsys
):
    other, steps = whole / "checkpoints" / "step-000006.ckpt", ["--trainer.max_steps", "8"]
    assert fit(data, tmp_path / "b", "--resume", other, *steps) == 0
    assert names(tmp_path / "b" / "models") == ["step-000008"]
    run = finished()
    capsys.readouterr()
    line = refused(fit(data, run, "--resume", other, *steps))
    assert f"--resume {other}: {run} has a last checkpoint of its own, step-000006.ckpt" in line


def test_resuming_another_model_other_data_or_optimiser_is_refused_by_name(
    data, small_tokenizer, tmp_path, whole, refused
):
    other = pack_toy(small_tokenizer, tmp_path / "other", 5).path
    flags = "--model.n_layers 1 --model.norm rmsnorm --optimizer.name muon --resume auto"
    flags += " --optimizer.muon_mixing true --seed 1"
    assert "exists already; go on with --resume auto, or choose" in refused(fit(data, whole))
    message = refused(fit(other, whole, *flags.split()))
    assert "model.n_layers is 1, the checkpoint has 2" in message
    assert "model.norm is rmsnorm, the checkpoint has layernorm" in message
    assert "optimizer.name is muon, the checkpoint has adamw" in message
    assert "optimizer.muon_mixing is True, the checkpoint has False" in message
    assert "seed is 1, the checkpoint has 0" in message
    assert "data_sha256 is " in message
    assert "d_model" not in message


@pytest.mark.parametrize(
    ("step", "act", "log_every", "message", "kept"),
    [
        (5, lambda loss: loss * torch.nan, 1, "the loss is nan at step 5; ", [2, 4]),
        (3, lambda loss: loss * torch.nan, 9, "the weights are not finite after step 4; ", [2]),
        # finite, but its slope is not
        (3, lambda loss: loss + (loss * 0).sqrt(), 1, "gradient's norm is nan at step 3; ", [2]),
    ],
)
def test_what_is_no_number_ends_the_run_at_the_last_good_checkpoint(
    data, tmp_path, at_step, capsys, step, act, log_every, message, kept
):
    run = tmp_path / "run"
    at_step(step, act)
    assert fit(data, run, "--checkpoint_every", "2", "--log_every", log_every) == 2
    last = run / "checkpoints" / f"step-{kept[-1]:06d}.ckpt"
    assert f"{message}the last good checkpoint is {last};" in capsys.readouterr().err
    assert names(run / "checkpoints") == [f"step-{each:06d}.ckpt" for each in kept]


def test_a_model_is_saved_before_it_is_validated(data, whole, tmp_path, monkeypatch, capsys):
    original = LanguageModule.validation_step

    def no_memory(self, batch, batch_idx):
        if self.trainer.global_step:
            raise torch.OutOfMemoryError
        return original(self, batch, batch_idx)

    run = tmp_path / "run"
    monkeypatch.setattr(LanguageModule, "validation_step", no_memory)
    assert fit(data, run) == 2
    message = "error: the device is out of memory after step 6; what was saved stays; lower --batch"
    assert capsys.readouterr().err.startswith(message)
    model, checkpoint = run / "models" / "step-000006", run / "checkpoints" / "step-000006.ckpt"
    assert checkpoint.exists()
    assert "val_loss" not in load_model(model).meta
    monkeypatch.undo()
    assert fit(data, run, "--resume", "auto") == 0  # the validation is made up for
    expected = load_model(whole / "models" / "step-000006").meta
    found = load_model(model).meta
    own = {name: found[name] for name in ("recipe", "model_id")}
    assert found == expected | {"name": "run"} | own
    assert rows(run, "val_loss")[-1] == rows(whole, "val_loss")[-1]
    assert fit(data, run, "--resume", "auto") == 0
    assert "is complete: 6 of 6 steps" in capsys.readouterr().out


def test_a_run_that_is_killed_while_it_validates_loses_no_step(data, whole, tmp_path, monkeypatch):
    """All steps since the last of `--checkpoint_every` were lost."""
    original = LanguageModule.validation_step

    def killed(self, batch, batch_idx):
        if self.trainer.global_step:
            raise ZeroDivisionError
        return original(self, batch, batch_idx)

    run = tmp_path / "run"
    monkeypatch.setattr(LanguageModule, "validation_step", killed)
    with pytest.raises(ZeroDivisionError):
        fit(data, run, "--validate_every", "4")
    assert names(run / "checkpoints") == ["step-000004.ckpt"]
    monkeypatch.undo()
    assert fit(data, run, "--validate_every", "4", "--resume", "auto") == 0
    assert rows(run, "loss") == rows(whole, "loss")
    assert weights(run) == weights(whole)


def test_the_config_of_a_copied_run_does_not_go_on_with_another(data, whole, finished, refused):
    """The run that it was copied from was trained on, or one was begun anew where it had been."""
    run, before = finished(), names(whole / "models")
    config = run / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    shutil.copytree(data, run / "data")  # as of a text, which is packed into its run
    words = ["fit", "--config", str(config), "--resume", "auto", "--trainer.max_steps"]
    for named in (whole, run.with_name("gone")):
        moved = settings | {"run": str(named), "data": str(named / "data")}
        config.write_text(yaml.safe_dump(moved))
        line = refused(main([*words, "7"]))
        assert f"--config {config}: names the run {named}" in line
        assert f"add --run {run}, " in line
        assert not run.with_name("gone").exists()
    assert names(whole / "models") == before
    assert main([*words, "7", "--run", str(run)]) == 0
    assert main([*words, "8"]) == 0  # the config names its own run now
    assert names(run / "models")[-2:] == ["step-000007", "step-000008"]


def test_a_begun_run_records_no_weights_that_it_does_not_start_from(data, whole, finished, capsys):
    run, source = finished(), whole / "models" / "step-000002"
    more = ["--resume", "auto", "--trainer.max_steps", "7", "--init_from", source]
    assert fit(data, run, *more) == 0
    said = capsys.readouterr().out
    assert f"--init_from {source} has no effect" in said
    assert "init_from null" not in said
    meta = load_model(run / "models" / "step-000007").meta
    assert "init_from" not in str(meta["history"])
    assert str(source) not in (run / "config.yaml").read_text()


def test_an_embedding_gets_no_rate_of_its_own_on_the_way(data, finished, refused):
    line = refused(fit(data, finished(), "--resume", "auto", "--optimizer.embedding_lr", "0.1"))
    assert "optimizer.embedding_lr is 0.1, the checkpoint has None" in line


def test_processes_agree_how_a_run_begins_that_was_killed_before_its_first_checkpoint(
    data, finished
):
    """The first may have opened the record anew by the time that another one reads it."""
    run, answers = finished(), []
    shutil.rmtree(run / "checkpoints")
    words = [*TINY.split(), "--data", str(data), "--run", str(run), "--resume", "auto"]
    for _ in range(2):
        answers.append(Run(read_recipe(*words)).saving.opens(6))
        (run / "metrics.jsonl").write_text("")
    assert answers == [True, True]


def test_a_text_is_not_packed_into_a_run_that_has_begun(finished, tmp_path, refused):
    run, text = finished(), tmp_path / "book.txt"
    text.write_text("\n\n".join(f"Tom has {n} cats." for n in range(400)))
    before = sorted(run.rglob("*"))
    assert f"--run {run}: exists already" in refused(fit(text, run))
    assert sorted(run.rglob("*")) == before


def test_a_run_that_another_process_trains_is_left_alone(data, tmp_path, capsys):
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
    assert [path.name for path in run.iterdir()] == [".lock"]
    assert fit(data, run, "--resume", "auto") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is mapped")
def test_a_checkpoint_is_mapped_and_not_copied(whole):
    path = whole / "checkpoints" / "step-000006.ckpt"
    tensors = read_checkpoint(path)["state_dict"].values()
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    for tensor in tensors:
        assert tensor.device == torch.device("cpu")
        assert any(int(a, 16) <= tensor.data_ptr() < int(b, 16) for a, b in places)


def test_a_run_may_resume_in_parts_of_another_size(data, tmp_path):
    double = ["--precision", "64-true", "--schedule.decay", "none", "--batch.size", "12"]
    double.append("--trainer.max_steps")
    for name, sizes in (("whole", [12]), ("parts", [6, 4, 12, 2])):
        for i, micro in enumerate(sizes):
            steps = str(8 if name == "whole" else 2 * (i + 1))
            more = ["--batch.micro", str(micro), "--resume", "auto"]
            assert fit(data, tmp_path / name, *double, steps, *more) == 0
    whole, parts = (tmp_path / name / "models" / "step-000008" for name in ("whole", "parts"))
    assert load_model(parts).meta["tokens_seen"] == 8 * 12 * 16
    assert load_model(whole).meta["tokens_seen"] == 8 * 12 * 16
    ours = load_model(parts).model.state_dict()
    for name, tensor in load_model(whole).model.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-7, rtol=1e-5)
