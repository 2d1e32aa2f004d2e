"""Which optimiser steps which parameters, and the learning rate as a function of the step."""

import math

from torch.optim import AdamW, Optimizer

from arch import LanguageModel
from arch.init import matrices
from arch.mixers import Triangle
from train.muon import Muon, Together
from train.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(model: LanguageModel, settings: OptimizerSettings) -> Optimizer:
    """Fused AdamW for all parameters, or for those that Muon does not take.

    Only matrices over features decay (`arch.init.matrices`): the weights of linear layers, and
    those that a mixer keeps itself. Not the embedding (nor a head tied to it): most of its
    rows have no gradient in a step, and would only shrink. Not triangles: their entries are weights
    over positions, not features. Not norms and biases.

    Muon takes the matrices inside the blocks, which map a hidden state to a hidden state; and
    with `muon_mixing` the triangles.
    """
    hidden, triangles = [], []
    if settings.name == "muon":
        hidden = matrices(model.blocks)
    if settings.muon_mixing:
        triangles = [m.weight for m in model.blocks.modules() if isinstance(m, Triangle)]
    taken = set(hidden + triangles)
    decaying = set(matrices(model))
    rest = [p for p in model.parameters() if p not in taken]
    adamw = AdamW(
        [
            {
                "params": [p for p in rest if p in decaying],
                "weight_decay": settings.weight_decay,
            },
            {"params": [p for p in rest if p not in decaying], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )
    if settings.name == "adamw":
        return adamw
    groups = [
        {"params": hidden, "weight_decay": settings.weight_decay},
        {"params": triangles, "weight_decay": 0.0, "triangular": True},
    ]
    lr = settings.lr if settings.muon_lr is None else settings.muon_lr
    return Together(adamw, Muon(groups, lr, settings.muon_momentum))


def rate(step: int, total: int, settings: ScheduleSettings) -> float:
    """Learning rate at a step, as a fraction of the highest: linear warm-up, then the decay.

    `wsd` stays at the highest and falls at the end as one minus a root, by which the loss gets
    lower than by a straight line (Hägele et al., 2405.18392).

    Args:
        step: optimiser steps done so far.
        total: optimiser steps in all.
        settings: the schedule.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    start = total - settings.cooldown(total) if settings.decay == "wsd" else warmup
    done = min(1.0, max(0, step - start) / max(1, total - start))
    left = {
        "linear": 1 - done,
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "wsd": 1 - math.sqrt(done),
        "none": 1.0,
    }[settings.decay]
    return settings.floor + (1 - settings.floor) * left
