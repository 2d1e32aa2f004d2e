"""Trains a model of E12 or E14 in a fresh process of as many threads as this one has."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
QUIET = ("--wandb", "disabled", "--validate_every", "1000000", "--validate_tokens", "4096")
"""Flags that change no weight: losses are measured afterwards."""


def fit_flags(design: dict[str, Any], family: str) -> list[str]:
    """The flags of `train fit` for a family; a recipe comes first, as later flags change it."""
    model = design["models"][family]
    recipe = shlex.split(design["recipes"][model["recipe"]])
    return [*recipe, "--model.mixers", model["mixers"], *shlex.split(design["all_models"])]


def train(data: Path, run: Path, design: dict[str, Any], family: str, seed: int) -> bool:
    """Trains a model into the directory RUN, or goes on, unless it is finished; False if it fails.

    What the trainer prints is added to RUN.log.
    """
    if (run / "models" / f"step-{design['steps'][-1]:06d}" / "meta.json").is_file():
        return True
    run.parent.mkdir(parents=True, exist_ok=True)
    words = ["--data", str(data), "--run", str(run), "--seed", str(seed), "--resume", "auto"]
    threads = str(torch.get_num_threads())
    settings = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(run.parent / "compiled" / run.name),
    }
    command = [sys.executable, "-m", "train", "fit", *fit_flags(design, family), *words, *QUIET]
    with run.with_suffix(".log").open("a") as log:
        return not subprocess.run(
            command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        ).returncode
