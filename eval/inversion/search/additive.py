"""The additive model: the changes that hidden tokens make in the visible outputs nearly add up.

With the change that each token makes at each hidden position known (one exact pass of the whole
vocabulary a position), the outputs of any of the V^k choices follow by addition. The choice that
explains what is missing is then a sparse code over k dictionaries: a beam through the positions and
coordinate descent find it by matrix products alone. It is a guess: solvers run it exactly.

Where V is large, only a sample's changes are known, and the others are guessed from them by a
linear map. Changes are then compared in the metric of that map's errors: a few channels of a
trained transformer are a thousand times as large as the others and say the least of a token.
"""

import itertools

import torch
from torch import Tensor

from eval.inversion.readback import LEAST, whitening

RIDGE = 100.0  # in squared features of unit size
SHRINK = 0.1  # of each feature's variance, added to it
ALONE = 0.05  # of a token's weight in the fit, at least, is the others'
PASSES = 2  # of coordinate descent over all positions; it rarely moves after
ALL_ORDERS = 4  # up to here every permutation of the hidden tokens is tried, beyond only swaps


def explain(
    changes: list[Tensor],
    missing: Tensor,
    keep: int,
    beams: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choices of one token a position whose changes add up to about what is missing.

    Args:
        changes: of each of k positions, each candidate's, `(V_j, F)`.
        missing: `(F,)`.
        keep: choices to give, at most.
        beams: choices followed.
        generator: the source of as many random choices that are followed beside them, if given.

    Returns:
        `(n, k)` numbers of candidates, the best first, all different, n <= keep.
    """
    k = len(changes)
    lengths = [change.square().sum(dim=1) for change in changes]
    # the position with the largest changes goes first: the remainder is then least blurred
    order = sorted(range(k), key=lambda j: -float(lengths[j].mean()))
    remaining, chosen = missing[None], torch.zeros(1, k, dtype=torch.long, device=missing.device)
    for j in order:
        apart = remaining.square().sum(dim=1)[:, None] + lengths[j] - 2 * remaining @ changes[j].T
        best = apart.flatten().topk(min(beams, apart.numel()), largest=False).indices
        beam, picked = best // len(changes[j]), best % len(changes[j])
        chosen = chosen[beam].clone()
        chosen[:, j] = picked
        remaining = remaining[beam] - changes[j][picked]
    if k > 1 and generator is not None:
        rows = [torch.randint(len(c), (beams,), generator=generator) for c in changes]
        drawn = torch.stack(rows, dim=1).to(chosen)
        chosen = torch.cat([chosen, drawn])
        taken = torch.stack([changes[j][drawn[:, j]] for j in range(k)]).sum(dim=0)
        remaining = torch.cat([remaining, missing - taken])
    if k > 1:
        for j in list(range(k)) * PASSES:
            remaining = remaining + changes[j][chosen[:, j]]
            chosen[:, j] = (lengths[j] - 2 * remaining @ changes[j].T).argmin(dim=1)
            remaining = remaining - changes[j][chosen[:, j]]
    ranked = chosen[remaining.square().sum(dim=1).argsort()]
    return _different(ranked)[:keep]


def extrapolate(features: Tensor, sample: Tensor, changes: Tensor) -> Tensor:
    """Guesses every token's change, `(V, F)`, from that of a sample, by ridge regression.

    Args:
        features: of each token, `(V, M)`, of about unit size.
        sample: the tokens whose changes are known, `(n,)`; they stay as given.
        changes: those, `(n, F)`.
    """
    mean = changes.mean(dim=0)
    guessed = mean + features @ (_fit(features[sample]) @ (changes - mean))
    guessed[sample] = changes
    return guessed


def metric_of_misses(features: Tensor, changes: list[Tensor]) -> Tensor:
    """A metric that gives unit scatter to the errors of `extrapolate`, of all positions added.

    `(F, F)`, to multiply changes with. Each token of the sample is guessed from the others of it,
    by its features `(n, M)` and its changes at each position, `(n, F)`.
    """
    fit = _fit(features)
    share = (features * fit.T).sum(dim=1).clamp(max=1 - ALONE)
    scatter = least = torch.zeros((), dtype=torch.float64, device=features.device)
    for change in changes:
        change = change - change.mean(dim=0)
        missed = ((change - features @ (fit @ change)) / (1 - share)[:, None]).double()
        scatter = scatter + missed.T @ missed / len(missed)
        least = least + LEAST * change.double().square().mean()
    scatter.diagonal().clamp_(min=float(least) or 1.0)
    return whitening(scatter, SHRINK).to(features)


def orders(k: int) -> list[tuple[int, ...]]:
    """The order as it is, then all permutations of a few, or all swaps and rotations of many."""
    if k <= ALL_ORDERS:
        return list(itertools.permutations(range(k)))
    here = tuple(range(k))
    swaps = []
    for i, j in itertools.combinations(here, 2):
        swapped = list(here)
        swapped[i], swapped[j] = j, i
        swaps.append(tuple(swapped))
    return [here, *swaps, *(here[r:] + here[:r] for r in range(1, k))]


def _fit(X: Tensor) -> Tensor:
    """Ridge regression on `(n, M)` features: the map of `(n, F)` changes to slopes, `(M, n)`."""
    return torch.linalg.solve(X.T @ X + RIDGE * torch.eye(X.shape[1]).to(X), X.T)


def nearest_single(changes: Tensor, missing: Tensor, count: int) -> Tensor:
    """The numbers of the `(n, F)` changes that alone come nearest to what is missing."""
    apart = (changes - missing).square().sum(dim=1)
    return apart.topk(min(count, len(apart)), largest=False).indices


def _different(rows: Tensor) -> Tensor:
    """Rows without repetition, in the order of their first appearance."""
    _, number = torch.unique(rows, dim=0, return_inverse=True)
    place = torch.arange(len(rows), device=rows.device)
    first = place.new_full((int(number.max()) + 1,), len(rows))
    first.scatter_reduce_(0, number, place, "amin")
    return rows[first.sort().values]
