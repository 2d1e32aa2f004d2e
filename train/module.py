"""The Lightning module: a language model, its loss and its optimiser."""

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from arch import LanguageModel
from train.cluster import clip_gradients
from train.loss import head_loss
from train.optim import build_optimizer, rate
from train.settings import OptimizerSettings, ScheduleSettings
from train.windows import IGNORE, Batch


class LanguageModule(LightningModule):
    """Trains a `LanguageModel` to predict the next token.

    Args:
        model: the model.
        optimizer: the optimiser's settings.
        schedule: of the learning rate.
        total_steps: where the schedule ends.
        loss_chunks: as for `head_loss`.
        bf16_stream: whether what runs from block to block is bfloat16 rather than float32.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings,
        total_steps: int,
        loss_chunks: int | None = None,
        bf16_stream: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_settings, self.schedule = optimizer, schedule
        self.total_steps = total_steps
        self.loss_chunks, self.bf16_stream = loss_chunks, bf16_stream
        self.gradient_norm = torch.zeros(())
        # The step's targets, shared out evenly over its parts on all devices, however many of them
        # are pads; the data module's to set. A step of one part counts its own.
        self.targets_per_part: float | None = None
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None
        self._compiled_shape: torch.Size | None = None
        self._cuda_graphs = False

    def compile_loss(self, cuda_graphs: bool = False, whole: bool = True) -> None:
        """Compiles the model and its loss as one, in place: names of tensors stay as they are.

        Args:
            cuda_graphs: whether a whole pass is launched at once, which small batches gain from.
            whole: whether it has to be one graph; sharded weights come together between several.
        """
        mode = "reduce-overhead" if cuda_graphs else None
        self._compiled = torch.compile(self._nats, dynamic=False, fullgraph=whole, mode=mode)
        self._cuda_graphs = cuda_graphs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross entropy over the targets that count, nats per token.

        Where a step has several parts, the mean over them is the mean over the step.
        """
        inputs, targets = batch
        if self._cuda_graphs and starts_step(self.trainer, batch_idx):
            torch.compiler.cudagraph_mark_step_begin()  # the last step's gradients may go
        return self._sum(inputs, targets) / (self.targets_per_part or (targets != IGNORE).sum())

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Summed cross entropy in nats, and over how many targets: `(2,)`."""
        inputs, targets = batch
        nats = self._sum(inputs, targets)
        return torch.stack([nats, (targets != IGNORE).sum().to(nats.dtype)])

    def _sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed nats: compiled, but for the odd shapes that end a validation."""
        if self._compiled is None:
            return self._nats(inputs, targets)
        if self._compiled_shape is None or self.training:
            self._compiled_shape = inputs.shape
        if inputs.shape != self._compiled_shape:
            return self._nats(inputs, targets)
        nats = self._compiled(inputs, targets)
        return nats.clone() if self._cuda_graphs else nats  # the next replay overwrites its output

    def _nats(self, inputs: Tensor, targets: Tensor) -> Tensor:
        model = self.model
        embedded = model.embed(inputs)
        if self.bf16_stream:
            embedded = embedded.to(torch.bfloat16)
        hidden = model.norm(model.hidden(embedded, len(model.blocks)))
        rows = model.head.weight
        if not self.training and model.config.vocab_rows > model.config.vocab_size:
            rows = rows[: model.config.vocab_size]  # a saved model is judged as it will be loaded
        return head_loss(hidden, rows, targets, self.loss_chunks)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clips the norm; Lightning's own refuses a fused optimiser even in bf16."""
        limit = self.optimizer_settings.clip or math.inf
        self.gradient_norm = clip_gradients(self, optimizer, limit)

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


def starts_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether this batch is the first, or only, part of a step."""
    return batch_idx % trainer.accumulate_grad_batches == 0


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimiser has stepped on this batch, rather than taken it as a part of a step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """A loss that models with different tokenizers can be compared by."""
    return nats_per_token / bytes_per_token / math.log(2)
