"""The Lightning module: a language model, its loss and its optimiser."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from arch import LanguageModel
from train.optim import build_optimizer, rate
from train.settings import OptimizerSettings, ScheduleSettings
from train.windows import IGNORE, Batch


class LanguageModule(LightningModule):
    """Trains a `LanguageModel` to predict the next token.

    Args:
        model: the model.
        optimizer: AdamW's settings.
        schedule: of the learning rate.
        total_steps: where the schedule ends.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings,
        total_steps: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_settings, self.schedule = optimizer, schedule
        self.total_steps = total_steps
        self.gradient_norm = torch.zeros(())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross entropy over the targets that count, nats per token."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets, "mean")

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Summed cross entropy in nats, and over how many targets: `(2,)`."""
        inputs, targets = batch
        nats = cross_entropy(self.model(inputs), targets, "sum")
        return torch.stack([nats, (targets != IGNORE).sum().to(nats.dtype)])

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clips the norm; Lightning's own refuses a fused optimiser even in bf16."""
        limit = self.optimizer_settings.clip or math.inf
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)

    def learning_rate(self, step: int) -> float:
        """The rate of the optimiser's next step, after `step` of them."""
        return self.optimizer_settings.lr * rate(step, self.total_steps, self.schedule)

    def configure_optimizers(self) -> Any:
        """AdamW and its schedule, stepped with it."""
        optimizer = build_optimizer(self.model, self.optimizer_settings)
        schedule = LambdaLR(optimizer, lambda step: rate(step, self.total_steps, self.schedule))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimiser has stepped on this batch, rather than taken it as a part of a step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """Cross entropy of logits `(B, T, V)` against targets `(B, T)`, in fp32 at least."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        precise.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction=reduction
    )


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """A loss that models with different tokenizers can be compared by."""
    return nats_per_token / bytes_per_token / math.log(2)
