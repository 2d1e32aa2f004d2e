"""AdamW over two groups of parameters, and the learning rate as a function of the step."""

import math

import torch
from torch import nn

from train.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Fused AdamW; only the matrices of linear layers decay.

    Not the embedding (nor a head tied to it): most of its rows have no gradient in a step, and
    would only shrink. Not triangles: their entries are weights over positions, not features.
    Not norms and biases.
    """
    embeddings = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    linear = {m.weight for m in model.modules() if isinstance(m, nn.Linear)} - embeddings
    groups = [
        {
            "params": [p for p in model.parameters() if p in linear],
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for p in model.parameters() if p not in linear], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


def rate(step: int, total: int, settings: ScheduleSettings) -> float:
    """Learning rate at a step, as a fraction of the highest: linear warm-up, then the decay.

    Args:
        step: optimiser steps done so far.
        total: optimiser steps in all.
        settings: the schedule.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    left = {
        "linear": 1 - done,
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "none": 1.0,
    }[settings.decay]
    return settings.floor + (1 - settings.floor) * left
