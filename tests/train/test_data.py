"""Batches and what resumes them, by way of whole runs."""

import signal

import pytest
import torch

from arch import load_model
from tests.train.cases import fit, interrupt, pack_toy, weights
from tokenizer import CorpusError
from train import run
from train.data import TrainBatches, Windows
from train.log import Log
from train.settings import BatchSettings

CONTEXT = 16


def test_a_run_resumed_over_an_epochs_edge_is_the_same_to_the_bit(packed, tmp_path, at_step):
    steps = Windows(packed, "train", CONTEXT).count // 4 + 6
    flags = ["--trainer.max_steps", str(steps), "--batch.micro", "2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fit(packed.path, whole, *flags) == 0
    at_step(steps - 9, interrupt(signal.SIGTERM))  # before the epoch's edge
    assert fit(packed.path, parts, *flags) == 128 + signal.SIGTERM
    assert fit(packed.path, parts, *flags, "--resume", "auto") == 0
    assert weights(parts, steps) == weights(whole, steps)
    metas = [load_model(run / "models" / f"step-{steps:06d}").meta for run in (parts, whole)]
    assert metas[0]["tokens_seen"] == metas[1]["tokens_seen"] == steps * 4 * CONTEXT


def test_a_run_may_resume_in_parts_of_another_size(packed, tmp_path):
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


def test_data_that_vanishes_ends_the_stream_in_one_line(small_tokenizer, tmp_path):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 4)
    windows = Windows(data, "train", CONTEXT)
    (data.path / "train-00000.bin").unlink()
    with pytest.raises(CorpusError, match=r"^\S+train-00000\.bin: 0 bytes, \d+ expected .*again$"):
        next(iter(TrainBatches(windows, 0, BatchSettings(2))))


def test_a_lost_connection_is_reported_as_it_is(packed, tmp_path, monkeypatch, capsys):
    """For example that of torch's store."""

    def add(self, row):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Log, "add", add)
    assert fit(packed.path, tmp_path / "run") == 2
    assert capsys.readouterr().err == "error: [Errno 104] Connection reset by peer\n"


def test_a_checkpoint_of_another_order_is_refused(packed, finished, tmp_path, monkeypatch, capsys):
    """Of many windows, whose order was another in earlier versions; they recorded none."""
    old = finished()
    monkeypatch.setattr(run, "MANY_WINDOWS", 1)
    more = ["--resume", "auto", "--trainer.max_steps", "8"]
    assert fit(packed.path, old, *more) == 2
    error = capsys.readouterr().err
    assert "order is permutation, the checkpoint has None; give what" in error
    assert fit(packed.path, tmp_path / "new") == 0
    assert fit(packed.path, tmp_path / "new", *more) == 0
