"""What each of two processes runs: trainings, one after the other, with torchrun's environment."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from arch.mixers import TokenMixer
from train.__main__ import main


class Idle(TokenMixer):
    """A mixer with a weight that no output depends on, so that it gets no gradient."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.o_proj, self.unused = (nn.Linear(d_model, d_model) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(x)


def in_two_processes(
    forked: Any, commands: list[list[str] | str], folder: Path, wait: float
) -> tuple[list[int | None], list[str]]:
    """Runs command lines, and preparations by their names; the exit code of each, and what it said.

    The processes are forked from one that has imported everything: torchrun's would import it anew.
    As under torchrun they meet in a store that another process keeps, at a port that is free.

    Args:
        wait: seconds after which they are taken to hang, and killed.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs = [folder / f"{rank}.log" for rank in range(2)]
    processes = [
        forked.Process(target=_run, args=(rank, store.port, log, commands), daemon=True)
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(wait)
        process.kill()
    return [process.exitcode for process in processes], [log.read_text() for log in logs]


def _run(rank: int, port: int, log: Path, commands: list[list[str] | str]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 1}
    agent = {"RUN_ID": "tests", "USE_AGENT_STORE": True, "RESTART_COUNT": 0, "MAX_RESTARTS": 0}
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
    own |= places | sizes | {f"TORCHELASTIC_{name}": value for name, value in agent.items()}
    os.environ.update({name: str(value) for name, value in own.items()})
    rank_zero_only.rank = rank  # Lightning read it from the environment when it was imported
    torch.set_num_threads(1)
    with log.open("w", buffering=1) as file:
        sys.stdout = sys.stderr = file
        for command in commands:
            if isinstance(command, str):
                PREPARATIONS[command]()
            else:
                print(f"exit code {main(command)}\nend of a command", flush=True)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def compile_by_tracing() -> None:
    """Compile without a compiler of C++, and say for which graphs."""
    from torch._dynamo.backends.debugging import aot_eager

    compile_ = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        print("compiled a graph", flush=True)
        return aot_eager(graph, inputs)

    torch.compile = lambda f, **how: compile_(f, **{**how, "backend": backend})  # pyright: ignore


def announce_decisions() -> None:
    """Say at which steps the devices wait for each other to decide whether to go on."""
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.strategies import DDPStrategy

    decide, ask = DDPStrategy.reduce_boolean_decision, _TrainingEpochLoop._broadcast_sigterm_tensor

    def reduce_boolean_decision(self: Any, decision: bool, all: bool = True) -> bool:
        print("decided at step", self.lightning_module.trainer.global_step, flush=True)
        return decide(self, decision, all)

    def broadcast(self: Any) -> None:
        print("Lightning asked after step", self.trainer.global_step, flush=True)
        ask(self)

    DDPStrategy.reduce_boolean_decision = reduce_boolean_decision
    _TrainingEpochLoop._broadcast_sigterm_tensor = broadcast


def terminate_one_at_step_2() -> None:
    """Send SIGTERM to the last of the processes while it takes its second step."""
    import signal

    from train.steps.module import LanguageModule

    original = LanguageModule.training_step

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 1 and self.trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    LanguageModule.training_step = training_step


def interrupt_recorded() -> None:
    """Send SIGUSR1 to each process while it takes the last step that is compared with a record."""
    import signal

    from tests.train.recorded import FEW
    from train.steps.module import LanguageModule

    original = LanguageModule.training_step

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == FEW - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return original(self, batch, batch_idx)

    LanguageModule.training_step = training_step


def show_the_second_an_earlier_state() -> None:
    """Hide a run's last checkpoint from the second process."""
    import math

    from train.rundir.rundir import RunDirectory

    original = RunDirectory.checkpoints

    def checkpoints(self: Any, until: float = math.inf) -> list[Path]:
        return original(self, until)[:-1]

    if os.environ["RANK"] == "1":
        RunDirectory.checkpoints = checkpoints


def give_the_second_another_seed() -> None:
    """Have the second process read other flags than the first, as by another machine's recipe."""
    from train.settings import RunSettings

    original = RunSettings.__post_init__

    def another(self: RunSettings) -> None:
        original(self)
        self.seed = 1

    if os.environ["RANK"] == "1":
        RunSettings.__post_init__ = another


PREPARATIONS = {
    function.__name__: function
    for function in (
        compile_by_tracing,
        announce_decisions,
        interrupt_recorded,
        give_the_second_another_seed,
        show_the_second_an_earlier_state,
        terminate_one_at_step_2,
    )
}
