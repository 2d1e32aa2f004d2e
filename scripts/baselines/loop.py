"""The inner loop of transformers' `Trainer`, restated without accelerate.

What one of its steps does with gradient accumulation 1, in the same order: autocast forward, the
test of the loss for NaN, backward, the clipped norm, fused AdamW, the linear schedule. Where
accelerate is installed, a test holds it against the `Trainer` itself.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

Inputs = dict[str, Tensor]
"""What a model of transformers is called with: `input_ids`, `labels`, `shift_labels`."""


@dataclass(frozen=True)
class Recipe:
    """The settings of `TrainingArguments` that decide what is learnt, with its defaults."""

    lr: float = 5e-5
    steps: int = 1000
    warmup: int = 0
    clip: float = 1.0
    weight_decay: float = 0.0
    precision: str = "fp32"
    """fp32, bf16 or fp16; the latter two under autocast, fp16 with a scaled loss."""

    def rate(self, step: int) -> float:
        """The learning rate of the step after `step` of them."""
        if step < self.warmup:
            return self.lr * step / self.warmup
        return self.lr * max(0, self.steps - step) / max(1, self.steps - self.warmup)


def train(
    model: nn.Module,
    batches: Iterable[Inputs],
    recipe: Recipe,
    on_step: Callable[[int, Tensor | None], Any] = lambda step, loss: None,
) -> None:
    """Trains in place, on the device that the model is on.

    Args:
        model: gives `loss`, in nats per token.
        batches: at least `recipe.steps` of them.
        recipe: the settings.
        on_step: called after every step with its number, from 1, and its loss, None where that is
            no number; True ends training.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True
    )
    schedule = LambdaLR(optimizer, lambda step: recipe.rate(step) / recipe.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
    lower = contextlib.nullcontext()
    if recipe.precision != "fp32":
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[recipe.precision]
        lower = torch.autocast(device.type, dtype)
    model.train()
    for step, inputs in zip(range(1, recipe.steps + 1), batches, strict=False):
        on_device = {k: v.to(device, non_blocking=True) for k, v in inputs.items()}
        with lower:
            loss = model(**on_device)["loss"]
        # Its `logging_nan_inf_filter`, which waits for the device in every step.
        broken = bool(torch.isnan(loss) or torch.isinf(loss))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        model.zero_grad()
        if on_step(step, None if broken else loss.detach()):
            return
