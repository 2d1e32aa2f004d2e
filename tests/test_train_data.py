"""Batches and what resumes them, by way of whole runs."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from arch import load_model
from tests.train_cases import fit, pack_toy
from tokenizer import CorpusError, PackedData
from train import run
from train.data import TrainBatches
from train.module import LanguageModule
from train.records import Records
from train.settings import BatchSettings
from train.windows import Batch, Windows

CONTEXT = 16


@pytest.fixture(scope="module")
def packed(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> PackedData:
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4)


def weights(run: Path, step: int) -> bytes:
    return (run / "models" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def test_a_run_resumed_over_an_epochs_edge_is_the_same_to_the_bit(
    packed: PackedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = Windows(packed, "train", CONTEXT).count // 4 + 6
    flags = ["--trainer.max_steps", str(steps), "--batch.micro", "2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fit(packed.path, whole, *flags) == 0
    interrupt_after(steps - 9, monkeypatch)  # before the epoch's edge
    stopped = fit(packed.path, parts, *flags)
    assert stopped == 128 + signal.SIGTERM
    monkeypatch.undo()
    assert fit(packed.path, parts, *flags, "--resume", "auto") == 0
    assert weights(parts, steps) == weights(whole, steps)
    metas = [load_model(run / "models" / f"step-{steps:06d}").meta for run in (parts, whole)]
    assert metas[0]["tokens_seen"] == metas[1]["tokens_seen"] == steps * 4 * CONTEXT


def test_a_run_may_resume_in_parts_of_another_size(packed: PackedData, tmp_path: Path):
    double = ["--precision", "64-true", "--schedule.decay", "none", "--batch.size", "12"]
    double.append("--trainer.max_steps")
    for name, sizes in (("whole", [12]), ("parts", [6, 4, 12, 2])):
        for i, micro in enumerate(sizes):
            steps = str(8 if name == "whole" else 2 * (i + 1))
            more = ["--batch.micro", str(micro), "--resume", "auto"]
            assert fit(packed.path, tmp_path / name, *double, steps, *more) == 0
    whole, parts = (tmp_path / name / "models" / "step-000008" for name in ("whole", "parts"))
    assert load_model(parts).meta["tokens_seen"] == 8 * 12 * CONTEXT
    assert load_model(whole).meta["tokens_seen"] == 8 * 12 * CONTEXT
    ours = load_model(parts).model.state_dict()
    for name, tensor in load_model(whole).model.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-7, rtol=1e-5)


def interrupt_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LanguageModule.training_step

    def training_step(self: LanguageModule, batch: Batch, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == step - 1 and batch_idx % 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)


def test_data_that_vanishes_ends_the_stream_in_one_line(small_tokenizer: Tokenizer, tmp_path: Path):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 4)
    windows = Windows(data, "train", CONTEXT)
    (data.path / "train-00000.bin").unlink()
    with pytest.raises(CorpusError, match=r"^\S+train-00000\.bin: 0 bytes, \d+ expected .*again$"):
        next(iter(TrainBatches(windows, 0, BatchSettings(2))))


def test_a_lost_connection_is_reported_as_it_is(
    packed: PackedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """For example that of torch's store."""

    def add(self: Records, row: dict[str, Any]) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Records, "add", add)
    assert fit(packed.path, tmp_path / "run") == 2
    assert capsys.readouterr().err == "error: [Errno 104] Connection reset by peer\n"


def test_a_checkpoint_of_another_order_is_refused(
    packed: PackedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Of many windows, whose order was another in earlier versions; they recorded none."""
    assert fit(packed.path, tmp_path / "run") == 0
    monkeypatch.setattr(run, "MANY_WINDOWS", 1)
    more = ["--resume", "auto", "--trainer.max_steps", "8"]
    assert fit(packed.path, tmp_path / "run", *more) == 2
    error = capsys.readouterr().err
    assert "order is permutation, the checkpoint has None; give what" in error
    assert fit(packed.path, tmp_path / "new") == 0
    assert fit(packed.path, tmp_path / "new", *more) == 0
