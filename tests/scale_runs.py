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


if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        if command == "shard_on_cpus":
            shard_on_cpus()
        else:
            print("exit code", main(command), flush=True)
