"""Compilation, the share of a device's peak that training reaches, and a machine that is busy."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from arch import describe
from train.module import LanguageModule
from train.settings import RunError, RunSettings

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
lacks the H200 and takes an L40S for an L4.)"""

STAT = Path("/proc/stat")
MOMENT = 0.1
"""Seconds in which other processes are watched."""
MISSING = 0.75
"""Cores that training lacks, from which on a machine is called busy."""


def compiles(settings: RunSettings, device: torch.device) -> bool:
    """Whether the model and its loss are compiled.

    Raises:
        RunError: a CPU without a compiler.
    """
    wanted = device.type == "cuda" if settings.compile == "auto" else settings.compile
    if wanted and device.type == "cpu" and not _compiler():
        raise RunError(
            "--compile true needs a C++ compiler on a CPU; install one (for example g++), name it "
            "in CXX, or leave --compile out"
        )
    return wanted


def prepare(module: LanguageModule, settings: RunSettings, trainer: Trainer) -> None:
    """Sets a module up as the settings say; nothing is compiled before its first step.

    Raises:
        RunError: the device cannot do what they say.
    """
    device = trainer.strategy.root_device
    if settings.tf32 and device.type != "cuda":
        raise RunError(f"--tf32 true needs a GPU, and this run is on a {device.type}; leave it out")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    module.model.checkpoint_activations = settings.checkpoint_activations
    if compiles(settings, device):
        module.compile_loss()


def utilisation_of(module: LanguageModule, trainer: Trainer) -> Callable[[float], float | None]:
    """From tokens/s of all devices to the share of their peak, None where that is not known.

    The work is that of `arch.costs`: triangles and causal attention count half of their square,
    and nothing that is computed twice counts twice (Chowdhery et al., 2204.02311, appendix B).
    """
    peak = peak_flops(trainer.strategy.root_device, str(trainer.precision))
    if peak is None:
        return lambda speed: None
    work = describe(module.model.config).cost.training_flops / trainer.world_size
    return lambda speed: speed * work / peak


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of a device at a Lightning precision, at most; None where that is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    for part, (bfloat16, float32) in PEAKS.items():
        # Whole words: an "L4" is no "L40".
        if f" {part} " in f" {name.replace('-', ' ')} ":
            if precision.startswith(("bf16", "16")):
                return bfloat16
            if torch.get_float32_matmul_precision() != "highest":  # TF32 has half of bfloat16's
                float32 = bfloat16 / 2
            return float32 if precision.startswith("32") else None
    return None


def use_machine() -> dict[str, Any]:
    """Fixes the number of threads, and tells what the rounding of sums depends on, on a CPU."""
    # MKL may choose fewer threads than it is given, until torch is told a number.
    torch.set_num_threads(torch.get_num_threads())
    return {
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),  # a class of its own, which no checkpoint may hold
    }


def busy_machine(trainer: Trainer) -> str | None:
    """A line that says that other processes use the cores that training is about to use, if so.

    Linux alone tells how much of the last moment each core was idle.
    """
    if trainer.strategy.root_device.type != "cpu" or trainer.world_size > 1 or not STAT.is_file():
        return None
    threads, before, own = torch.get_num_threads(), _core_ticks(), time.process_time()
    time.sleep(MOMENT)
    own = (time.process_time() - own) * os.sysconf("SC_CLK_TCK")
    idle, passed = (after - early for after, early in zip(_core_ticks(), before, strict=True))
    cores = len(os.sched_getaffinity(0))
    free = min(1.0, (idle + own) / max(1, passed)) * cores
    if min(threads, cores) - free < MISSING:
        return None
    fewer = max(1, round(free))
    advice = f"OMP_NUM_THREADS={fewer} may be faster" if fewer < threads else "it will be slow"
    return (
        f"this machine is busy: {free:.1f} of {cores} cores are free, training asks for {threads}; "
        f"{advice}"
    )


def _core_ticks() -> tuple[int, int]:
    """Ticks of the cores that this process may use, since the machine started: idle, and all."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text().splitlines()]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user
    ticks = [list(map(int, words[1:9])) for words in lines if words[0] in mine]
    return sum(sum(core[3:5]) for core in ticks), sum(map(sum, ticks))


def _compiler() -> bool:
    return any(map(shutil.which, filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))))
