"""What each of several processes runs, started by torchrun: trainings, one after the other.

torchrun --standalone --nproc-per-node 2 tests/scale_runs.py '[["fit", "--data", ...], ...]'
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from train.__main__ import main


def shard_on_cpus() -> None:
    """Let `fsdp` run where there is no GPU: torch can, and Lightning has no way to ask for it."""
    import torch
    from lightning.pytorch.plugins.precision import FSDPPrecision, MixedPrecision
    from torch.distributed.fsdp import fully_sharded_data_parallel

    import train.run

    fsdp: Any = fully_sharded_data_parallel
    prepare, choose = fsdp._init_device_handle, train.run.strategy
    cpu = torch.device("cpu")
    fsdp._init_device_handle = lambda state, module, ignored, _: prepare(
        state, module, ignored, cpu
    )
    lower = MixedPrecision("bf16-mixed", "cpu")
    context = FSDPPrecision.forward_context
    FSDPPrecision.forward_context = lambda self: (
        lower.forward_context() if self.precision == "bf16-mixed" else context(self)
    )
    train.run.strategy = lambda name, gpu: choose(name, True)  # pyright: ignore


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
    for function in (shard_on_cpus, announce_decisions, terminate_one_at_step_2)
}

if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        if isinstance(command, str):
            PREPARATIONS[command]()
        else:
            print("exit code", main(command), flush=True)
