"""Runs of two processes: the data, losses and files of one; and resuming on another number."""

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from tests.train.cases import TINY, fit, interrupt, losses, pack_toy, rows, weights
from tests.train.processes import scale_runs
from tests.train.processes.scale_runs import in_two_processes
from tests.train.recorded import THREE, flags, on_record
from tokenizer.pack import Layout

FLAGS = "--precision 64-true --schedule.decay none --checkpoint_every 3 --batch.size 6"
FLAGS += " --model.context 40"
SHARED = "--trainer.devices 2 --trainer.strategy ddp"
Said = dict[str, str]
"""What both processes said, by the run."""


@pytest.fixture(scope="module")
def data(small_tokenizer, tmp_path_factory):
    """Rows, whose pads differ in number from one device to the other."""
    layout = Layout("rows", 40, "left")
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "rows", 40, layout).path


def command(data: Path, run: Path, flags: str) -> list[str]:
    return f"fit --data {data} --run {run} {TINY} {FLAGS} {flags}".split()


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Runs of one process: `one`, and the first half of `grown`."""
    folder = tmp_path_factory.mktemp("runs")
    assert fit(data, folder / "one", *FLAGS.split()) == 0
    assert fit(data, folder / "grown", *FLAGS.split(), "--trainer.max_steps", "3") == 0
    return folder


def run_in_two(forked: Any, folder: Path, steps: Sequence[str | tuple[str, list[str]]]) -> Said:
    """Runs command lines, and preparations, in two processes, which start once for all."""
    commands = [step if isinstance(step, str) else step[1] for step in steps]
    codes, logs = in_two_processes(forked, commands, folder, wait=300)
    assert codes == [0, 0], "\n".join(logs)
    names = [step[0] for step in steps if not isinstance(step, str)]
    parts = [re.split(r"(?<=\nend of a command\n)", log)[:-1] for log in logs]
    return {name: "".join(of) for name, *of in zip(names, *parts, strict=True)}


@pytest.fixture(scope="module")
def said(data, folder, forked):
    """What two processes said, by the run."""
    flags = {
        "two": "--batch.micro 1",
        "grown": "--resume auto",
        "shrunk": "--trainer.max_steps 3",
        "none": "--batch.micro 2",
        "idle": f"--model.mixers [{scale_runs.__name__}.Idle]",
    }
    steps = [
        (name, command(data, folder / name, f"{SHARED} {more}")) for name, more in flags.items()
    ]
    return run_in_two(forked, folder, steps)


@pytest.fixture(scope="module")
def more_said(data, places, folder, forked):
    """The same of runs that few edits change."""
    rare = f"{SHARED} --log_every 4 --checkpoint_every 100"
    recorded = [
        f"fit --data {places[name]} --run {folder / name} {' '.join(flags(name))} {SHARED}".split()
        for name in THREE
    ]
    compiled = f"{SHARED} --compile true --batch.micro 1"
    steps = [
        "interrupt_recorded",
        *zip(THREE, recorded, strict=True),
        "compile_by_tracing",
        ("compiled", command(data, folder / "compiled", compiled)),
        "announce_decisions",
        ("decided", command(data, folder / "decided", rare)),
        "terminate_one_at_step_2",
        ("stopped", command(data, folder / "stopped", rare)),
    ]
    return run_in_two(forked, folder, steps)


def assert_alike(one: Path, other: Path, key: str, tolerance: float = 1e-6) -> None:
    """Both runs have the same figures, up to the rounding of sums."""
    names = ("step", "tokens_seen", "loss", "gradient_norm", "lr", "val_loss", "val_tokens")
    ours, theirs = (
        [[row.get(name, 0) for name in names] for row in rows(r, key)] for r in (one, other)
    )
    assert len(ours) == len(theirs) > 0
    assert all(a == pytest.approx(b, rel=tolerance) for a, b in zip(ours, theirs, strict=True))
    last = [load(weights(run)) for run in (one, other)]
    torch.testing.assert_close(last[1], last[0], atol=10 * tolerance, rtol=tolerance)


def samples_seen(run: Path) -> int:
    content = torch.load(run / "checkpoints" / "step-000006.ckpt", weights_only=True)
    return content["PackedDataModule"]["samples_seen"]


@pytest.mark.slow
def test_two_processes_train_as_one(data, folder, said):
    for name in ("two", "grown", "shrunk", "idle"):
        assert said[name].count("exit code 0") == 2
    assert said["none"].count("exit code 2") == 2
    line = "--batch.size 6 is not a multiple of 2 windows on each of 2 devices; change --batch.size"
    assert f"{line}, --batch.micro or --trainer.devices" in said["none"]
    assert fit(data, folder / "shrunk", *FLAGS.split(), "--resume", "auto") == 0
    for name in ("two", "grown", "shrunk"):
        assert_alike(folder / "one", folder / name, "loss")
        assert samples_seen(folder / name) == 6 * 6
    assert said["two"].count("step 2/6") == 1  # one of the two speaks
    assert_alike(folder / "one", folder / "two", "val_loss")
    files = [{path.name for path in (folder / name).rglob("*")} for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.usefixtures("more_said")
@pytest.mark.parametrize("name", THREE)
def test_two_processes_have_the_losses_on_record(folder, name):
    assert losses(folder / name) == on_record(name)


@pytest.mark.slow
def test_two_processes_decide_to_stop_at_a_line_of_progress_only(folder, more_said):
    # Step 0 and the last step of a run decide whether its weights are good.
    for name, expected in (("decided", "046"), ("stopped", "044")):
        assert sorted(re.findall(r"decided at step (\d)", more_said[name])) == sorted(2 * expected)
        assert "Lightning asked" not in more_said[name]
    assert more_said["stopped"].count(f"exit code {128 + signal.SIGTERM}") == 1
    assert [path.name for path in (folder / "stopped").rglob("*.ckpt")] == ["step-000004.ckpt"]


@pytest.mark.slow
def test_two_processes_compile_and_train_as_one(folder, more_said):
    """`aot_eager` traces and cuts the graph as a GPU's compiler would, and needs no C++."""
    assert more_said["compiled"].count("exit code 0") == 2
    assert more_said["compiled"].count("compiled a graph") >= 2  # in either process
    assert_alike(folder / "one", folder / "compiled", "loss")
    assert_alike(folder / "one", folder / "compiled", "val_loss")


@pytest.mark.slow
def test_torchrun_starts_two_processes(data, tmp_path):
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m -- train"
    words = [*launch.split(), *command(data, tmp_path / "run", SHARED)]
    done = subprocess.run([sys.executable, *words], cwd=Path(__file__).parents[3])
    assert done.returncode == 0
    assert samples_seen(tmp_path / "run") == 6 * 6


def test_a_slurm_job_is_left_to_its_script(data, tmp_path, monkeypatch, at_step):
    job = {"NTASKS": 1, "JOB_ID": 7, "JOB_NAME": "train", "PROCID": 0, "LOCALID": 0, "NODEID": 0}
    job |= {"NODELIST": "localhost", "NTASKS_PER_NODE": 1}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    at_step(3, interrupt(signal.SIGUSR1))
    assert fit(data, tmp_path / "run", *FLAGS.split()) == 128 + signal.SIGUSR1
    names = [path.name for path in (tmp_path / "run").rglob("*.ckpt")]
    assert names == ["step-000003.ckpt"]  # and none of Lightning's own
    assert fit(data, tmp_path / "run", *FLAGS.split(), "--resume", "auto") == 0
    assert samples_seen(tmp_path / "run") == 6 * 6
