"""The additive model: what hidden tokens change in the visible outputs nearly adds up.

With the change that each token makes at each hidden position known (one exact pass of the whole
vocabulary a position), the outputs of any of the V^k choices follow by addition, and the search for
the choice that explains what is missing is a sparse code over k dictionaries: a beam through the
positions and coordinate descent, by matrix products alone. What it finds is a guess: solvers run it
exactly, and start again from the best.
"""

import torch
from torch import Tensor

RIDGE = 100.0  # in squared features of unit size
PASSES = 2  # of coordinate descent over all positions; it rarely moves after


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
        keep: how many choices to give at most.
        beams: how many are followed.
        generator: the source of as many random choices that are followed beside them, if given.

    Returns:
        `(n, k)` numbers of candidates, the best first, all different, n <= keep.
    """
    k = len(changes)
    lengths = [change.square().sum(dim=1) for change in changes]
    # the position that explains most goes first: what remains for the others is least blurred
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
    """Guesses every token's change from that of a sample, by ridge regression on features.

    Args:
        features: of each token, `(V, M)`, of about unit size.
        sample: the tokens whose changes are known, `(n,)`.
        changes: those, `(n, F)`.

    Returns:
        `(V, F)`, those of the sample as given.
    """
    mean, X = changes.mean(dim=0), features[sample]
    gram = X.T @ X + RIDGE * torch.eye(X.shape[1]).to(X)
    guessed = mean + features @ torch.linalg.solve(gram, X.T @ (changes - mean))
    guessed[sample] = changes
    return guessed


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
