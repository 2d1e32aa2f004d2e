"""The optimiser and its learning rate: AdamW for all parameters, or Muon for the matrices.

Muon makes the momentum of every matrix orthogonal before it is applied (Jordan et al., "Muon: An
optimizer for hidden layers in neural networks", 2024), with the step size of Liu et al.,
2502.16982, under which one learning rate and one decay serve AdamW and Muon alike.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

# pyright: reportPrivateImportUsage=false
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from arch import LanguageModel
from arch.mixers import Triangle
from arch.model import matrices
from train.settings import OptimizerSettings, ScheduleSettings

ROUNDS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5: steep at 0, so that few rounds bring every singular value near 1."""


def build_optimizer(model: LanguageModel, settings: OptimizerSettings) -> Optimizer:
    """AdamW for all parameters, or for those that Muon does not take; fused, without complex ones.

    Only matrices over features decay (`arch.model.matrices`): the weights of linear layers, and
    those that a mixer keeps itself. Not the embedding (nor a head tied to it): most of its
    rows have no gradient in a step, and would only shrink. Not triangles: their entries are weights
    over positions, not features. Not norms and biases.

    Muon takes the matrices inside the blocks, which map a hidden state to a hidden state; and
    with `muon_mixing` the triangles.
    """
    muon = settings.name == "muon"
    hidden = matrices(model.blocks) if muon else []
    kinds = Triangle if settings.muon_mixing else ()
    triangles = [m.weight for m in model.blocks.modules() if isinstance(m, kinds)]
    taken, decaying = {*hidden, *triangles}, set(matrices(model))
    rest = [p for p in model.parameters() if p not in taken]
    groups = [
        {"params": [p for p in rest if p in decaying], "weight_decay": settings.weight_decay},
        {"params": [p for p in rest if p not in decaying], "weight_decay": 0.0},
    ]
    if settings.embedding_lr is not None:  # a checkpoint of a run without it has two groups
        embedding = model.embedding.weight
        for group in groups:
            group["params"] = [p for p in group["params"] if p is not embedding]
        groups.append({"params": [embedding], "weight_decay": 0.0, "lr": settings.embedding_lr})
    adamw = AdamW(
        groups,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=all(p.is_floating_point() for p in model.parameters()) or None,
    )
    if not muon:
        return adamw
    stacks = [
        {"params": hidden, "weight_decay": settings.weight_decay},
        {"params": triangles, "weight_decay": 0.0, "triangular": True},
    ]
    lr = settings.lr if settings.muon_lr is None else settings.muon_lr
    return CombinedOptimizer(adamw, Muon(stacks, lr, settings.muon_momentum))


def rate(step: int, total: int, settings: ScheduleSettings) -> float:
    """Learning rate at a step, as a fraction of the highest: linear warm-up, then the decay.

    `wsd` stays at the highest and falls at the end as one minus a root, by which the loss gets
    lower than by a straight line (Hägele et al., 2405.18392).
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    start = total - settings.cooldown(total) if settings.decay == "wsd" else warmup
    done = min(1.0, max(0, step - start) / max(1, total - start))
    fraction = {
        "linear": 1 - done,
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "wsd": 1 - math.sqrt(done),
        "none": 1.0,
    }[settings.decay]
    return settings.floor + (1 - settings.floor) * fraction


class Muon(Optimizer):
    """`torch.optim.Muon` with `match_rms_adamw`, to the bit, but all matrices of one shape at once.

    One by one, the small products of a small model would cost more in launches than in work. And
    unlike torch's it takes stacks of matrices `(..., A, B)`, and triangles: the update of a group
    with `triangular` true stays below the diagonal.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        defaults = {"momentum": momentum, "weight_decay": weight_decay, "triangular": False}
        super().__init__(groups, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore
        """Takes one step."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                self._step(parameters, group)

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Parameters of one shape."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        running = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(running, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, running, group["momentum"])
        update = orthogonalise(torch.stack(ahead))
        if group["triangular"]:
            update = update.tril()
        lr, largest = group["lr"], max(update.shape[-2:])
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        steps = update.to(parameters[0].dtype).unbind()
        torch._foreach_add_(parameters, steps, alpha=-lr * 0.2 * largest**0.5)


class CombinedOptimizer(Optimizer):
    """Several optimisers as one: one step, one state, the groups of all.

    Lightning steps, schedules and saves it as any other, by automatic optimisation.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        self._optimizers = optimizers
        self._counts = [len(optimizer.param_groups) for optimizer in optimizers]
        super().__init__(
            [group for optimizer in optimizers for group in optimizer.param_groups], {}
        )
        self._hand_out()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Takes one step of each optimiser."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of all."""
        super().load_state_dict(state_dict)
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives every optimiser its part of the groups and of the state held here."""
        groups = iter(self.param_groups)
        for optimizer, count in zip(self._optimizers, self._counts, strict=True):
            optimizer.param_groups = [next(groups) for _ in range(count)]
            optimizer.state = self.state


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each matrix, `(..., A, B)` in bfloat16.

    Newton-Schulz iterations: U S V^T becomes U S' V^T with every entry of S' near 1.
    """
    a, b, c = QUINTIC
    *stack, rows, columns = matrices.shape
    x = matrices.reshape(-1, rows, columns).bfloat16()
    x = x.mT if rows > columns else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    x = x.mT if rows > columns else x
    return x.reshape(*stack, rows, columns)
