"""The additive model: the changes that hidden tokens make in the visible outputs nearly add up.

With the change that each token makes at each hidden position known, the outputs of any of the V^k
choices follow by addition. The choice that explains what is missing is then a sparse code over k
dictionaries: a beam through the positions and coordinate descent find it by matrix products alone.
It is a guess: solvers run it exactly.

Where V is large, only a sample's changes are known, and the others are guessed from them by a
linear map. Changes are then compared in the metric of that map's errors: a few channels of a
trained transformer are a thousand times as large as the others and say the least of a token.

P prompts are treated at once, and the host never waits for the device.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.guesses import LEAST, whitening

RIDGE = 100.0  # in squared features of unit size
SHRINK = 0.1  # of each feature's variance, added to it
ALONE = 0.05  # of a token's weight in the fit, at least, is the others'
PASSES = 2  # of coordinate descent over all positions; it rarely moves after
ALL_ORDERS = 4  # up to here every permutation of the hidden tokens is tried, beyond only swaps


@dataclass
class Changes:
    """The changes that n tokens make in F outputs, at each of k hidden positions of P prompts.

    Attributes:
        slopes: `(P, k, n, F)`, or `(P, k, M, F)` where they are linear in features.
        features: of each token, `(n, M)`; None where `slopes` are the changes.
    """

    slopes: Tensor
    features: Tensor | None = None

    def lengths(self) -> Tensor:
        """The squared length of each change, `(P, k, n)`."""
        if self.features is None:
            return self.slopes.square().sum(dim=-1)
        parts = self.slopes.unbind(dim=1)
        squares = [((self.features @ (s @ s.mT)) * self.features).sum(dim=-1) for s in parts]
        return torch.stack(squares, dim=1)

    def match(self, j: int, remaining: Tensor) -> Tensor:
        """Products of `(P, b, F)` with each token's change at position j, `(P, b, n)`."""
        products = remaining @ self.slopes[:, j].mT
        return products if self.features is None else products @ self.features.T

    def take(self, j: int, tokens: Tensor) -> Tensor:
        """The changes of `(P, b)` tokens at position j, `(P, b, F)`."""
        if self.features is not None:
            return self.features[tokens] @ self.slopes[:, j]
        return self.slopes[torch.arange(len(tokens), device=tokens.device)[:, None], j, tokens]

    def singles(self, missing: Tensor) -> Tensor:
        """How far each change alone lies from what is missing `(P, F)`, squared, `(P, k, n)`."""
        squares = self.lengths() + missing.square().sum(dim=-1)[:, None, None]
        positions = range(self.slopes.shape[1])
        products = torch.cat([self.match(j, missing[:, None]) for j in positions], dim=1)
        return (squares - 2 * products).clamp(min=0)


def explain(changes: Changes, missing: Tensor, beams: int, drawn: Tensor | None = None) -> Tensor:
    """Choices of one token a position whose changes add up to about what is missing.

    Args:
        changes: of n tokens at k positions.
        missing: `(P, F)`.
        beams: choices followed.
        drawn: choices that are improved beside them, `(P, b, k)`.

    Returns:
        `(P, choices, k)` numbers of tokens, the best first; some stand there more than once.
    """
    lengths = changes.lengths()
    P, k, n = lengths.shape
    # the position with the largest changes goes first: the remainder is then least blurred
    order = lengths.mean(dim=-1).argsort(dim=1, descending=True)
    lengths = lengths.take_along_dim(order[..., None], dim=1)
    slopes = changes.slopes.take_along_dim(order[..., None, None], dim=1)
    changes = Changes(slopes, changes.features)
    rows = torch.arange(P, device=missing.device)[:, None]
    remaining, chosen = missing[:, None], order.new_empty(P, 1, 0)
    for j in range(k):
        squares = lengths[:, j, None] - 2 * changes.match(j, remaining)
        squares += remaining.square().sum(dim=-1, keepdim=True)
        best = squares.flatten(1).topk(min(beams, squares[0].numel()), largest=False).indices
        beam, picked = best // n, best % n
        chosen = torch.cat([chosen[rows, beam], picked[..., None]], dim=-1)
        remaining = remaining[rows, beam] - changes.take(j, picked)
    if k > 1 and drawn is not None:
        drawn = drawn.take_along_dim(order[:, None], dim=2)
        taken = torch.stack([changes.take(j, drawn[..., j]) for j in range(k)]).sum(dim=0)
        chosen = torch.cat([chosen, drawn], dim=1)
        remaining = torch.cat([remaining, missing[:, None] - taken], dim=1)
    for j in list(range(k)) * PASSES if k > 1 else ():
        remaining = remaining + changes.take(j, chosen[..., j])
        chosen[..., j] = (lengths[:, j, None] - 2 * changes.match(j, remaining)).argmin(dim=-1)
        remaining = remaining - changes.take(j, chosen[..., j])
    best = remaining.square().sum(dim=-1).argsort(dim=1)
    return chosen[rows, best].take_along_dim(order.argsort(dim=1)[:, None], dim=2)


def different(choices: Tensor) -> tuple[Tensor, Tensor]:
    """Each prompt's `(P, b, k)` choices with repetitions last, and how many differ, `(P,)`."""
    same = (choices[:, :, None] == choices[:, None]).all(dim=-1)
    again = same.tril(diagonal=-1).any(dim=-1)
    first = again.byte().argsort(dim=1, stable=True)
    return choices.take_along_dim(first[..., None], dim=1), (~again).sum(dim=1)


def extrapolate(features: Tensor, sample: Tensor, changes: Tensor) -> tuple[Changes, Tensor]:
    """Guesses every token's change from those of a sample, by ridge regression.

    Args:
        features: of each token, `(V, M)`, of about unit size.
        sample: the tokens whose changes are known, `(P, n)`.
        changes: those, `(P, k, n, F)`.

    Returns:
        The guesses, and a metric that gives unit scatter to their errors, of all positions added:
        `(P, F, F)`, to multiply changes with. An error is that of a token of the sample when it is
        guessed from the others.
    """
    X = features[sample]
    ridge = RIDGE * torch.eye(X.shape[-1]).to(X)
    fit = torch.linalg.solve_ex(X.mT @ X + ridge, X.mT).result  # (P, M, n)
    mean = changes.mean(dim=2, keepdim=True)
    around = changes - mean
    slopes = fit[:, None] @ around
    fraction = (X * fit.mT).sum(dim=-1).clamp(max=1 - ALONE)
    missed = (around - X[:, None] @ slopes) / (1 - fraction)[:, None, :, None]
    missed = missed.flatten(1, 2) / sample.shape[1] ** 0.5
    least = LEAST * around.square().mean(dim=(2, 3)).sum(dim=1, keepdim=True)
    scatter = missed.mT @ missed
    variances = scatter.diagonal(dim1=1, dim2=2)
    variances.copy_(torch.maximum(variances, least.where(least > 0, torch.ones_like(least))))
    constant = torch.cat([torch.ones_like(features[:, :1]), features], dim=1)
    guesses = Changes(torch.cat([mean, slopes], dim=2), constant)
    return guesses, whitening(scatter, SHRINK)


def promising(
    guessed: Changes, sample: Tensor, sampled: Tensor, missing: Tensor, beams: int, count: int
) -> tuple[Tensor, Tensor]:
    """The tokens beside a sample whose changes are worth computing, `(P, k, n)`.

    First those that explain what is missing together with others, then those that do alone. With
    them, how well each token of the vocabulary fits, `(P, k, V)`.
    """
    squares = guessed.singles(missing)
    known = (sampled - missing[:, None, None]).square().sum(dim=-1)
    fits = -squares.scatter(2, sample, known).sqrt()
    chosen = explain(guessed, missing, beams).mT
    first = torch.arange(-chosen.shape[2], 0, device=chosen.device).to(squares)
    squares = squares.scatter_reduce(2, chosen, first.expand_as(chosen), "amin")
    squares = squares.scatter(2, sample, torch.inf)
    count = min(count, squares.shape[2] - sample.shape[2])
    return squares.topk(count, largest=False).indices, fits


def orders(k: int) -> list[tuple[int, ...]]:
    """The order as it is, then all permutations of a few, or all swaps and rotations of many."""
    if k <= ALL_ORDERS:
        return list(itertools.permutations(range(k)))
    here = tuple(range(k))
    pairs = itertools.combinations(here, 2)
    swaps = [tuple({i: j, j: i}.get(t, t) for t in here) for i, j in pairs]
    return [here, *swaps, *(here[r:] + here[:r] for r in range(1, k))]
