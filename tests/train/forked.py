"""Trainings to be killed or measured, in processes forked from one.

That one has imported everything. What they leave is judged here too.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks
import torch._dynamo
import torch.utils.data

import train.run
from arch import LanguageModel, ModelConfig, load_model
from tests.train.cases import names
from train.__main__ import main
from train.module import LanguageModule
from train.rundir import read_checkpoint
from train.settings import OptimizerSettings, ScheduleSettings

PRELOADED = (lightning.pytorch.callbacks, torch._dynamo, torch.utils.data, train.run)

TOUCHES = {
    "open", "os.mkdir", "os.chmod", "os.rename", "os.remove", "os.rmdir", "os.truncate",
    "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree", "ctypes.dlopen",
}  # fmt: skip
"""What Python is about to do to the file system, by the names of its audit events."""


def train_until_killed(words: list[str], fatal: int | None, saving: Event) -> None:
    """Trains; SIGKILL comes from outside, or from here at a touch of the file system.

    Args:
        words: of the command line.
        fatal: which touch is not survived, counted from the first save; None survives all.
        saving: set at the first save.
    """
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in TOUCHES:
            return
        if not count and not (event.startswith("tempfile") and "step-" in str(arguments[0])):
            return
        saving.set()
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    sys.addaudithook(hook)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        sys.exit(main(words))


def measure_growth(mixer: str, again: bool, answer: Connection) -> None:
    """Sends how many bytes a process grows by in two steps of training.

    Args:
        mixer: of a model of 4 blocks, 256 wide, with a context of 256.
        again: whether activations are computed again rather than kept.
        answer: takes the number.
    """
    # Every tensor a mapping of its own, gone when it is freed: glibc would keep pieces of its heap.
    m_mmap_threshold = -3
    assert ctypes.CDLL(None).mallopt(m_mmap_threshold, 65536)
    torch.set_num_threads(1)

    def train(width: int, layers: int, context: int) -> int:
        config = ModelConfig(400, context, width, layers, (mixer,))
        module = LanguageModule(LanguageModel(config), OptimizerSettings(), ScheduleSettings(), 9)
        module.model.checkpoint_activations = again
        optimizer: Any = module.configure_optimizers()["optimizer"]
        tokens = torch.zeros(16, context, dtype=torch.long)
        for count in (1, 16):  # the first step makes the moments, the second needs the most
            part = tokens[:count]
            module.training_step((part, part, 1.0), 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = train(8, 1, 8)  # imports what is imported late
    answer.send(train(256, 4, 256) - before)


def assert_nothing_is_half(run: Path) -> None:
    """Every model directory and every checkpoint can be read, and is that of its step."""
    for name in names(run / "models"):
        assert load_model(run / "models" / name).meta["step"] == int(name.removeprefix("step-"))
    for name in names(run / "checkpoints"):
        step = read_checkpoint(run / "checkpoints" / name)["global_step"]
        assert name == f"step-{step:06d}.ckpt"
