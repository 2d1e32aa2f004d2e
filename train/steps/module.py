"""The Lightning module: a language model, its loss and its optimiser."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from arch import LanguageModel, ModelConfig
from arch.errors import reason
from arch.mixers import refuse_foreign
from train.settings import OptimizerSettings, RunError, ScheduleSettings
from train.steps.data import IGNORE, Batch, PackedDataModule
from train.steps.optim import build_optimizer, rate

CHUNK = 512
"""Tokens whose logits are in memory at once."""
REASON_LETTERS = 400
"""Of what a compiler says, at most."""


class LanguageModule(LightningModule):
    """Trains a `LanguageModel` to predict the next token; the schedule ends at `total_steps`.

    Every argument may also be the plain value that `hparams`, and so a checkpoint, holds of it:
    `LanguageModule.load_from_checkpoint(path)` needs no other file.
    """

    def __init__(
        self,
        model: LanguageModel | dict[str, Any],
        optimizer: OptimizerSettings | dict[str, Any],
        schedule: ScheduleSettings | dict[str, Any],
        total_steps: int,
        *,
        trust_code: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(model, dict):
            config = ModelConfig.from_json(json.dumps(model))
            refuse_foreign(config.mixers, None, trust_code, "hyperparameters")
            model = LanguageModel(config)
        if isinstance(optimizer, dict):
            optimizer = OptimizerSettings(**optimizer)
        if isinstance(schedule, dict):
            schedule = ScheduleSettings(**schedule)
        hparams = {"model": json.loads(model.config.to_json()), "optimizer": asdict(optimizer)}
        hparams |= {"schedule": asdict(schedule), "total_steps": total_steps}
        self.save_hyperparameters(hparams)
        self.model = model
        self.optimizer_settings, self.schedule = optimizer, schedule
        self.total_steps = total_steps
        self.gradient_norm = torch.zeros(())
        self.chunked_loss = True
        self.flops_per_token = self.flops_per_batch = 0.0
        self.recorded = False  # whether a run gives its figures to the loggers, by their steps
        self.validation: dict[str, Any] = {}
        self.seed = 0
        self._sums: list[Tensor] = []
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None
        self._compiled_shape: torch.Size | None = None
        self._compile_required = False

    def compile_loss(self, required: bool = False) -> None:
        """Compiles the model and its loss as one, in place: names of tensors stay as they are.

        Args:
            required: whether a model that cannot be compiled is refused; else it trains without.
        """
        torch.compiler.reset()  # torch counts what it compiles of one function, over all modules
        self.chunked_loss, self._compile_required = False, required
        self._compiled = torch.compile(self._nats, dynamic=False, fullgraph=True)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds the draws of a part of a step by its number, so that a resumed run is exact."""
        trainer = self.trainer
        part = batch_idx % trainer.accumulate_grad_batches
        coordinates = [self.seed, trainer.global_step, part, trainer.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(coordinates).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross entropy over the targets that count, nats per token.

        Where a step has several parts, the mean over them is the mean over the step.
        """
        inputs, targets, loss_denominator = batch
        return self._sum(inputs, targets) / loss_denominator

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Summed cross entropy in nats, and over how many targets: `(2,)`."""
        inputs, targets, _ = batch
        nats = self._sum(inputs, targets)
        sums = torch.stack([nats, (targets != IGNORE).sum().to(nats.dtype)])
        self._sums.append(sums)
        return sums

    def on_validation_epoch_start(self) -> None:
        """Forgets the sums of an earlier validation."""
        self._sums.clear()

    def on_validation_epoch_end(self) -> None:
        """Logs `val_loss`, nats per token over the split, and what the data say of its bytes.

        `validation` holds the same figures in full precision.
        """
        total = torch.stack(self._sums).cpu().double().sum(0)
        if self.trainer.world_size > 1:
            total = self.trainer.strategy.reduce(total.to(self.device), reduce_op="sum")
        nats, tokens = total.tolist()  # pyright: ignore
        figures: dict[str, Any] = {"val_loss": nats / tokens}
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, PackedDataModule):
            size = data.valid_bytes_per_token
            figures["val_bits_per_byte"] = bits_per_byte(nats / tokens, size)
        self.validation = figures | {"val_tokens": int(tokens)}
        self.log_dict(self.validation, logger=False if self.recorded else None, sync_dist=True)

    def _sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed nats: compiled, but for batches of another shape, at the end of a validation.

        Raises:
            RunError: the model cannot be compiled, as it was asked to be.
        """
        if self._compiled is None:
            return self._nats(inputs, targets)
        if self._compiled_shape is None or self.training:
            self._compiled_shape = inputs.shape
        if inputs.shape != self._compiled_shape:
            return self._nats(inputs, targets)
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return self._compiled(inputs, targets)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self._go_on_without(error)
        return self._sum(inputs, targets)

    def _go_on_without(self, error: BaseException) -> None:
        """Compiles no more, after what the compiler has raised.

        Raises:
            RunError: compiling was asked for.
        """
        while cause := getattr(error, "inner_exception", None) or error.__cause__:
            error = cause
        if self._compile_required:
            raise RunError(
                f"--compile true: the model cannot be compiled ({reason(error, REASON_LETTERS)}); "
                "mend that, or go on with --compile false --resume auto"
            ) from None
        self.chunked_loss, self._compiled = True, None
        if rank_zero_only.rank == 0:
            logging.getLogger(__name__).warning(
                "not compiled, and slower: the model cannot be compiled "
                f"({reason(error, REASON_LETTERS)}); --compile false leaves this out"
            )

    def _nats(self, inputs: Tensor, targets: Tensor) -> Tensor:
        model = self.model
        hidden = model.norm(model.hidden(model.embed(inputs), len(model.blocks)))
        rows = model.head.weight
        if not self.training and model.config.vocab_rows > model.config.vocab_size:
            rows = rows[: model.config.vocab_size]  # a saved model is judged as it will be loaded
        return head_loss(hidden, rows, targets, self.chunked_loss)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clips the norm; Lightning's own refuses a fused optimiser even in bf16."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        # Lightning leaves the gradients of a fused optimiser scaled, for it to unscale after this.
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        if limit := self.optimizer_settings.clip:
            self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters(), limit)
        else:  # scaled by inf / inf, one bad gradient would make all of them NaN
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            self.gradient_norm = nn.utils.get_total_norm(gradients)

    def learning_rate(self, step: int) -> float:
        """The rate of the optimiser's next step, after `step` of them."""
        return self.optimizer_settings.lr * rate(step, self.total_steps, self.schedule)

    def configure_optimizers(self) -> Any:
        """The optimiser, and the schedule of its rate, stepped with it."""
        optimizer = build_optimizer(self.model, self.optimizer_settings)
        schedule = LambdaLR(optimizer, lambda step: rate(step, self.total_steps, self.schedule))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts the settings that the run is given in the place of those in the checkpoint.

        Torch restores them with the optimiser's state: a lower learning rate would not count.
        """
        (optimizer,), (schedule,) = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
        given = self.configure_optimizers()["optimizer"].param_groups
        factor = rate(schedule["last_epoch"], self.total_steps, self.schedule)
        for group, settings in zip(optimizer["param_groups"], given, strict=True):
            group |= {name: value for name, value in settings.items() if name != "params"}
            group["lr"] = factor * group["initial_lr"]
        schedule["base_lrs"] = [group["initial_lr"] for group in given]


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, chunked: bool = True) -> Tensor:
    """Summed cross entropy in nats, in fp32 at least.

    In chunks the logits `(B, T, V)`, mostly the largest tensor of all, are never whole in memory,
    and are computed once. Torch has this from 2.13 on, and sums a loss in the dtype of its inputs:
    compiled, in autocast and in lower precision the logits are whole.

    Args:
        hidden: what the head reads, `(B, T, D)`.
        weight: of the head, `(V, D)`.
        targets: `(B, T)`; -100 is out of the sum.
        chunked: whether tokens are taken in chunks, where torch can; not when it compiles.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    lower = torch.is_autocast_enabled(hidden.device.type) or hidden.dtype.itemsize < 4
    if chunked and not lower and hasattr(F, "linear_cross_entropy"):
        return F.linear_cross_entropy(
            hidden,
            weight,
            targets,
            reduction="sum",
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK),
        )
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimiser has stepped on this batch, rather than taken it as a part of a step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """A loss that models with different tokenizers can be compared by."""
    return nats_per_token / bytes_per_token / math.log(2)
