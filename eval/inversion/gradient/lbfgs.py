"""L-BFGS with a history and a line search of each row's own: torch's couples the batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.loop import Rows, dot, gradient, with_gradient
from eval.inversion.spaces import decode as decoded

DECREASE, CURVATURE = 1e-4, 0.9  # the two conditions of Wolfe
TRIALS = 12  # points along a line before a row stays where it is


@gradient(steps=200, check=10, random=True, title="L-BFGS", word="lbfgs")
def lbfgs(rows: Rows, *, history: int = 10, decode: str = "euclid") -> Iterator[None]:
    """Downhill on the vectors, with what earlier steps taught of the curvature.

    Limited-memory BFGS (Nocedal & Wright, algorithm 7.5) on the embeddings. The line search bisects
    for the weak Wolfe conditions (Lewis & Overton, 2013), so that an objective with kinks will do
    as well.

    Args:
        rows: of any slices.
        history: steps remembered.
        decode: how tokens are read from the embeddings.
    """
    unit, T, D = rows.circuit.scale, rows.length, rows.vocabulary.shape[1]

    def read(x: Tensor) -> Tensor:
        return x.unflatten(1, (T, D)) * unit

    def evaluate(batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_gradient(lambda x: batch.losses(read(x), rows.objective), x)

    x = scaled_start(rows.batch, rows.chance).flatten(1) / unit
    at = _Point(x, *evaluate(rows.batch, x))
    rows.spent += 3 * T
    rows.scores = lambda: decoded(rows.circuit, read(at.x), decode)
    (B, N), past = x.shape, x.new_zeros
    moves = _History(past(B, history, N), past(B, history, N), past(B, history))
    while True:
        direction = -moves.inverse_hessian(at.gradient)
        slope = dot(direction, at.gradient)
        steepest = slope >= 0  # rounding spoilt the history
        direction = torch.where(steepest[:, None], -at.gradient, direction)
        slope = torch.where(steepest, -dot(at.gradient, at.gradient), slope)
        length = direction.norm(dim=1).clamp(min=1e-30)
        size = torch.ones_like(length) if moves.weights.any() else N**0.5 / length
        there, passes = _search(evaluate, rows.batch, at, direction, slope, size)
        moves.remember(there.x - at.x, there.gradient - at.gradient)
        at = there
        rows.spent += 3 * passes * T
        yield
        at, moves = rows.kept(at, moves)


@dataclass
class _Point:
    """Where each row is, `(B, N)` in standard deviations, its loss `(B,)` and gradient `(B, N)`."""

    x: Tensor
    loss: Tensor
    gradient: Tensor

    def __getitem__(self, rows: Tensor) -> "_Point":
        return _Point(self.x[rows], self.loss[rows], self.gradient[rows])


@dataclass
class _History:
    """Earlier moves and what they changed of the gradient, `(B, H, N)`; the newest stands last.

    Attributes:
        weights: 1 / (move . change), `(B, H)`; 0 where there is none.
    """

    moves: Tensor
    changes: Tensor
    weights: Tensor

    def __getitem__(self, rows: Tensor) -> "_History":
        return _History(self.moves[rows], self.changes[rows], self.weights[rows])

    def inverse_hessian(self, gradient: Tensor) -> Tensor:
        """The two-loop recursion; empty moves weigh nothing."""
        r, shares = gradient, []
        for h in reversed(range(self.weights.shape[1])):
            share = self.weights[:, h] * dot(self.moves[:, h], r)
            r = r - share[:, None] * self.changes[:, h]
            shares.append(share)
        newest = self.changes[:, -1]
        scale = 1 / (self.weights[:, -1] * dot(newest, newest))
        r = r * torch.where(scale.isfinite(), scale, 1.0)[:, None]
        for h, share in enumerate(reversed(shares)):
            back = self.weights[:, h] * dot(self.changes[:, h], r)
            r = r + (share - back)[:, None] * self.moves[:, h]
        return r

    def remember(self, move: Tensor, change: Tensor) -> None:
        """Drops the oldest pair for a new one, in the rows where the curvature stays above 0."""
        curvature = dot(move, change)
        good = (curvature > 1e-10 * dot(change, change))[:, None]

        def rolled(old: Tensor, new: Tensor) -> Tensor:
            moved = torch.cat([old[:, 1:], new[:, None]], dim=1)
            return torch.where(good.view(-1, *[1] * (old.dim() - 1)), moved, old)

        self.moves, self.changes = rolled(self.moves, move), rolled(self.changes, change)
        self.weights = rolled(self.weights, 1 / curvature)


def _search(
    evaluate: Callable[[Batch, Tensor], tuple[Tensor, Tensor]],
    batch: Batch,
    at: _Point,
    direction: Tensor,
    slope: Tensor,
    size: Tensor,
) -> tuple[_Point, int]:
    """Points that fall enough and flatten enough, rows that have theirs left out meanwhile."""
    x, loss, gradient = at.x.clone(), at.loss.clone(), at.gradient.clone()
    low, high = torch.zeros_like(size), torch.full_like(size, torch.inf)
    pending = torch.arange(len(x), device=x.device)
    for trial in range(TRIALS):
        there = at.x[pending] + size[pending, None] * direction[pending]
        f, g = evaluate(batch.of(pending), there)
        lower = f <= at.loss[pending] + DECREASE * size[pending] * slope[pending]
        flatter = dot(g, direction[pending]) >= CURVATURE * slope[pending]
        better = lower & (f <= loss[pending])  # the best so far, should the trials run out
        taken = pending[better]
        x[taken], loss[taken], gradient[taken] = there[better], f[better], g[better]
        high[pending[~lower]] = size[pending[~lower]]
        low[pending[lower & ~flatter]] = size[pending[lower & ~flatter]]
        pending = pending[~(lower & flatter)]
        if not len(pending):
            return _Point(x, loss, gradient), trial + 1
        bisected = (low[pending] + high[pending]) / 2
        size[pending] = torch.where(bisected.isfinite(), bisected, 2 * low[pending])
    return _Point(x, loss, gradient), TRIALS
