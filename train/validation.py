"""The loss on the validation split."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from train.module import LanguageModule


def validation_loss(trainer: Trainer, module: LanguageModule) -> tuple[float, int]:
    """Mean loss in nats over the validation split, and over how many tokens."""
    sums: list[Any] = []
    module.eval()
    with torch.no_grad():
        for i, batch in enumerate(trainer.datamodule.val_dataloader()):  # pyright: ignore
            on_device = tuple(tensor.to(module.device) for tensor in batch)
            sums.append(trainer.strategy.validation_step(on_device, i))
    module.train()
    total = torch.stack(sums).cpu().double().sum(0) if sums else torch.zeros(2).double()
    if trainer.world_size > 1:
        total = trainer.strategy.reduce(total.to(module.device), reduce_op="sum")
    nats, tokens = total.tolist()  # pyright: ignore
    return nats / tokens, int(tokens)
