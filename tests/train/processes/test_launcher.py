"""Variables of SLURM, torchrun and others, from a job around the shell: followed, or one line."""

import subprocess
from pathlib import Path

import pytest

from tests.train.cases import TINY, fit
from train import read_recipe
from train.__main__ import main
from train.commands import prepare
from train.commands.plan import Needs
from train.processes.launcher import check_launcher, is_first
from train.processes.together import PORT
from train.run import Run
from train.settings import RunError, TrainerSettings

LAUNCHED = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "GROUP_RANK": "0"}


@pytest.fixture
def variables(monkeypatch):
    def use(words):
        for word in words.split():
            monkeypatch.setenv(*word.split("="))

    return use


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("SLURM_NTASKS=4", "SLURM_NTASKS is 4"),
        ("SLURM_NTASKS=2 SLURM_JOB_NAME=vscode", "SLURM_NTASKS is 2"),
        ("SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=1", "SLURM_PROCID is 1"),
        ("SLURM_NTASKS=3 SLURM_JOB_NAME=bash SLURM_PROCID=2", "SLURM_PROCID is 2"),
        ("SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_TASKS"),
        ("SLURM_NTASKS=many", "SLURM_NTASKS is 'many'"),
        ("WORLD_SIZE=4 RANK=0 LOCAL_RANK=0", "WORLD_SIZE is 4"),
        ("TORCHELASTIC_RUN_ID=a WORLD_SIZE=2 RANK=1 LOCAL_RANK=1", "WORLD_SIZE is 2"),
        ("LOCAL_RANK=1", "LOCAL_RANK is 1"),
        ("RANK=3", "RANK is 3"),
        ("RANK=x", "RANK is 'x'"),
        ("NODE_RANK=1", "NODE_RANK is 1"),
    ],
)
def test_what_is_left_from_another_job_is_named(data, tmp_path, variables, refused, words, named):
    variables(words)
    assert named in refused(fit(data, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        "SLURM_NTASKS=1 SLURM_PROCID=0",
        "SLURM_NTASKS=4 SLURM_JOB_NAME=interactive",
        "SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=4",
        "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1",
    ],
)
def test_one_process_trains_in_an_allocation(data, tmp_path, variables, words):
    variables(words)
    assert fit(data, tmp_path / "run") == 0
    assert (tmp_path / "run" / "models" / "step-000006").is_dir()


def test_a_plan_needs_no_cluster(data, variables, monkeypatch, capsys):
    plan = "train.commands.plan"
    monkeypatch.setattr(f"{plan}.count_memory", lambda *_: Needs(4, 1, 2))  # takes a while
    variables("SLURM_NTASKS=4 SLURM_JOB_NAME=jupyter LOCAL_RANK=7 WORLD_SIZE=8")
    shared = "--trainer.devices 2 --trainer.strategy ddp"
    assert main(["plan", *TINY.split(), "--data", str(data), *shared.split()]) == 0
    assert "on each of 2 cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("devices", "count"),
    [(2, 2), ("2", 2), ([0, 1], 2), ("0,1", 2), ("0,1,", 2), ("1,", 1), ([1], 1)],
)
def test_the_processes_of_a_launcher_are_compared_with_the_devices(variables, devices, count):
    variables(f"TORCHELASTIC_RUN_ID=a WORLD_SIZE={count} RANK={count - 1} LOCAL_RANK={count - 1}")
    check_launcher(TrainerSettings(devices=devices))
    with pytest.raises(RunError, match=f"WORLD_SIZE is {count}"):
        check_launcher(TrainerSettings(devices=devices, num_nodes=2))
    check_launcher(TrainerSettings(devices="auto"))


@pytest.mark.parametrize("words", ["SLURM_NTASKS=1", "SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=4"])
def test_a_batch_script_trains_on_several_devices_by_srun_alone(variables, words):
    """It trained on one of them in silence, or waited for tasks that nobody had started."""
    variables(f"{words} SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0")
    for devices in (4, "auto"):
        with pytest.raises(RunError, match="srun"):
            check_launcher(TrainerSettings(devices=devices))
    check_launcher(TrainerSettings(devices=1))
    variables("SLURM_JOB_NAME=interactive")
    check_launcher(TrainerSettings(devices=4))


def test_several_machines_need_a_launcher_or_an_address(variables, monkeypatch):
    """The first waited half an hour for the others."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RunError, match=r"--trainer\.num_nodes 2"):
        check_launcher(TrainerSettings(num_nodes=2))
    variables("MASTER_ADDR=first NODE_RANK=1")
    check_launcher(TrainerSettings(num_nodes=2))


def test_the_others_do_not_wait_for_ever_for_the_first(tmp_path, variables, monkeypatch, refused):
    variables("WORLD_SIZE=2 LOCAL_RANK=1")
    monkeypatch.setattr(prepare, "PATIENCE", 0.1)
    assert "has not packed" in refused(
        fit(Path("toy:20"), tmp_path / "run", "--trainer.devices", "2")
    )


def test_a_child_of_lightning_leaves_a_run_of_one_device_to_its_parent(data, tmp_path, variables):
    """A script that trains on one device and then on two: the child was refused, and ended both."""
    variables(f"{PORT}=1 LOCAL_RANK=1 NODE_RANK=0 WORLD_SIZE=2")
    assert fit(data, tmp_path / "run") == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("NODE_RANK=0", True),
        ("NODE_RANK=1", False),  # which Lightning does not ask for: it wrote the same files
        ("NODE_RANK=0 LOCAL_RANK=1", False),
    ],
)
def test_a_run_has_one_first_process(data, tmp_path, variables, words, first):
    variables(words)
    flags = [*TINY.split(), "--data", str(data), "--run", str(tmp_path / "run")]
    assert Run(read_recipe(*flags)).main == is_first() == first


@pytest.mark.parametrize(("rank", "first"), [("0", True), ("1", False)])
def test_torchrun_numbers_machines_otherwise_than_slurm(variables, rank, first):
    """No process was the first where `srun` had started torchrun on the machines."""
    variables(f"TORCHELASTIC_RUN_ID=a RANK={rank} LOCAL_RANK=0 SLURM_PROCID={1 - int(rank)}")
    assert is_first() == first


def test_an_address_that_nobody_knows_is_named(data, tmp_path, variables, refused):
    variables("TORCHELASTIC_RUN_ID=a WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_PORT=29400")
    variables("MASTER_ADDR=nowhere.invalid")
    assert "MASTER_ADDR" in refused(fit(data, tmp_path / "run", "--trainer.devices", "2"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["--resume a.ckpt", "--resume=a.ckpt"])
def test_the_batch_file_takes_no_checkpoint(words):
    """Its own --resume auto won, and a new run began from random weights in silence."""
    file = Path(__file__).parents[3] / "scripts" / "slurm" / "fit.sh"
    done = subprocess.run(["bash", file, *words.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --resume")
