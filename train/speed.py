"""What makes a run faster or smaller and changes nothing that it learns."""

import os
import shutil
from collections.abc import Callable

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

from arch.describe import total_cost
from train.errors import RunError
from train.mfu import utilisation
from train.module import LanguageModule
from train.settings import RunSettings


def compiles(settings: RunSettings, device: torch.device) -> bool:
    """Whether the model and its loss are compiled.

    Raises:
        RunError: CUDA graphs without what they need, or a CPU without a compiler.
    """
    wanted = device.type == "cuda" if settings.compile == "auto" else settings.compile
    if settings.cuda_graphs and device.type != "cuda":
        raise RunError(
            f"--cuda_graphs true needs a GPU, and this run is on a {device.type}; leave it out"
        )
    if settings.cuda_graphs and not wanted:
        raise RunError("--cuda_graphs true needs a compiled model; leave out --compile false")
    if wanted and device.type == "cpu" and not _compiler():
        raise RunError(
            "--compile true needs a C++ compiler on a CPU; install one (for example g++), name it "
            "in CXX, or leave --compile out"
        )
    return wanted


def prepare(module: LanguageModule, settings: RunSettings, trainer: Trainer) -> None:
    """Sets a module up as the settings say; nothing is compiled before its first step.

    Raises:
        RunError: settings that do not fit together, or the device.
    """
    if settings.bf16_stream and trainer.precision != "bf16-mixed":
        raise RunError(
            f"--bf16_stream true needs --precision bf16-mixed, and this run is {trainer.precision}"
        )
    module.model.checkpoint_activations = settings.checkpoint_activations
    sharded = isinstance(trainer.strategy, FSDPStrategy)
    if sharded and settings.cuda_graphs:
        raise RunError(
            "--cuda_graphs true needs weights that stay in their place, and --trainer.strategy "
            "fsdp moves them; leave one of them out"
        )
    if compiles(settings, trainer.strategy.root_device):
        module.compile_loss(settings.cuda_graphs, whole=not sharded)


def utilisation_of(
    module: LanguageModule, settings: RunSettings, trainer: Trainer
) -> Callable[[float], float | None]:
    """From tokens/s of all devices to the share of their peak, None where that is not known."""
    work = total_cost(module.model).training_flops / trainer.world_size
    device, precision = trainer.strategy.root_device, trainer.precision
    return lambda speed: utilisation(speed * work, device, precision, settings.peak_flops)


def _compiler() -> bool:
    return any(map(shutil.which, filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))))
