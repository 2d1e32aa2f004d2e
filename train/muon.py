"""Muon: momentum whose every matrix is made orthogonal before it is applied.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with the step size
of Liu et al., 2502.16982, under which one learning rate and one decay serve AdamW and Muon alike.
"""

from collections.abc import Callable, Iterable
from typing import Any

# pyright: reportPrivateImportUsage=false
import torch
from torch import Tensor
from torch.optim import Optimizer

ROUNDS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5: steep at 0, so that few rounds bring every singular value near 1."""


class Muon(Optimizer):
    """`torch.optim.Muon` with `match_rms_adamw`, to the bit, but all matrices of one shape at once.

    One by one, the small products of a small model would cost more in launches than in work. And
    unlike torch's it takes stacks of matrices, and triangles.

    Args:
        groups: parameters `(..., A, B)`; with `triangular` true, the update of a group stays below
            the diagonal.
        lr: learning rate.
        momentum: decay of the gradient's running mean, which is used with Nesterov's look ahead.
        weight_decay: decoupled decay.
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
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                self._step(parameters, group)
        return loss

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


class Together(Optimizer):
    """Several optimisers as one: one step, one state, the groups of all.

    Lightning steps, schedules and saves it as any other, by automatic optimisation.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        self._optimizers = optimizers
        self._counts = [len(optimizer.param_groups) for optimizer in optimizers]
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """One step of each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimiser's."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Every optimiser works on its part of the groups and the state held here."""
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
