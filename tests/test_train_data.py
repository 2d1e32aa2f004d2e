"""Batches that processes cut ahead, and orders that cost no memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from arch import load_model
from tests.train_cases import TINY, fit, pack_toy
from tokenizer import CorpusError, PackedData
from train import loader, order
from train.errors import RunError
from train.loader import TrainBatches
from train.module import LanguageModule
from train.order import Order
from train.records import Records
from train.windows import Batch, Windows

CONTEXT = 16


@pytest.fixture(scope="module")
def packed(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> PackedData:
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4)


def take(batches: TrainBatches, number: int) -> list[Batch]:
    stream = iter(batches)
    return [next(stream) for _ in range(number)]


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a[side], b[side]) for a, b in pairs for side in (0, 1))


def weights(run: Path, step: int) -> bytes:
    return (run / "models" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def test_workers_change_nothing_but_the_speed(packed: PackedData):
    windows = Windows(packed, "train", CONTEXT, seed=1)
    number = windows.count // 3 + 2  # over an epoch's edge
    here = take(TrainBatches(windows, 5, 3), number)
    assert same(here, [windows.batch(5 + 3 * i, 3) for i in range(number)])
    state = torch.get_rng_state()
    assert same(here, take(TrainBatches(windows, 5, 3, workers=2), number))
    assert torch.equal(state, torch.get_rng_state())


def test_a_run_resumed_with_workers_is_the_same_to_the_bit(
    packed: PackedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = Windows(packed, "train", CONTEXT).count // 4 + 6
    flags = ["--trainer.max_steps", str(steps), "--batch.micro", "2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fit(packed.path, whole, *flags) == 0
    interrupt_after(steps - 9, monkeypatch)  # before the epoch's edge
    stopped = fit(packed.path, parts, *flags, "--loader_workers", "0")
    assert stopped == 128 + signal.SIGTERM
    monkeypatch.undo()
    more = ["--loader_workers", "2", "--resume", "auto"]
    assert fit(packed.path, parts, *flags, *more) == 0
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


@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_vanishes_ends_the_stream_in_one_line(
    small_tokenizer: Tokenizer, tmp_path: Path, workers: int
):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 4)
    windows = Windows(data, "train", CONTEXT)
    (data.path / "train.bin").unlink()
    with pytest.raises(CorpusError, match=r"^\S+train\.bin: 0 bytes, \d+ expected .*again$"):
        take(TrainBatches(windows, 0, 2, workers=workers), 1)


def test_a_lost_connection_of_another_kind_is_not_blamed_on_workers(
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


@pytest.mark.parametrize("lost", [ConnectionResetError(104, "Connection reset"), EOFError()])
def test_a_worker_that_dies_while_it_hands_over_is_named(
    packed: PackedData, monkeypatch: pytest.MonkeyPatch, lost: Exception
):
    def handed_over(*_: Any, **__: Any) -> Iterator[None]:
        raise lost
        yield

    monkeypatch.setattr(loader, "DataLoader", handed_over)
    with pytest.raises(RunError, match=r"^--loader_workers: one died \(.*; out of memory"):
        take(TrainBatches(Windows(packed, "train", CONTEXT), 0, 2, workers=2), 1)


@pytest.fixture
def running(packed: PackedData, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with two workers, just after its first step."""
    flags = f"--trainer.max_steps 1000000 --loader_workers 2 --data {packed.path}"
    words = [*TINY.split(), *flags.split(), "--checkpoint_every", "1000000"]
    command = [sys.executable, "-m", "train", "fit", *words, "--run", str(tmp_path / "run")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step") and "left" in line:
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()  # or its pipe fills
        yield process
        process.kill()


@pytest.mark.slow
def test_a_run_outlives_a_signal_to_its_workers_by_a_step(
    running: subprocess.Popen[str], tmp_path: Path
):
    workers = children(running.pid)
    os.killpg(running.pid, signal.SIGTERM)  # as a scheduler does
    assert running.wait(60) == 128 + signal.SIGTERM
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    wait_for_the_end_of(workers)


@pytest.mark.slow
def test_workers_do_not_outlive_a_run_that_is_killed(running: subprocess.Popen[str]):
    workers = children(running.pid)
    running.kill()
    wait_for_the_end_of(workers)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told(running: subprocess.Popen[str]):
    first, *_ = workers = children(running.pid)
    os.kill(first, signal.SIGKILL)
    assert running.wait(60) == 2
    assert running.stderr is not None
    line = running.stderr.read()
    assert line.startswith("error: --loader_workers: one died (")
    assert line.count("\n") == 1
    wait_for_the_end_of(workers)


def wait_for_the_end_of(workers: list[int]) -> None:
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while left := [pid for pid in workers if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def children(process: int) -> list[int]:
    """The loader workers that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if parent == process and "spawn_main" in command:
            found.append(int(folder.name))
    return found


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_small_epoch_keeps_numpys_order():
    found = Order(1000, np.random.default_rng(3))[np.arange(1000)]
    assert found.tolist() == np.random.default_rng(3).permutation(1000).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 4097])
def test_a_computed_order_holds_every_window_once(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(order, "TABLE", 0)
    found = Order(count, np.random.default_rng(7))[np.arange(count)]
    assert sorted(found.tolist()) == list(range(count))


def test_a_computed_order_is_as_good_as_chance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(order, "TABLE", 0)
    count, epochs = 40, 1200
    orders = np.array(
        [Order(count, np.random.default_rng(e))[np.arange(count)] for e in range(epochs)]
    )
    for i, j in ((0, 1), (0, 39), (12, 13)):  # any two places, in any two orders of windows
        table = np.histogram2d(orders[:, i], orders[:, j], bins=(8, 8), range=[[0, count]] * 2)[0]
        # Five windows a bin; two places never hold the same one: 5 * 4 pairs on the diagonal.
        share = np.where(np.eye(8), 20, 25) / (count * (count - 1))
        expected = epochs * share
        chi = ((table - expected) ** 2 / expected).sum()
        assert chi < 63 + 5 * (2 * 63) ** 0.5
    steps = np.diff(orders, axis=1)
    assert abs((steps > 0).mean() - 0.5) < 0.015


def test_ten_billion_tokens_have_an_order_without_a_table():
    count = 10**10 // 512
    epoch = Order(count, np.random.default_rng(0))
    found = epoch[np.arange(count - 1000, count)]
    assert found.min() >= 0
    assert found.max() < count
    assert len(set(found.tolist())) == 1000
    assert sum(value.nbytes for value in vars(epoch).values() if hasattr(value, "nbytes")) < 1000
