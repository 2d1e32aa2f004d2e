"""What the tests of training share: data and a run that take a second, and what runs left."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from tokenizer import PackedData, pack
from tokenizer.pack import Layout
from train.__main__ import main

TINY = """--wandb disabled --log_every 1 --validate_tokens 320 --trainer.accelerator cpu
--model.vocab_size 400 --model.context 16 --model.d_model 16 --model.n_layers 2
--batch.size 4 --schedule.warmup_steps 2 --trainer.max_steps 6"""


def pack_toy(
    tokenizer: Tokenizer, folder: Path, stories: int, layout: Layout | None = None
) -> PackedData:
    """Packs stories of the embedded corpus into a new folder."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return pack(f"toy:{stories}", folder / "tokenizer.json", folder / "data", layout)


def fit(data: Path, run: Path, *flags: str | Path) -> int:
    """Runs `python -m train fit` in this process; later flags override."""
    return main(["fit", "--data", str(data), "--run", str(run), *TINY.split(), *map(str, flags)])


def interrupt(number: int) -> Callable[[Tensor], Tensor]:
    """Sends this process a signal, see the fixture `at_step`."""

    def act(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), number)
        return loss

    return act


def fail(loss: Tensor) -> Tensor:
    """Ends a run as a mistake of ours would, see the fixture `at_step`."""
    raise ZeroDivisionError


def rows(run: Path, key: str = "step") -> list[dict[str, Any]]:
    """The rows that have a key, without what the clock says."""
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    clock = "tokens_per_second", "seconds"
    return [{k: v for k, v in r.items() if k not in clock} for r in found if key in r]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in rows(run, "loss")]


def weights(run: Path, step: int = 6) -> bytes:
    return (run / "models" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def names(folder: Path) -> list[str]:
    """What a user sees: hidden names are the writers' own."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def processes_by(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> SimpleNamespace:
    """Stands for the module subprocess: a process is a call of `run`, which has ended at once."""

    def start(command: list[str], **how: Any) -> SimpleNamespace:
        done = run(command, **how)
        answers = {"wait": lambda _: done.returncode, "communicate": lambda **_: ("", done.stderr)}
        return SimpleNamespace(returncode=done.returncode, **answers)

    names = ("DEVNULL", "PIPE", "TimeoutExpired")
    return SimpleNamespace(run=run, Popen=start, **{n: getattr(subprocess, n) for n in names})
