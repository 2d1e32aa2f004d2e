"""The kind of processor that computes here: what decides how a sum is rounded."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from train.steps.speed import multiplies_bfloat16

SWITCHES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables by which libraries take another processor's code."""


def kind_of_processor() -> str:
    """The vendor, family and model, and the instructions that are used; a name for a file.

    On one kind, with one thread and one version of torch, the same training has the same bits.
    """
    facts = {"vendor_id": platform.machine(), "cpu family": "", "model": ""}
    about = Path("/proc/cpuinfo")
    for line in about.read_text().splitlines() if about.exists() else ():
        key, _, value = (part.strip() for part in line.partition(":"))
        facts |= {key: value} if key in facts else {}
    instructions = torch.backends.cpu.get_cpu_capability().replace(" ", "")
    units = "bf16" if multiplies_bfloat16() else ""
    switches = (f"{name}={os.environ[name]}" for name in SWITCHES if name in os.environ)
    return "-".join(filter(None, (*facts.values(), instructions, units, *switches))).lower()


def describe_arithmetic() -> dict[str, str]:
    """What a record of losses says beside them: where its bits are those of one thread."""
    return {"processor": kind_of_processor(), "torch": torch.__version__}


def has_same_arithmetic(record: dict[str, Any]) -> bool:
    """Whether losses on record are to be had here to the bit."""
    return describe_arithmetic().items() <= record.items()
