"""Runs that are interrupted, go on, or must not."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from arch import load_model
from tests.train.cases import fit, interrupt, names, pack_toy, rows, weights
from train.checkpoints import read_checkpoint
from train.log import Log
from train.module import LanguageModule

SPILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python 3.13 reports the end of a buffer whose write failed."""


def fail(loss):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ("", signal.SIGTERM),
        ("--batch.micro 2 --log_every 4", signal.SIGINT),
        ("--log_every 100", signal.SIGTERM),
        ("--batch.size 12 --batch.micro 6", signal.SIGTERM),  # over an epoch's edge
        ("--dropout 0.3 --batch.micro 2 --checkpoint_activations true", signal.SIGTERM),
        ("--optimizer.name muon --optimizer.muon_mixing true --schedule.decay wsd", signal.SIGTERM),
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
    assert names(parts / "checkpoints") == ["step-000007.ckpt"]
    assert fit(data, parts, *chosen, "--resume", "auto") == 0
    assert "resumed" not in capsys.readouterr().out  # as nothing was changed
    assert names(parts / "models") == names(whole / "models")
    for name in names(whole / "models"):
        a, b = (run / "models" / name for run in (whole, parts))
        assert weights(whole, int(name[5:])) == weights(parts, int(name[5:]))
        metas = [{**load_model(path).meta, "name": "", "model_id": ""} for path in (a, b)]
        assert metas[0] == metas[1]
    assert rows(parts) == rows(whole)


def test_after_one_signal_another_ends_the_run_at_once(data, tmp_path, at_step):
    handlers = []

    def act(loss):
        os.kill(os.getpid(), signal.SIGUSR1)
        handlers.extend(map(signal.getsignal, (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)))
        return loss

    at_step(3, act)
    assert fit(data, tmp_path / "run") == 128 + signal.SIGUSR1
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler]


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


def test_a_complete_run_stays_as_it_is_and_a_longer_one_goes_on_from_it(data, finished, capsys):
    run = finished()
    strays = ["step-000004 copy.ckpt", "step-000008.ckpt.ckpt", "step-x.ckpt"]
    for name in strays:
        (run / "checkpoints" / name).write_bytes(b"no checkpoint")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fit(data, run, "--resume", "auto") == 0
    assert "is complete: 6 of 6 steps; raise --trainer.max_steps" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 0
    assert load_model(run / "models" / "step-000008").meta["tokens_seen"] == 8 * 4 * 16
    assert names(run / "checkpoints") == sorted(["step-000006.ckpt", "step-000008.ckpt", *strays])


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


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: os.truncate(path, path.stat().st_size // 2), lambda p: os.truncate(p, 0)],
    ids=["flipped", "cut", "empty"],
)
def test_a_damaged_checkpoint_is_passed_over(data, tmp_path, at_step, damage, capsys):
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


def edit(change):
    """Writes a checkpoint that can be read with another content."""

    def act(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)

    return act


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


WEIGHT = "model.embedding.weight"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (replace_by_directory, "a directory"),
        (edit(lambda c: c.pop("optimizer_states")), "optimizer_states is missing"),
        (edit(lambda c: c["optimizer_states"][0]["state"].clear()), "no state of the optimiser"),
        (edit(lambda c: c["optimizer_states"][0]["state"][0].pop("exp_avg")), "of weight 0"),
        (edit(lambda c: c["optimizer_states"][0]["state"][0]["exp_avg"].fill_(torch.nan)), "avg"),
        (edit(lambda c: c["optimizer_states"][0]["param_groups"].pop()), "of other weights"),
        (edit(lambda c: c["state_dict"][WEIGHT].fill_(torch.nan)), f"{WEIGHT} is not finite"),
        (edit(lambda c: c["state_dict"][WEIGHT].resize_(3)), f"{WEIGHT} is not of the shape"),
        (edit(lambda c: c["state_dict"].pop(WEIGHT)), f"{WEIGHT} is missing"),
        (edit(lambda c: c["remnant"].clear()), "remnant/recipe is missing"),
        (edit(lambda c: c["remnant"]["history"].append(3)), "history"),
        (edit(lambda c: c.update(global_step="six")), "global_step is a str"),
        (edit(lambda c: c.clear()), "not a checkpoint of this project"),
    ],
)
def test_a_checkpoint_that_was_edited_is_passed_over(data, finished, damage, reason, capsys):
    run = finished()
    last = run / "checkpoints" / "step-000006.ckpt"
    damage(last)
    capsys.readouterr()
    assert fit(data, run, "--resume", last, "--trainer.max_steps", "8") == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 0
    said = capsys.readouterr().out
    assert f"{last.name} cannot be read (" in said
    assert reason in said
    assert "; from step 4, " in said


def test_a_broken_checkpoint_is_not_called_good(data, finished, at_step, capsys):
    run = finished()
    checkpoints = run / "checkpoints"
    at_step(8, lambda loss: loss * torch.nan)

    def spoil_and_fail(loss):
        edit(lambda c: c["state_dict"][WEIGHT].fill_(torch.nan))(checkpoints / "step-000006.ckpt")
        return loss * torch.nan

    at_step(7, spoil_and_fail)
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 2
    assert f"last good checkpoint is {checkpoints / 'step-000004.ckpt'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["5", "null", "[1]", '{"step": "a"}', '{"val_loss": 1}', "[" * 100_000, '"x"',
             '{"step": 4, "val_loss": "low"}']
)  # fmt: skip
def test_a_line_that_is_no_row_is_passed_over(data, finished, line):
    run = finished()
    before = rows(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "7") == 0
    assert rows(run)[: len(before)] == before


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


def test_bytes_that_changed_are_named_when_a_run_goes_on(data, tmp_path, finished, refused):
    run, copy = finished(), shutil.copytree(data, tmp_path / "copy")
    flip(copy / "train-00000.bin")
    line = refused(fit(copy, run, "--resume", "auto", "--trainer.max_steps", "8"))
    assert "train-00000.bin" in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
    ids=str,
)
@pytest.mark.parametrize("step", [1, 3])
def test_memory_of_a_cpu_that_runs_out_is_one_line(data, tmp_path, at_step, error, step, capsys):
    def act(loss):
        raise error

    at_step(step, act)
    assert fit(data, tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert f"out of memory after step {step - 1}" in said
    assert said.count("\n") == 1


def test_memory_that_runs_out_while_a_model_is_built_is_one_line(
    data, tmp_path, monkeypatch, refused
):
    def build(*_):
        raise MemoryError

    monkeypatch.setattr("train.run.LanguageModel", build)
    assert "out of memory" in refused(fit(data, tmp_path / "run"))


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


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file can grow above so many bytes: the nearest to a full disk that needs no root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@SPILLED
def test_a_disk_that_fills_up_leaves_the_last_checkpoint_to_go_on_from(data, tmp_path, capsys):
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


@SPILLED
@pytest.mark.parametrize("share", [0.002, 0.02, 0.05, 0.4, 0.97])
def test_wherever_the_disk_is_full_the_run_goes_on_later(data, whole, tmp_path, share, capsys):
    """config.yaml, metrics.jsonl and tokenizer.json, weights, checkpoint do not fit, in turn."""
    run, flags = tmp_path / "run", ["--checkpoint_every", "2", "--save_every", "1"]
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
    assert rows(run) == rows(whole)
    assert all(weights(run, step) == weights(whole, step) for step in range(7))


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


def test_a_lost_connection_is_reported_as_it_is(data, tmp_path, monkeypatch, capsys):
    """For example that of torch's store."""

    def add(self, row):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Log, "add", add)
    assert fit(data, tmp_path / "run") == 2
    assert capsys.readouterr().err == "error: [Errno 104] Connection reset by peer\n"
