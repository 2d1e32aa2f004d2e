"""Levenberg-Marquardt on the embeddings, each row with its own damping, without any matrix."""

from collections.abc import Iterator

import torch
from torch import Tensor

from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import scaled_start
from eval.inversion.gradient.loop import Rows, dot, gradient
from eval.inversion.spaces import decode as decoded
from eval.inversion.spaces import residuals
from eval.jacobian import Linear, linearise

ENOUGH = 0.05  # of the gradient may be left when the inner iteration ends


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
    step kept what it promised, and rises where it did not.

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
    """What `relative` squares, `(B, M)`, filled up with zeros to the longest row."""
    most = max(problem.target[0].numel() for problem in batch.problems)

    def padded(shown: Tensor, target: Tensor) -> Tensor:
        each = residuals(shown, target)
        return torch.nn.functional.pad(each, (0, most - each.shape[1]))

    return batch.losses(embeddings, padded)
