"""Compilation, threads, and the share of a device's peak that training reaches."""

import copy
import dataclasses
import logging
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.compiler.config
from lightning.pytorch import Trainer

from arch import LanguageModel
from arch.errors import reason
from arch.kernels.arithmetic import shortens_float32
from arch.kernels.masked_conv import chosen_kernels, implementation, missing_for_triton
from arch.mixers import has_foreign
from train.recipe import Recipe
from train.settings import RunError, RunSettings
from train.steps.module import LanguageModule

PEAKS: dict[str, tuple[float, float]] = {
    "GH200": (989e12, 67e12),
    "H200 NVL": (835e12, 60e12),
    "H200": (989e12, 67e12),
    "H100 NVL": (835e12, 60e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "A40": (150e12, 37e12),
    "A10": (125e12, 31.2e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "RTX 4090": (165e12, 82.6e12),
    "RTX 3090": (71e12, 35.6e12),
}
"""FLOP/s of dense products in bfloat16 with fp32 sums, and in fp32 without tensor cores, from the
vendor's data sheets; the first name that a device's name contains counts. (Lightning's own table
has twice an H200's speed under a name that no driver gives it, and takes an L40S for an L4.)"""
SLOWER = {"Laptop", "MIG", "Ti", "D"}
"""Words of the names of other cards, or of parts of a card, whose peak is not that of the name."""
LONG = {"steps": 1000, "minutes": 3.0}
"""From this length on a run on a CPU gains more by compiled bfloat16 than compiling takes."""


def choose_arithmetic(recipe: Recipe) -> str | None:
    """Sets precision and compilation of a run on a CPU where both are left open.

    A long run in bfloat16, compiled, where the processor multiplies bfloat16 (AMX, AVX512-BF16),
    what compiles for it is there, and all mixers are of this project; else nothing is changed.
    Evaluation stays in fp32.

    Returns:
        A line that says what was chosen and how it is undone; None where nothing was.
    """
    settings, trainer = recipe.run, recipe.trainer
    open_ones = (settings.precision, settings.compile) == ("auto", "auto")
    minutes, steps = settings.minutes, trainer.max_steps
    long = minutes >= LONG["minutes"] if minutes else steps >= LONG["steps"]
    on_cpu = trainer.accelerator == "cpu" or (
        trainer.accelerator == "auto" and not torch.cuda.is_available()
    )
    if not (open_ones and long and on_cpu and multiplies_bfloat16()) or missing_for_cpp():
        return None
    if has_foreign(recipe.model.mixers):
        return None
    recipe.run = dataclasses.replace(settings, precision="bf16-mixed", compile=True)
    return (
        "this processor multiplies bfloat16: --precision bf16-mixed --compile true; compiling "
        "takes half a minute, and --precision 32-true undoes it"
    )


def advise_precision(settings: RunSettings, device: torch.device) -> str | None:
    """A line for weights in bfloat16, and for a CUDA device without it where precision is open.

    A device that emulates bfloat16, such as a Turing card (sm_75), is without it.
    """
    if settings.precision == "bf16-true":
        return (
            "--precision bf16-true keeps the weights in bfloat16: a step of less than about 1/500 "
            "of a weight is lost; bf16-mixed keeps them in fp32"
        )
    if settings.precision != "auto" or device.type != "cuda":
        return None
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return (
        f"this GPU (sm_{major}{minor}) has no bfloat16, so precision is 32-true; "
        "--precision 16-mixed is faster where it multiplies fp16"
    )


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has units for products in bfloat16; oneDNN uses them."""
    cpu: Any = torch.cpu
    tests = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(cpu, name, bool)() for name in tests)


def missing_for_cpp() -> str | None:
    """What the machine lacks of what torch compiles with for a CPU, if anything.

    Torch takes no compiler but this one.
    """
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if not shutil.which(compiler):
        return f"the C++ compiler {compiler} (CXX names another)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h (the package python3-dev)"
    return None


def compiles(settings: RunSettings, device: torch.device) -> bool:
    """Whether the model and its loss are compiled.

    Raises:
        RunError: it cannot be, as no compiler is installed.
    """
    automatic = settings.compile == "auto"
    wanted = device.type == "cuda" if automatic else bool(settings.compile)
    lacking = {"cuda": missing_for_triton, "cpu": missing_for_cpp}.get(device.type)
    if not (wanted and lacking and (missing := lacking())):
        return wanted
    if not automatic:
        where = "GPU" if device.type == "cuda" else "CPU"
        raise RunError(
            f"--compile true needs {missing} on a {where}; install it, or leave --compile out"
        )
    logging.getLogger(__name__).warning(
        f"not compiled, and slower: that needs {missing} on a GPU; install it"
    )
    return False


def prepare(
    module: LanguageModule, settings: RunSettings, trainer: Trainer, chosen: bool = False
) -> None:
    """Sets a module up as the settings say; nothing is compiled before its first step.

    Args:
        chosen: whether `choose_arithmetic` has chosen to compile, rather than a user.

    Raises:
        RunError: the device cannot do what they say.
        arch.ModelError: nor what REMNANT_KERNELS says.
    """
    device = trainer.strategy.root_device
    if (kernels := chosen_kernels()) != "auto":
        implementation(device, precision_dtype(trainer))  # refused here, not by what is compiled
        # torch keeps compiled code between processes, and does not see what an operator chose.
        torch.compiler.config.cache_key_tag = f"REMNANT_KERNELS={kernels}"
    if settings.tf32 and device.type != "cuda":
        raise RunError(f"--tf32 true needs a GPU, and this run is on a {device.type}; leave it out")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    if trainer.precision == "bf16-true" and has_foreign(module.model.config.mixers):
        _refuse_upcasts(module.model, trainer)
    module.model.checkpoint_activations = settings.checkpoint_activations
    module.seed = settings.seed
    for block in module.model.blocks:
        block.dropout = settings.dropout  # pyright: ignore
    if compiles(settings, device):
        if device.type == "cpu":  # dropout then draws as without --compile, and faster
            import torch._inductor.config as inductor

            inductor.fallback_random = True
        module.compile_loss(required=settings.compile is True and not chosen)


@torch.no_grad()
def _refuse_upcasts(model: LanguageModel, trainer: Trainer) -> None:
    """Refuses a mixer that cannot read bfloat16, or gives what the next layer cannot read.

    Raises:
        RunError: naming its layer.
    """
    device = trainer.strategy.root_device
    x = torch.zeros(1, 1, model.config.d_model, dtype=torch.bfloat16, device=device)
    drawn = [device] if device.type == "cuda" else []
    for layer, block in enumerate(model.blocks, 1):
        mixer: Any = copy.deepcopy(block.token_mixer)
        with torch.random.fork_rng(drawn), trainer.precision_plugin.train_step_context():
            try:
                found = mixer.to(x).eval()(x).dtype
            except (RuntimeError, TypeError) as error:
                found = reason(error)
        if found is not torch.bfloat16:
            entry = model.config.mixers[(layer - 1) % len(model.config.mixers)]
            raise RunError(
                f"--precision bf16-true: the mixer of layer {layer}, {entry}, makes of bfloat16: "
                f"{found}; have it give the dtype that it reads (y.to(x)), or take bf16-mixed"
            )


def precision_dtype(trainer: Trainer) -> torch.dtype:
    """The dtype in which a trainer's precision multiplies matrices."""
    kinds = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
    return kinds.get(str(trainer.precision).partition("-")[0], torch.float32)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of a device at a Lightning precision, at most; None where that is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    words = name.replace("-", " ").split()
    if SLOWER & {*words}:
        return None
    for part, (bfloat16, float32) in PEAKS.items():
        # Whole words: an "L4" is no "L40".
        if f" {part} " in f" {' '.join(words)} ":
            if precision.startswith(("bf16", "16")):
                return bfloat16
            if shortens_float32():  # TF32 has half of bfloat16's
                float32 = bfloat16 / 2
            return float32 if precision.startswith("32") else None
    return None


def use_machine() -> dict[str, Any]:
    """Fixes the number of threads, and tells what the rounding of sums depends on, on a CPU.

    NumPy is there as its `permutation` orders the data, which may change with its version.
    """
    # MKL may choose fewer threads than it is given, until torch is told a number.
    torch.set_num_threads(torch.get_num_threads())
    return {
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),  # a class of its own, which no checkpoint may hold
    }
