"""How a run is spread over devices: Lightning's strategies, and what they leave open."""

from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    StateDictType,
)
from torch.optim import Optimizer

from arch import Block, LanguageModel
from arch.weights import build_model
from train.checkpoints import read_checkpoint
from train.errors import RunError

STRATEGIES = ("auto", "ddp", "fsdp")


class Sharded(FSDPStrategy):
    """`fsdp`: weights, gradients and optimiser states lie in shards, a block's put together to run.

    A checkpoint is one file, the same that a run on one device writes, so that a run may resume on
    any number of devices, sharded or not: Lightning's own names the optimiser's states by
    parameters instead of numbering them, and takes numbers to stand in the model's order.
    """

    def __init__(self) -> None:
        super().__init__(auto_wrap_policy={Block}, state_dict_type="full")

    @property
    def mixed_precision_config(self) -> MixedPrecision:
        """Gradients are added up in fp32 and tables of angles stay in it, as on one device.

        Lightning's own takes bfloat16 for both; and for weights and what runs between blocks in
        mixed precision, where autocast says what is lower.
        """
        low = getattr(self.precision_plugin, "precision", "") == "bf16-true"
        return MixedPrecision(
            param_dtype=torch.bfloat16 if low else None,
            reduce_dtype=torch.float32,
            buffer_dtype=torch.float32,
        )

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights; beside GPUs, empty but on rank 0."""
        assert self.model is not None
        with self._whole():
            return self.model.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole states, numbered in the order of the optimiser's groups, wherever weights are."""
        assert self.model is not None
        with self._whole():
            named = FullyShardedDataParallel.optim_state_dict(self.model, optimizer)
        if not named:
            return named
        names = chain.from_iterable(group["params"] for group in named["param_groups"])
        number = {name: i for i, name in enumerate(names)}
        groups = [
            group | {"params": [number[name] for name in group["params"]]}
            for group in named["param_groups"]
        ]
        state = {number[name]: values for name, values in named["state"].items()}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a whole checkpoint, and deals out its weights and states."""
        assert isinstance(self.model, FullyShardedDataParallel)
        checkpoint = read_checkpoint(Path(checkpoint_path))
        name_of = {p: _plain(name) for name, p in self.model.named_parameters()}
        with self._whole(everywhere=True):
            self.model.load_state_dict(checkpoint.pop("state_dict"))
            for optimizer, whole in zip(
                self.optimizers, checkpoint.get("optimizer_states", []), strict=True
            ):
                params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
                names = [name_of[p] for p in params]
                groups = [
                    group | {"params": [names[i] for i in group["params"]]}
                    for group in whole["param_groups"]
                ]
                state = {names[i]: values for i, values in whole["state"].items()}
                optimizer.load_state_dict(
                    FullyShardedDataParallel.optim_state_dict_to_load(
                        self.model, optimizer, {"state": state, "param_groups": groups}
                    )
                )
        return checkpoint

    def _whole(self, everywhere: bool = False) -> AbstractContextManager[Any]:
        """Inside, states are whole: gathered on the host of rank 0, or wherever they are used."""
        gather = not everywhere and self.root_device.type != "cpu"
        return FullyShardedDataParallel.state_dict_type(
            self.model,  # pyright: ignore[reportArgumentType]
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=gather, rank0_only=gather),
            FullOptimStateDictConfig(offload_to_cpu=gather, rank0_only=gather),
        )


def strategy(name: Any, gpu: bool) -> Any:
    """What Lightning is given for the strategy of a recipe.

    Raises:
        RunError: one that checkpoints could not be written from; or shards, and no GPU: torch has
            them on others only for tests.
    """
    if name not in STRATEGIES:
        raise RunError(f"--trainer.strategy is {name}; allowed: {', '.join(STRATEGIES)}")
    if name != "fsdp":
        return name
    if not gpu:
        raise RunError("--trainer.strategy fsdp needs GPUs; without them use ddp")
    return Sharded()


def environment() -> list[Any]:
    """The plugin that leaves requeueing to the job's script, in a SLURM job.

    Lightning would save a second kind of checkpoint of its own, and start from that ever after.
    """
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def clip_gradients(module: LightningModule, optimizer: Optimizer, limit: float) -> Tensor:
    """Clips the norm of all gradients, wherever their shards lie; returns it."""
    model, precision = module.trainer.strategy.model, module.trainer.precision_plugin
    scaler = getattr(precision, "scaler", None)
    # Lightning leaves the gradients of a fused optimiser scaled, for it to unscale after this.
    if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
        scaler.unscale_(optimizer)
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(limit)
    return torch.nn.utils.clip_grad_norm_(module.parameters(), limit)


def weights_are_finite(trainer: Trainer, module: LightningModule) -> bool:
    """Whether no weight is infinite or not a number, on any device: they all get one answer."""
    finite = bool(torch.nn.utils.get_total_norm(list(module.parameters())).isfinite())
    if trainer.world_size > 1:
        finite = trainer.strategy.reduce_boolean_decision(finite, all=True)
    return finite


def whole_model(trainer: Trainer, model: LanguageModel) -> LanguageModel:
    """The model with all of its weights; every device has to ask, and rank 0 gets it.

    Nothing is drawn from the run's generators: it trains the same however often it is saved.
    """
    if not isinstance(trainer.strategy, Sharded):
        return model
    weights = trainer.strategy.lightning_module_state_dict()
    if not trainer.is_global_zero:
        return model
    named = {name.removeprefix("model."): weight for name, weight in weights.items()}
    return build_model(model.config, named, "the shards")


def _plain(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")
