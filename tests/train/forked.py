"""Trainings to be killed, measured or starved of disk, in processes forked from one.

That one has imported everything. What they leave is judged here too.
"""

import contextlib
import ctypes
import io
import os
import resource
import shutil
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
from train.rundir.checkpoints import read_checkpoint
from train.settings import OptimizerSettings, ScheduleSettings
from train.steps.module import LanguageModule

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


def train_on_small_disk(
    words: list[str], run: Path, size: int, free: list[int], copy: Path, answer: Connection
) -> None:
    """Trains on a disk of `size` bytes, of which `free[0]`, `free[1]`, ... are left, then all.

    The disk is a real one, in memory, that only this process sees. Sends back None where it cannot
    be had, else what each attempt gave: its exit code, and what it wrote to stderr. `copy` is what
    the run directory holds in the end.
    """
    run.mkdir()
    if not _mount_in_memory(run, size):
        answer.send(None)
        return
    torch.set_num_threads(1)
    ballast, tries = run / ".ballast", []
    for room in [*free, size]:
        with ballast.open("wb") as file:
            left = shutil.disk_usage(run).free
            os.posix_fallocate(file.fileno(), 0, max(1, left - room))
        if room == size:
            ballast.unlink()
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
        tries.append((code, errors.getvalue()))
        ballast.unlink(missing_ok=True)
        assert_nothing_is_half(run)
        assert not list(run.rglob("*.tmp"))
    shutil.copytree(run, copy)
    answer.send(tries)


def assert_nothing_is_half(run: Path) -> None:
    """Every model directory and every checkpoint can be read, and is that of its step."""
    for name in names(run / "models"):
        assert load_model(run / "models" / name).meta["step"] == int(name.removeprefix("step-"))
    for name in names(run / "checkpoints"):
        step = read_checkpoint(run / "checkpoints" / name)["global_step"]
        assert name == f"step-{step:06d}.ckpt"


def _mount_in_memory(place: Path, size: int) -> bool:
    """Mounts a tmpfs that this process alone sees; whether it may."""
    libc = ctypes.CDLL(None)
    new_user, new_mounts, private = 0x10000000, 0x00020000, 0x44000  # CLONE_NEW*, MS_REC|PRIVATE
    ids = os.getuid(), os.getgid()
    if libc.unshare(new_user | new_mounts):
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {ids[0]} 1")
        Path("/proc/self/gid_map").write_text(f"0 {ids[1]} 1")
    except OSError:
        return False
    options = f"size={size}".encode()
    return not (
        libc.mount(b"none", b"/", None, private, None)
        or libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options)
    )
