"""Lightning's trainer, as a recipe has it."""

import dataclasses
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from arch.errors import reason
from arch.mixers import has_foreign
from train.processes.launcher import count_processes, in_slurm
from train.recipe import Recipe
from train.record.saving import AtomicCheckpointIO
from train.rundir.rundir import RunDirectory
from train.settings import RunError

REFUSALS = MisconfigurationException, TypeError, ValueError, ImportError, RuntimeError
"""What Lightning raises of devices that are not there, or not named as it names them."""


class EpochLoop(_TrainingEpochLoop):
    """Lightning's loop over steps, without its question to all devices before each of them.

    `StopOnSignal` asks whether a device got a signal, at lines of progress. Lightning 2.6 has no
    switch for its own question, for which each device would wait for its own work at every step.
    """

    def _broadcast_sigterm_tensor(self) -> None:
        """Asks the other devices nothing."""


def _choose_precision(precision: str, gpu: bool) -> str:
    """The precision of `--precision`; where it is left open, bfloat16 on a GPU that has it."""
    if precision == "16-mixed" and not gpu:
        raise RunError("--precision 16-mixed needs a GPU; without one use 32-true or bf16-mixed")
    if precision != "auto":
        return precision
    bfloat16 = gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if bfloat16 else "32-true"


def _refuse_devices(recipe: Recipe, error: Exception) -> str:
    """What Lightning refuses of the flags that name devices, in a line with their values."""
    names = "accelerator", "devices", "num_nodes", "strategy"
    given = ", ".join(f"--trainer.{name} {getattr(recipe.trainer, name)}" for name in names)
    here = f"a CPU and {torch.cuda.device_count()} CUDA GPUs"
    return (
        f"{given}: Lightning refuses them ({reason(error)}); this machine has {here}: give "
        "--trainer.accelerator cpu or gpu, and as --trainer.devices how many of them"
    )


def build_trainer(
    recipe: Recipe,
    directory: RunDirectory,
    callbacks: list[Any],
    total: int | None = None,
    launcher: Sequence[ClusterEnvironment] = (),
) -> Trainer:
    """Lightning's trainer, as a recipe has it, for `total` steps if that is another number.

    `launcher` is what stands for the one that started this process, if anything should.

    Raises:
        RunError: a device that is not there, several devices in a notebook, or the like.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    gpu = recipe.trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    settings: Any = dataclasses.asdict(recipe.trainer)
    settings["precision"] = _choose_precision(recipe.run.precision, gpu)
    settings |= {} if total is None else {"max_steps": total}
    if settings["accelerator"] == "auto" and not gpu:
        settings["accelerator"] = "cpu"  # Lightning's own choice may be a device that is not tested
    present = (torch.cuda.device_count() if gpu else 1) * recipe.trainer.num_nodes
    processes = count_processes(recipe.trainer) or present
    if processes > 1 and has_foreign(recipe.model.mixers):  # a mixer may leave out a weight
        settings["strategy"] = "ddp_find_unused_parameters_true"
    if settings["deterministic"] is None and not gpu and recipe.run.compile is True:
        settings["deterministic"] = True  # what is compiled for a CPU adds gradients in any order
    try:
        # In a SLURM job Lightning would save, and ever after start from, checkpoints of its own.
        slurm = [SLURMEnvironment(auto_requeue=False)] if in_slurm() and not launcher else []
        with warnings.catch_warnings():
            # Where SLURM is installed, also of a run that has nothing to do with it.
            warnings.filterwarnings("ignore", "The `srun` command is available")
            trainer = Trainer(
                **settings,
                max_epochs=-1,
                callbacks=callbacks,
                plugins=[AtomicCheckpointIO(directory), *(launcher or slurm)],
                default_root_dir=directory.path,
                logger=False,  # `Log` opens them when the directory is there
                log_every_n_steps=recipe.run.log_every,
                num_sanity_val_steps=0,
                inference_mode=False,  # what a mixer keeps of a validation is used in training
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
            )
    except REFUSALS as error:
        raise RunError(_refuse_devices(recipe, error)) from error
    if (starter := trainer.strategy.launcher) and starter.is_interactive_compatible:  # it forks
        devices = f"--trainer.devices {recipe.trainer.devices}"
        raise RunError(f"{devices}: a notebook trains on one device; give 1, or run a script")
    trainer.fit_loop.epoch_loop = EpochLoop(trainer, max_steps=trainer.max_steps)
    return trainer
