"""Solvers of second order: L-BFGS, and Levenberg-Marquardt without any matrix.

Each row has a history, a line search and a damping of its own: torch's L-BFGS couples the batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.loop import Rows, dot, gradient, with_gradient
from eval.inversion.problem import Batch
from eval.inversion.spaces import decode as decoded
from eval.inversion.spaces import residuals
from eval.jacobian import Linear, linearise

DECREASE, CURVATURE = 1e-4, 0.9  # the two conditions of Wolfe
TRIALS = 12  # points along a line before a row stays where it is
ENOUGH = 0.05  # of the gradient may be left when the inner iteration ends


@gradient(steps=200, check=10, random=True, title="L-BFGS", word="lbfgs")
def lbfgs(rows: Rows, *, history: int = 10, decode: str = "euclid") -> Iterator[None]:
    """Downhill on the vectors, with a curvature estimated from earlier steps.

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
    """Earlier moves and the changes of the gradient with them, `(B, H, N)`; the newest stands last.

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


@gradient(
    steps=30,
    check=1,
    objective="",
    random=True,
    cost=lambda V, T, k: 30 * 130 * T,
    title="Levenberg-Marquardt",
    short="Levenberg",
)
def levenberg(
    rows: Rows, *, inner: int = 30, damping: float = 1e-2, decode: str = "euclid"
) -> Iterator[None]:
    """Solves for the vectors as a least-squares problem, made linear anew at each step.

    Levenberg-Marquardt (Nocedal & Wright, section 10.3) on the residuals of the relative objective.
    A step d solves (J'J + damping) d = -J'r by conjugate gradients on the damped least squares
    (CGLS, Bjorck 1996), whose products with J and J' are exact. A row's damping falls where the
    loss fell as predicted, and rises where it did not.

    Args:
        rows: of any slices.
        inner: iterations for a step.
        damping: the first; about 1 holds a step back at an identity network.
        decode: how tokens are read from the embeddings.
    """
    T, D = rows.length, rows.vocabulary.shape[1]
    unit = rows.circuit.scale * D**0.5  # an embedding's length; so J is about 1

    def read(x: Tensor) -> Tensor:
        return x.unflatten(1, (T, D)) * unit

    x = scaled_start(rows.batch, rows.chance).flatten(1) / unit
    damped = torch.full_like(x[:, 0], damping)
    rows.scores = lambda: decoded(rows.circuit, read(x), decode)
    while True:
        near = linearise(lambda x: _residuals(rows.batch, read(x)), x)
        d, predicted, passes = _solve(near, x, damped[:, None], inner)
        reached = _residuals(rows.batch, read(x + d)).square().sum(dim=1)
        before = near.value.square().sum(dim=1)
        kept = (before - reached) / predicted.clamp(min=1e-30)
        x = torch.where((reached < before)[:, None], x + d, x)
        damped = torch.where(kept > 0.75, damped / 4, damped)
        damped = torch.where(~(kept > 0.25), damped * 4, damped)
        rows.spent += (2 + passes) * T
        yield
        x, damped = rows.kept(x, damped)


def _solve(near: Linear, x: Tensor, damping: Tensor, inner: int) -> tuple[Tensor, Tensor, int]:
    """The step, by how much it should lower the sum of squares, and the passes it took."""
    r, d = near.value, torch.zeros_like(x)
    remaining = -r  # -r - J d
    s = near.backward(remaining)
    p, size = s, dot(s, s)
    wanted, passes = ENOUGH**2 * size, 2
    for _ in range(inner):
        q = near.forward(p)
        along = size / (dot(q, q) + damping[:, 0] * dot(p, p)).clamp(min=1e-30)
        along = torch.where(size > wanted, along, 0.0)[:, None]  # a row that is done stays
        d, remaining = d + along * p, remaining - along * q
        s = near.backward(remaining) - damping * d
        fresh = dot(s, s)
        p = s + (fresh / size.clamp(min=1e-30))[:, None] * p
        size, passes = fresh, passes + 4
        if not (size > wanted).any():
            break
    return d, dot(r, r) - dot(remaining, remaining), passes


def _residuals(batch: Batch, embeddings: Tensor) -> Tensor:
    """The residuals of `relative`, `(B, M)`, filled up with zeros to the longest row."""
    most = max(problem.target[0].numel() for problem in batch.problems)

    def padded(shown: Tensor, target: Tensor) -> Tensor:
        each = residuals(shown, target)
        return torch.nn.functional.pad(each, (0, most - each.shape[1]))

    return batch.losses(embeddings, padded)
