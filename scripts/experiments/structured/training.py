"""Trains the models of E12, one after another, a fresh process of two threads each."""

import os
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from scripts.experiments.forgetting import FOLDER

ROOT = Path(__file__).resolve().parents[3]
THREADS = "2"
QUIET = ("--wandb", "disabled", "--validate_every", "1000000", "--validate_tokens", "4096")
"""Flags that change no weight: losses are measured afterwards."""


def read_design() -> dict[str, Any]:
    """What is registered of the models and measures."""
    return yaml.safe_load((FOLDER / "e12.yaml").read_text(encoding="utf-8"))["design"]


def fit_flags(design: dict[str, Any], family: str) -> list[str]:
    """The flags of `train fit` for a family; a recipe comes first, as later flags change it."""
    model = design["models"][family]
    recipe = shlex.split(design["recipes"][model["recipe"]])
    return [*recipe, "--model.mixers", model["mixers"], *shlex.split(design["all_models"])]


def train_all(data: Path, out: Path, design: dict[str, Any]) -> list[str]:
    """Trains what is not finished, all families of a seed before the next; the runs that failed."""
    failed = []
    for seed, family in product(design["seeds"], design["models"]):
        run = out / "runs" / f"{family}-s{seed}"
        last = run / "models" / f"step-{design['steps'][-1]:06d}" / "meta.json"
        if last.is_file():
            continue
        words = ["--data", str(data), "--run", str(run), "--seed", str(seed), "--resume", "auto"]
        if code := run_fit([*fit_flags(design, family), *words, *QUIET], out, run.name):
            failed.append(run.name)
        print(run.name, "finished" if not code else f"failed ({code})", flush=True)
    return failed


def run_fit(words: list[str], out: Path, name: str) -> int:
    """Runs `train fit`, its output added to OUT/logs/NAME.log; its exit status."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    settings = {
        "OMP_NUM_THREADS": THREADS,
        "MKL_NUM_THREADS": THREADS,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(out / "compiled"),
    }
    command = [sys.executable, "-m", "train", "fit", *words]
    with (out / "logs" / f"{name}.log").open("a") as log:
        return subprocess.run(
            command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        ).returncode
