"""L-BFGS with a history and a line search of each row's own: torch's couples the batch."""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.decode import decode as decoded
from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.solver import Chance, Solver, drive, with_gradient
from eval.inversion.objective import objective as by_name

DECREASE, CURVATURE = 1e-4, 0.9  # the two conditions of Wolfe
TRIALS = 12  # points along a line before a row stays where it is


def lbfgs(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 200,
    history: int = 10,
    objective: str = "relative",
    decode: str = "euclid",
    check: int = 10,
    start: Tensor | None = None,
) -> list[Answer]:
    """Limited-memory BFGS (Nocedal & Wright, algorithm 7.5) on the embeddings.

    The line search bisects for the weak Wolfe conditions (Lewis & Overton, 2013), so that an
    objective with kinks will do as well.

    Args:
        batch: any slices.
        chance: the source of each row's start, spread as the model's embedding.
        steps: the most that a row takes.
        history: steps remembered.
        objective: by its name.
        decode: how tokens are read from the embeddings, one of `DECODERS`.
        check: rows that are solved leave after every so many steps.
        start: embeddings to start from instead, `(B, T, D)`.
    """
    return drive(_Lbfgs(batch, chance, history, objective, decode, start), steps, check)


class _Lbfgs(Solver):
    """In units of the embedding's standard deviation, flattened: x is `(B, N)`."""

    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        history: int,
        objective: str,
        decode: str,
        start: Tensor | None,
    ) -> None:
        super().__init__(batch, chance)
        self.objective, self.decode = by_name(objective), decode
        self.unit = batch.circuit.scale
        x = scaled_start(batch, chance) if start is None else start
        self.x = x.flatten(1) / self.unit
        self.loss, self.gradient = self._look(batch, self.x)
        self.spent = 3 * batch.length
        B, N = self.x.shape
        self.moves, self.changes = self.x.new_zeros(B, history, N), self.x.new_zeros(B, history, N)
        self.weights = self.x.new_zeros(B, history)  # 1 / (move . change); 0 where there is none

    def step(self, i: int) -> int:
        direction = -self._inverse_hessian(self.gradient)
        slope = _dot(direction, self.gradient)
        steepest = slope >= 0  # rounding spoilt the history
        direction = torch.where(steepest[:, None], -self.gradient, direction)
        slope = torch.where(steepest, -_dot(self.gradient, self.gradient), slope)
        first = not self.weights.any()
        length = direction.norm(dim=1).clamp(min=1e-30)
        size = self.x.shape[1] ** 0.5 / length if first else torch.ones_like(length)
        x, loss, gradient, passes = self._search(direction, slope, size)
        self._remember(x - self.x, gradient - self.gradient)
        self.x, self.loss, self.gradient = x, loss, gradient
        return 3 * passes * self.batch.length

    @torch.no_grad()
    def scores(self) -> Tensor:
        return decoded(self.batch.circuit, self._read(self.x), self.decode)

    def _read(self, x: Tensor) -> Tensor:
        return x.unflatten(1, self.shape[1:]) * self.unit

    def _look(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_gradient(lambda x: batch.losses(self._read(x), self.objective), x)

    def _inverse_hessian(self, gradient: Tensor) -> Tensor:
        """The two-loop recursion; the newest move stands last, empty ones weigh nothing."""
        r, shares = gradient, []
        for h in reversed(range(self.weights.shape[1])):
            share = self.weights[:, h] * _dot(self.moves[:, h], r)
            r = r - share[:, None] * self.changes[:, h]
            shares.append(share)
        newest = self.changes[:, -1]
        scale = 1 / (self.weights[:, -1] * _dot(newest, newest))
        r = r * torch.where(scale.isfinite(), scale, 1.0)[:, None]
        for h, share in enumerate(reversed(shares)):
            back = self.weights[:, h] * _dot(self.changes[:, h], r)
            r = r + (share - back)[:, None] * self.moves[:, h]
        return r

    def _remember(self, move: Tensor, change: Tensor) -> None:
        """Drops the oldest pair for a new one, in the rows where the curvature stays above 0."""
        curvature = _dot(move, change)
        good = curvature > 1e-10 * _dot(change, change)
        for name, new in (("moves", move), ("changes", change), ("weights", 1 / curvature)):
            old = getattr(self, name)
            rolled = torch.cat([old[:, 1:], new[:, None]], dim=1)
            setattr(self, name, torch.where(good.view(-1, *[1] * (old.dim() - 1)), rolled, old))

    def _search(
        self, direction: Tensor, slope: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Points that fall enough and flatten enough, rows that have theirs left out meanwhile."""
        x, loss, gradient = self.x.clone(), self.loss.clone(), self.gradient.clone()
        low, high = torch.zeros_like(size), torch.full_like(size, torch.inf)
        pending = torch.arange(len(x), device=x.device)
        for trial in range(TRIALS):
            there = self.x[pending] + size[pending, None] * direction[pending]
            f, g = self._look(self.batch.of(pending), there)
            lower = f <= self.loss[pending] + DECREASE * size[pending] * slope[pending]
            flatter = _dot(g, direction[pending]) >= CURVATURE * slope[pending]
            better = lower & (f <= loss[pending])  # the best so far, should the trials run out
            taken = pending[better]
            x[taken], loss[taken], gradient[taken] = there[better], f[better], g[better]
            high[pending[~lower]] = size[pending[~lower]]
            low[pending[lower & ~flatter]] = size[pending[lower & ~flatter]]
            pending = pending[~(lower & flatter)]
            if not len(pending):
                return x, loss, gradient, trial + 1
            bisected = (low[pending] + high[pending]) / 2
            size[pending] = torch.where(bisected.isfinite(), bisected, 2 * low[pending])
        return x, loss, gradient, TRIALS


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1)
