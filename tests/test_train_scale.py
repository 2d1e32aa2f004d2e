"""Runs of two processes: the data, losses and files of one; and resuming on another number."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.train_cases import TINY, fit, pack_toy
from tokenizer.pack import Layout
from train.module import LanguageModule
from train.windows import Batch

ROOT = Path(__file__).parents[1]
FLAGS = "--precision 64-true --schedule.decay none --checkpoint_every 3 --batch.size 6"
FLAGS += " --model.context 40"
SHARED = "--trainer.devices 2 --trainer.strategy ddp"


@pytest.fixture(scope="module")
def data(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, whose pads differ in number from one device to the other."""
    layout = Layout("rows", 40, "left")
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "rows", 40, layout).path


def command(data: Path, run: Path, flags: str) -> list[str]:
    return ["fit", "--data", str(data), "--run", str(run), *TINY.split(), *flags.split()]


def torchrun(logs: Path, *commands: list[str] | str) -> str:
    """Runs commands in two processes, one after the other; returns what each says, in turns.

    Each process writes into files of its own: lines sent to one pipe may cut each other in two.
    """
    words = ["--standalone", "--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(logs)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *words),
            *(str(ROOT / "tests" / "scale_runs.py"), json.dumps(commands)),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    said = "".join(path.read_text() for path in sorted(logs.rglob("std*.log")))
    assert done.returncode == 0, done.stderr + said
    return said


def rows(run: Path, key: str) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row for line in lines if key in (row := json.loads(line))]


def assert_alike(one: Path, other: Path, key: str, tolerance: float = 1e-6) -> None:
    """Both runs have the same figures, up to the rounding of sums."""
    names = ("step", "tokens_seen", "loss", "gradient_norm", "lr", "val_loss", "val_tokens")
    ours, theirs = (
        [[row.get(name, 0) for name in names] for row in rows(r, key)] for r in (one, other)
    )
    assert len(ours) == len(theirs) > 0
    assert all(a == pytest.approx(b, rel=tolerance) for a, b in zip(ours, theirs, strict=True))
    last = [load_file(run / "models" / "step-000006" / "model.safetensors") for run in (one, other)]
    for name, tensor in last[0].items():
        torch.testing.assert_close(last[1][name], tensor, atol=10 * tolerance, rtol=tolerance)


def samples_seen(run: Path) -> int:
    content = torch.load(run / "checkpoints" / "step-000006.ckpt", weights_only=True)
    return content["PackedDataModule"]["samples_seen"]


def test_two_processes_train_as_one(data: Path, tmp_path: Path):
    one, two, grown, shrunk = (tmp_path / name for name in ("one", "two", "grown", "shrunk"))
    assert fit(data, one, *FLAGS.split()) == 0
    assert fit(data, grown, *FLAGS.split(), "--trainer.max_steps", "3") == 0
    said = torchrun(
        tmp_path / "logs",
        command(data, two, f"{FLAGS} {SHARED} --batch.micro 1"),
        command(data, grown, f"{FLAGS} {SHARED} --resume auto"),
        command(data, shrunk, f"{FLAGS} {SHARED} --trainer.max_steps 3"),
        command(data, tmp_path / "none", f"{FLAGS} {SHARED} --batch.micro 2"),
    )
    assert said.count("exit code 0") == 6
    assert said.count("exit code 2") == 2
    line = "--batch.size 6 is not a multiple of 2 windows on each of 2 devices; change --batch.size"
    assert f"{line}, --batch.micro or --trainer.devices" in said
    assert fit(data, shrunk, *FLAGS.split(), "--resume", "auto") == 0
    for run in (two, grown, shrunk):
        assert_alike(one, run, "loss")
        assert samples_seen(run) == 6 * 6
        assert said.count("step 2/6") == 1  # one of the two speaks; the others went from step 3
    assert_alike(one, two, "val_loss")
    assert {path.name for path in two.rglob("*")} == {path.name for path in one.rglob("*")}


def test_two_processes_decide_to_stop_at_a_line_of_progress_only(data: Path, tmp_path: Path):
    flags = f"{FLAGS} {SHARED} --log_every 4 --checkpoint_every 100"
    said = torchrun(
        tmp_path / "logs",
        "announce_decisions",
        command(data, tmp_path / "whole", flags),
        "terminate_one_at_step_2",
        command(data, tmp_path / "stopped", flags),
    )
    # Step 0 and the last step of a run decide whether its weights are good.
    steps = re.findall(r"decided at step (\d)", said)
    assert sorted(steps) == sorted(2 * [*"046", *"04", "4"])
    assert "Lightning asked" not in said
    assert said.count(f"exit code {128 + signal.SIGTERM}") == 1
    assert [path.name for path in (tmp_path / "stopped").rglob("*.ckpt")] == ["step-000004.ckpt"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_processes_compile_and_train_as_one(data: Path, tmp_path: Path):
    """`aot_eager` traces and cuts the graph as a GPU's compiler would, and needs no C++."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert fit(data, one, *FLAGS.split()) == 0
    said = torchrun(
        tmp_path / "logs",
        "compile_by_tracing",
        command(data, two, f"{FLAGS} {SHARED} --compile true --batch.micro 1"),
    )
    assert said.count("exit code 0") == 2
    assert said.count("compiled a graph") >= 2  # in either process
    assert_alike(one, two, "loss")
    assert_alike(one, two, "val_loss")


def test_a_slurm_job_is_left_to_its_script(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {
        "NTASKS": "1",
        "JOB_ID": "7",
        "JOB_NAME": "train",
        "PROCID": "0",
        "LOCALID": "0",
        "NODEID": "0",
        "NODELIST": "localhost",
        "NTASKS_PER_NODE": "1",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    original = LanguageModule.training_step

    def training_step(self: LanguageModule, batch: Batch, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patched:
        patched.setattr(LanguageModule, "training_step", training_step)
        assert fit(data, tmp_path / "run", *FLAGS.split()) == 128 + signal.SIGUSR1
    names = [path.name for path in (tmp_path / "run").rglob("*.ckpt")]
    assert names == ["step-000003.ckpt"]  # and none of Lightning's own
    assert fit(data, tmp_path / "run", *FLAGS.split(), "--resume", "auto") == 0
    assert samples_seen(tmp_path / "run") == 6 * 6
