"""What is damaged, or runs out while a run is on: checkpoints, records, memory, disks."""

import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from arch import load_model
from arch.mixers import TokenMixer
from tests.train.cases import TINY, fail, fit, names, rows, weights
from train.__main__ import main
from train.record.log import Log

SPILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python 3.13 reports the end of a buffer whose write failed."""


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.first(1)
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
    assert (f"--resume auto: no checkpoint in {run} can be read (step-000006.ckpt: ") in (
        said := capsys.readouterr().err
    )
    assert "; step-000002.ckpt: " in said
    assert "; start anew in another --run" in said


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


@pytest.mark.first(3)
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
    assert "; from step 5, " in said


def test_a_broken_checkpoint_is_not_called_good(data, finished, at_step, capsys):
    run = finished()
    checkpoints = run / "checkpoints"
    at_step(8, lambda loss: loss * torch.nan)

    def spoil_and_fail(loss):
        edit(lambda c: c["state_dict"][WEIGHT].fill_(torch.nan))(checkpoints / "step-000006.ckpt")
        return loss * torch.nan

    at_step(7, spoil_and_fail)
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "8") == 2
    assert f"last good checkpoint is {checkpoints / 'step-000005.ckpt'}" in capsys.readouterr().err


class Masked(TokenMixer):
    """Attention whose mask is part of its state, as in many a tutorial."""

    mask: Tensor

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.q_proj, self.o_proj = (nn.Linear(d_model, d_model) for _ in range(2))
        self.register_buffer("mask", torch.full((context, context), -torch.inf).triu(1))

    def forward(self, x):
        scores = self.q_proj(x) @ x.transpose(1, 2) + self.mask[: x.shape[1], : x.shape[1]]
        return self.o_proj(scores.softmax(-1) @ x)


def test_a_mask_of_infinite_entries_is_no_damage(data, tmp_path, at_step, capsys):
    run, flags = tmp_path / "run", ["--model.mixers", f"[{__name__}.Masked]"]
    assert fit(data, run, *flags, "--trainer.max_steps", "3") == 0
    at_step(6, lambda loss: loss * torch.nan)
    assert fit(data, run, *flags, "--resume", "auto", "--checkpoint_every", "2") == 2
    good = run / "checkpoints" / "step-000004.ckpt"
    assert f"last good checkpoint is {good}" in capsys.readouterr().err


NO_ROWS = ["5", "null", "[1]", '{"step": "a"}', '{"val_loss": 1}', "[" * 100_000, '"x"',
           '{"step": 4, "val_loss": "low"}']  # fmt: skip


def test_lines_that_are_no_rows_are_passed_over(data, finished):
    run = finished()
    before = rows(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for line in NO_ROWS)
    assert fit(data, run, "--resume", "auto", "--trainer.max_steps", "7") == 0
    assert rows(run)[: len(before)] == before


def test_bytes_that_changed_are_named_when_a_run_goes_on(data, tmp_path, finished, refused):
    run, copy = finished(), shutil.copytree(data, tmp_path / "copy")
    flip(copy / "train-00000.bin")
    line = refused(fit(copy, run, "--resume", "auto", "--trainer.max_steps", "8"))
    assert "train-00000.bin" in line


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 1),
        (RuntimeError("could not create a primitive"), 3),
        (RuntimeError("std::bad_alloc"), 3),
        (MemoryError(), 1),
    ],
    ids=str,
)
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


@pytest.mark.first(3)
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


@SPILLED
def test_a_disk_without_room_for_the_packed_text_is_named(tmp_path, refused, capsys):
    text, run = tmp_path / "book.txt", tmp_path / "run"
    text.write_text("\n\n".join(f"Tom has {n} cats and {n * 7} dogs." for n in range(3000)))
    with disk_of(40_000):
        assert main(["fit", "--data", str(text), "--run", str(run), *TINY.split()]) == 2
    assert f"--out {run / 'data'}: no file may become so large" in capsys.readouterr().err


def test_a_lost_connection_is_reported_as_it_is(data, tmp_path, monkeypatch, capsys):
    """For example that of torch's store."""

    def add(self, row):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Log, "add", add)
    assert fit(data, tmp_path / "run") == 2
    assert capsys.readouterr().err == "error: [Errno 104] Connection reset by peer\n"
