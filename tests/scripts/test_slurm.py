"""The batch files of `scripts/slurm/`, on a cluster of two nodes that is started for them."""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.scripts.slurm_cluster import ROOT, WAIT, Cluster, missing_programs
from tests.train.cases import TINY, fit, losses, pack_toy, weights

MISSING = missing_programs()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)} here: install Debian's slurm-wlm and munge",
    ),
]
STEPS = 400
LONG = f"{TINY} --trainer.max_steps {STEPS} --checkpoint_every 100"


@pytest.fixture(scope="module")
def cluster():
    folder = Path(tempfile.mkdtemp(prefix="slurm"))
    started = Cluster(folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def data(small_tokenizer, tmp_path_factory):
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("slurm") / "toy", 40).path


@pytest.fixture(scope="module")
def batch_files(tmp_path_factory):
    """Those of the repository, for this cluster: one task a node, no GPUs, an array of three."""
    folder = tmp_path_factory.mktemp("batch")
    for name in ("fit.sh", "eval.sh"):
        text = (ROOT / "scripts/slurm" / name).read_text()
        text = re.sub("#SBATCH --gpus.*\n", "", text.replace("per-node=8", "per-node=1"))
        (folder / name).write_text(text.replace("--array=1-8", "--array=1-3"))
    return folder


@pytest.fixture(scope="module")
def train(cluster, batch_files, data):
    """Submits `fit.sh` for a run and returns the job; its log is beside the run."""

    def submit(run: Path, flags: str) -> int:
        words = f"--data {data} --run {run} {flags}".split()
        return cluster.submit(batch_files / "fit.sh", words, run.with_suffix(".log"))

    return submit


@pytest.fixture(scope="module")
def whole(cluster, train, tmp_path_factory):
    """A run on two nodes that nothing disturbs."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert cluster.wait(train(run, LONG)) == 0
    return run


def wait_for_step(run: Path, step: int) -> None:
    end, log = time.monotonic() + WAIT, run.with_suffix(".log")
    while not log.is_file() or f"step {step}/{STEPS}" not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_two_nodes_train_as_one_process(cluster, train, data, whole, tmp_path):
    assert fit(data, tmp_path / "one", *LONG.split()) == 0
    assert losses(whole) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    double = "--precision 64-true"
    assert fit(data, tmp_path / "double", *double.split()) == 0
    assert cluster.wait(train(tmp_path / "two", f"{TINY} {double}")) == 0
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "double"), rel=1e-12)


def test_a_refusal_ends_the_job_with_one_line(cluster, train, tmp_path):
    run = tmp_path / "run"
    (run / "models").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-000001.ckpt").write_text("damaged")
    assert cluster.wait(train(run, TINY)) == 2
    assert re.findall("^error: --resume", run.with_suffix(".log").read_text(), re.M) == [
        "error: --resume"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_job_and_the_next_goes_on(cluster, train, whole, tmp_path, rank):
    run = tmp_path / "run"
    job = train(run, LONG)
    wait_for_step(run, 250)
    os.kill(cluster.find_task(job, rank), signal.SIGKILL)
    assert cluster.wait(job) == 128 + signal.SIGKILL
    assert run.with_suffix(".log").read_text().count("\nerror: ") == 1
    assert cluster.wait(train(run, LONG)) == 0
    assert losses(run) == losses(whole)
    assert weights(run, STEPS) == weights(whole, STEPS)


def test_at_the_end_of_its_time_a_job_saves_and_starts_again(cluster, train, whole, tmp_path):
    run = tmp_path / "run"
    job = train(run, LONG)
    wait_for_step(run, 250)
    cluster.run(f"scancel --signal=USR1 {job}")  # as SLURM does it by --signal
    end = time.monotonic() + WAIT
    while "Restarts=1" not in cluster.run(f"scontrol show job {job}"):
        assert time.monotonic() < end
        time.sleep(0.5)
    assert "stopped at step" in run.with_suffix(".log").read_text()
    cluster.run(f"scontrol update JobId={job} StartTime=now")  # SLURM waits for two minutes
    assert cluster.wait(job) == 0
    assert losses(run) == losses(whole)
    assert weights(run, STEPS) == weights(whole, STEPS)


def test_the_jobs_of_an_array_write_the_rows_of_one_run(cluster, batch_files, whole, tmp_path):
    from eval.__main__ import main

    question = f"invert {whole}/models/step-000000 {whole} --corpus toy --count 3 --length 6"
    words = f"{question} --solvers sweep --layers all".split()
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    array = [*words, "--out", str(tmp_path / "many")]
    job = cluster.submit(batch_files / "eval.sh", array, tmp_path / "%a.log")
    assert cluster.wait(job) == 0
    many, one = (rows_in(tmp_path / name) for name in ("many", "one"))
    assert len(list((tmp_path / "many").glob("*.jsonl"))) == 3
    assert many == one


def rows_in(folder: Path) -> list[str]:
    """The rows of all files, in one order, without what the clock says."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())
    rows = [json.loads(line) for line in lines]
    return sorted(json.dumps({k: v for k, v in row.items() if k != "seconds"}) for row in rows)
