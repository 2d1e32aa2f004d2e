"""Which of a run's processes this one is: as torchrun, SLURM or Lightning itself started it.

Launchers tell a process its rank in environment variables, which a shell or notebook inside a job
inherits. Lightning trusts them, so they are compared with the recipe's devices before Lightning is
imported.
"""

import os

from train.settings import RunError, TrainerSettings

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Where launchers say which of several processes one is; in all of them, 0 is the first."""
TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""What `srun` says to each of its tasks."""
NUMBERS = {*RANKS, *TASK, "GROUP_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "SLURM_NNODES"}
NUMBERS |= {"WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"}
ADDRESSES = {"MASTER_ADDR", "JSM_NAMESPACE_RANK"}
"""One of them is set where a launcher or a user says how several machines meet."""
INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that Lightning takes for a shell: a run in it is one process."""
ALONE = "for one process outside srun set SLURM_JOB_NAME=interactive"


def is_first() -> bool:
    """Whether this process is the first of its run, or the only one."""
    names = ("RANK",) if in_torchrun() else RANKS  # which numbers machines otherwise than SLURM
    return all(int(os.environ.get(name, "0")) == 0 for name in names)


def in_torchrun() -> bool:
    """Whether torchrun says that it has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def in_slurm() -> bool:
    """Whether Lightning would take this process for a task of SLURM."""
    shell = os.environ.get("SLURM_JOB_NAME") in INTERACTIVE
    return "SLURM_NTASKS" in os.environ and not shell and not in_torchrun()


def check_numbers() -> None:
    """Refuses a variable of a launcher that is no number.

    Raises:
        RunError: naming it.
    """
    for name in sorted(NUMBERS & os.environ.keys()):
        if not os.environ[name].isdecimal():
            raise RunError(f"{name} is {os.environ[name]!r}; it must be a number: unset {name}")


def check_launcher(settings: TrainerSettings) -> None:
    """Compares what launchers say of this process with the devices of a recipe.

    Raises:
        RunError: a variable is no number, is missing, or stands for other processes.
    """
    check_numbers()
    wanted, devices = count_processes(settings), f"--trainer.devices {settings.devices}"
    if in_slurm():
        _check_task(wanted)
    elif settings.num_nodes > 1 and not in_torchrun() and not ADDRESSES & os.environ.keys():
        raise RunError(
            f"--trainer.num_nodes {settings.num_nodes}: nothing says where the other machines are; "
            "start this by srun or torchrun (docs/cluster.md), or give --trainer.num_nodes 1"
        )
    for name in ("SLURM_STEP_NUM_TASKS",) if in_slurm() else ("WORLD_SIZE",):
        found = os.environ.get(name)
        if None not in (found, wanted) and int(found or 0) != wanted:
            remedy = ALONE if in_slurm() else f"unset {name}, RANK, LOCAL_RANK, TORCHELASTIC_RUN_ID"
            raise RunError(
                f"{name} is {found}, {devices} on {settings.num_nodes} machines make {wanted}; "
                f"make them equal, or, where it is left from another job, {remedy}"
            )
    for name in RANKS:
        if wanted == 1 and int(os.environ.get(name, "0")):
            raise RunError(
                f"{name} is {os.environ[name]}: one of more processes, but {devices} is one alone; "
                f"raise --trainer.devices, or, where it is left from another job, unset {name}"
            )


def count_processes(settings: TrainerSettings) -> int | None:
    """Processes of a run on all its machines; None where the devices of a machine decide."""
    devices = settings.devices
    if isinstance(devices, str):
        words = [word for word in devices.split(",") if word]  # "1," is the second device alone
        devices = int(devices) if devices.isdecimal() else words if "," in devices else -1
    count = len(devices) if isinstance(devices, list) else devices
    return count * settings.num_nodes if count > 0 else None


def _check_task(wanted: int | None) -> None:
    """Refuses an allocation of SLURM in which Lightning would not find its way."""
    tasks = int(os.environ["SLURM_NTASKS"])
    if tasks > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise RunError(
            f"SLURM_NTASKS is {tasks} and SLURM_NTASKS_PER_NODE is not set: start a task for each "
            f"device by srun with --ntasks-per-node; {ALONE}, or unset SLURM_NTASKS"
        )
    # A batch script has the numbers of a first task, too, but belongs to no step of `srun`.
    missing = [name for name in (*TASK, "SLURM_STEP_NUM_TASKS") if name not in os.environ]
    if missing and wanted != 1:
        raise RunError(
            f"SLURM_NTASKS is {tasks} and {missing[0]} is not set: start a task for each device by "
            f"srun; for one device give --trainer.devices 1; {ALONE}, or unset SLURM_NTASKS"
        )
