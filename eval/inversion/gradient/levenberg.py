"""Levenberg-Marquardt on the embeddings, each row with its own damping, without any matrix."""

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.decode import decode as decoded
from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.solver import Chance, Solver, drive
from eval.inversion.objective import residuals
from eval.jacobian import Linear, linearise

ENOUGH = 0.05  # of the gradient may be left when the inner iteration ends


def levenberg(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 30,
    inner: int = 30,
    damping: float = 1e-2,
    decode: str = "euclid",
    check: int = 1,
    start: Tensor | None = None,
) -> list[Answer]:
    """Levenberg-Marquardt (Nocedal & Wright, section 10.3) on `relative`'s residuals.

    A step d solves (J'J + damping) d = -J'r by conjugate gradients on the damped least squares
    (CGLS, Bjorck 1996), whose products with J and J' are exact. A row's damping falls where the
    step kept what it promised, and rises where it did not.

    Args:
        batch: any slices.
        chance: the source of each row's start, spread as the model's embedding.
        steps: the most that a row takes.
        inner: iterations for a step.
        damping: the first; about 1 holds a step back at an identity network.
        decode: how tokens are read from the embeddings, one of `DECODERS`.
        check: rows that are solved leave after every so many steps.
        start: embeddings to start from instead, `(B, T, D)`.
    """
    return drive(_Levenberg(batch, chance, inner, damping, decode, start), steps, check)


class _Levenberg(Solver):
    """In units of an embedding's length, flattened: x is `(B, N)`; so J is about 1."""

    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        inner: int,
        damping: float,
        decode: str,
        start: Tensor | None,
    ) -> None:
        super().__init__(batch, chance)
        self.inner, self.decode = inner, decode
        self.unit = batch.circuit.scale * self.shape[2] ** 0.5
        x = scaled_start(batch, chance) if start is None else start
        self.x = x.flatten(1) / self.unit
        self.damping = torch.full_like(self.x[:, 0], damping)

    def step(self, i: int) -> int:
        near = linearise(self._residuals, self.x)
        d, predicted, passes = self._solve(near)
        with torch.no_grad():
            reached = self._residuals(self.x + d).square().sum(dim=1)
        before = near.value.square().sum(dim=1)
        kept = (before - reached) / predicted.clamp(min=1e-30)
        self.x = torch.where((reached < before)[:, None], self.x + d, self.x)
        self.damping = torch.where(kept > 0.75, self.damping / 4, self.damping)
        self.damping = torch.where(~(kept > 0.25), self.damping * 4, self.damping)
        return (2 + passes) * self.batch.length

    @torch.no_grad()
    def scores(self) -> Tensor:
        return decoded(self.batch.circuit, self._read(self.x), self.decode)

    def _solve(self, near: Linear) -> tuple[Tensor, Tensor, int]:
        """The step, by how much it should lower the sum of squares, and the passes it took."""
        r, damping = near.value, self.damping[:, None]
        d, left = torch.zeros_like(self.x), -r  # left: -r - J d
        s = near.backward(left)
        p, size = s, _dot(s, s)
        wanted, passes = ENOUGH**2 * size, 2
        for _ in range(self.inner):
            q = near.forward(p)
            along = size / (_dot(q, q) + self.damping * _dot(p, p)).clamp(min=1e-30)
            along = torch.where(size > wanted, along, 0.0)[:, None]  # a row that is done stays
            d, left = d + along * p, left - along * q
            s = near.backward(left) - damping * d
            fresh = _dot(s, s)
            p = s + (fresh / size.clamp(min=1e-30))[:, None] * p
            size, passes = fresh, passes + 4
            if not (size > wanted).any():
                break
        return d, _dot(r, r) - _dot(left, left), passes

    def _residuals(self, x: Tensor) -> Tensor:
        """What `relative` squares, `(B, M)`, filled up with zeros to the longest row."""
        most = max(problem.target[0].numel() for problem in self.batch.problems)

        def padded(shown: Tensor, target: Tensor) -> Tensor:
            each = residuals(shown, target)
            return torch.nn.functional.pad(each, (0, most - each.shape[1]))

        return self.batch.losses(self._read(x), padded)

    def _read(self, x: Tensor) -> Tensor:
        return x.unflatten(1, self.shape[1:]) * self.unit


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1)
