"""Where one process of a run refuses, all of them end at once, with one line."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.train.cases import TINY, fit, losses, pack_toy
from tests.train.processes.scale_runs import in_two_processes
from train import RunError, read_recipe
from train.processes.together import PORT, _own_store, together
from train.run import Run
from train.settings import TrainerSettings

SHARED = "--trainer.devices 2 --trainer.strategy ddp"


@pytest.mark.slow
def test_a_refusal_of_the_first_ends_both(data, forked, tmp_path):
    """Only the first refuses a run that is there: the other would wait for it in a barrier."""
    run = tmp_path / "run"
    (run / "models").mkdir(parents=True)
    (run / "notes").write_text("another's")
    command = f"fit --data {data} --run {run} {TINY} {SHARED}".split()
    codes, said = in_two_processes(forked, [command], tmp_path, wait=30)
    assert said[0].count("error: ") == 1
    assert "exit code 2" in said[0]
    assert said[1].replace("exit code 2\nend of a command\n", "") == ""
    assert codes[1] == 2 or "exit code 2" in said[1]


@pytest.mark.slow
def test_processes_that_would_go_on_from_other_steps_are_refused(data, finished, forked, tmp_path):
    """As where a network's file system shows one an earlier state; figures were then wrong."""
    command = f"fit --data {data} --run {finished()} {TINY} {SHARED} --trainer.max_steps 8"
    given = ["show_the_second_an_earlier_state", [*command.split(), "--resume", "auto"]]
    codes, said = in_two_processes(forked, given, tmp_path, wait=30)
    assert "process 1 would go on from step 5, the first from step 6; wait" in said[1]
    assert "".join(said).count("error: ") == 1
    for code, text in zip(codes, said, strict=True):
        assert code == 2 or "exit code 2" in text


@pytest.fixture
def compared(data, tmp_path):
    """Has a process of a run, by its data and more flags, compared with the first of that run."""

    def make(packed, flags):
        words = [*TINY.split(), "--data", str(packed), "--run", str(tmp_path / "run")]
        return Run(read_recipe(*words, *flags.split())).saving

    def compare(flags, packed=data):
        sent = []
        answers = (lambda own: sent.append(own) or own, lambda _: sent[0])
        strategies = [SimpleNamespace(broadcast=answer) for answer in answers]
        trainers: Any = [
            SimpleNamespace(strategy=s, global_rank=n) for n, s in enumerate(strategies)
        ]
        make(data, "").setup(trainers[0], None, "fit")
        make(packed, flags).setup(trainers[1], None, "fit")

    return compare


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--seed 1 --optimizer.lr 1", "--seed: process 1 has 1, the first 0"),
        ("--optimizer.lr 0.1", "--optimizer.lr: process 1 has 0.1, the first 0.001"),
        ("--model.n_layers 1", "--model.n_layers"),
        ("--batch.micro 2", "--batch.micro"),
        ("--precision bf16-mixed", "--precision"),
    ],
)
def test_processes_with_other_settings_are_refused(compared, flags, said):
    """They trained together, and the model was saved as one of the first's settings."""
    with pytest.raises(RunError, match=f"^{said}"):
        compared(flags)


def test_processes_with_other_data_are_refused(compared, small_tokenizer, tmp_path):
    with pytest.raises(RunError, match=r"^--data: process 1 has data of hash"):
        compared("", pack_toy(small_tokenizer, tmp_path / "other", 5).path)


def test_what_a_machine_decides_may_differ_between_processes(compared, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")

    turns = iter(["auto", "bf16-mixed"])

    def choose(recipe):
        recipe.run.precision = next(turns)
        return "this processor multiplies bfloat16"

    compared("--checkpoint_activations true --compile false --loggers [csv] --recipe mine")
    monkeypatch.setattr("train.run.choose_arithmetic", choose)
    compared("")


@pytest.mark.slow
def test_a_second_process_with_another_seed_ends_both(data, forked, tmp_path):
    command = f"fit --data {data} --run {tmp_path / 'run'} {TINY} {SHARED}".split()
    given = ["give_the_second_another_seed", command]
    codes, said = in_two_processes(forked, given, tmp_path, wait=30)
    assert "--seed: process 1 has 1, the first 0" in said[1]
    assert "".join(said).count("error: ") == 1
    for code, text in zip(codes, said, strict=True):
        assert code == 2 or "exit code 2" in text


@pytest.mark.slow
def test_two_agents_of_torchrun_train_as_one_process(data, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = "--precision 64-true"
    assert fit(data, tmp_path / "one", *flags.split()) == 0
    launch = "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
    launch += f"--rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1 -m -- train fit "
    launch += f"--data {data} --run {tmp_path / 'two'} {TINY} {flags} "
    launch += "--trainer.num_nodes 2 --trainer.devices 1 --trainer.strategy ddp"
    words = [sys.executable, *launch.split()]
    agents = [subprocess.Popen(words, cwd=Path(__file__).parents[3]) for _ in range(2)]
    assert [agent.wait(200) for agent in agents] == [0, 0]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-12)


@pytest.fixture
def first_run(monkeypatch):
    """Has what comes be a process of this local rank, from the top of its script."""
    for name in (PORT, "TORCH_CPP_LOG_LEVEL"):  # which a parent sets
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("train.processes.together._Meeting.watch", lambda _: None)  # ends processes

    def begin(rank):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setattr("train.processes.together._runs", itertools.count())

    yield begin
    _own_store.cache_clear()


def test_a_child_may_meet_its_parent_in_a_later_run(first_run):
    """The first was complete in the parent, which then kept another store.

    The parent starts the child, which goes through its script from the top, in its second. Here it
    is a thread.
    """
    settings, met = TrainerSettings(devices=2), threading.Event()

    def child():
        with together(settings):
            pass
        with together(settings):
            met.set()

    first_run(0)
    with together(settings):
        pass
    other = threading.Thread(target=child, daemon=True)
    with together(settings):
        first_run(1)
        other.start()
        assert met.wait(10)
    other.join(10)
    assert not other.is_alive()


def test_who_is_ready_waits_for_the_last(first_run, monkeypatch):
    """The others left after ten minutes, and SLURM then ended the first, which still evaluated."""
    monkeypatch.setattr("train.processes.together.PATIENCE", 0)
    settings, ready = TrainerSettings(devices=2), threading.Event()

    def child():
        with together(settings):
            ready.set()

    other = threading.Thread(target=child, daemon=True)
    first_run(0)
    with together(settings):
        first_run(1)
        other.start()
        assert ready.wait(10)
        other.join(0.3)
        assert other.is_alive()
    other.join(10)
    assert not other.is_alive()


def lives(process: int) -> bool:
    """Whether a process has not ended; one that nobody waits for stays as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", "child"])
def test_a_killed_process_of_lightning_ends_the_other_with_one_line(data, tmp_path, victim):
    words = f"-m train fit --data {data} --run {tmp_path / 'run'} {TINY} {SHARED}"
    long = "--trainer.max_steps 100000 --log_every 20 --precision 32-true"
    command = [sys.executable, *words.split(), *long.split()]
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=log, stderr=log)
    end = time.monotonic() + 200
    while " 100/" not in (tmp_path / "log").read_text():
        assert time.monotonic() < end
        time.sleep(0.2)
    (child,) = map(int, Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split())
    os.kill({"parent": parent.pid, "child": child}[victim], signal.SIGKILL)
    assert parent.wait(60) in (2, -signal.SIGKILL)  # Lightning kills a parent, too
    while lives(child):
        assert time.monotonic() < end
        time.sleep(0.2)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert said.count("\nerror: ") == 1 or "terminated with code -9" in said
