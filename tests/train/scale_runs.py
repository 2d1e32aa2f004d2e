"""What each of several processes runs, started by torchrun: trainings, one after the other.

torchrun --standalone --nproc-per-node 2 tests/train/scale_runs.py '[["fit", "--data", ...], ...]'
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from train.__main__ import main


def compile_by_tracing() -> None:
    """Compile without a compiler of C++, and say for which graphs."""
    import torch
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
    import os
    import signal

    from train.module import LanguageModule

    original = LanguageModule.training_step

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 1 and self.trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    LanguageModule.training_step = training_step


PREPARATIONS = {
    function.__name__: function
    for function in (compile_by_tracing, announce_decisions, terminate_one_at_step_2)
}

if __name__ == "__main__":
    sys.stderr = sys.stdout
    for command in json.loads(sys.argv[1]):
        if isinstance(command, str):
            PREPARATIONS[command]()
        else:
            print(f"exit code {main(command)}\nend of a command", flush=True)
