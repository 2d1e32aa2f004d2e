"""The Gaussian classifier of tokens (Fisher's linear discriminant), from sums over examples alone.

Each token's features are taken to lie around a mean, all with one covariance: score
-|x - mean|^2 / 2 in that covariance's metric. A mean is estimated from the token's examples and
from its embedding, mapped to features by least squares, which counts as `PRIOR` examples and stands
in for tokens without examples.
"""

from typing import NamedTuple

import torch
from torch import Tensor

PRIOR = 1.0  # examples that a mean guessed from the embedding is worth
RIDGE = 1e-4  # of the mean variance, added to what least squares inverts
SHRINK = 1e-5  # of the mean variance, added to the covariance within tokens
TINY = 1e-9  # the same of the whole second moment: at the embedding nothing varies within a token
SMOOTHING = 0.5  # examples added to each token's when its share is estimated
PART = 64  # windows, or examples, that are summed at once
FACTOR_STEPS = 10  # of Newton's method


class Classifier(NamedTuple):
    """Scores of the vocabulary, linear in the features: `(x - center) @ weight + bias`.

    `center` is `(F,)`, `weight` `(F, V)`, `bias` `(V,)`.
    """

    center: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """`(..., F)` features to `(..., V)` scores."""
        return (features.to(self.weight.dtype) - self.center) @ self.weight + self.bias


class TokenMoments(NamedTuple):
    """Sums over examples, each with F features and a token, in float64."""

    count: Tensor  # examples of each token, (V,)
    total: Tensor  # sum of their features, (V, F)
    second: Tensor  # sum of all outer products, (F, F)

    @classmethod
    def of(
        cls, features: Tensor, tokens: Tensor, vocabulary: int, second: Tensor | None = None
    ) -> "TokenMoments":
        """Moments of `(N, ..., F)` features of `(N, ...)` tokens; `second` where it is known."""
        width, device = features.shape[-1], features.device
        total = torch.zeros(vocabulary, width, dtype=torch.float64, device=device)
        for x, y in zip(features.split(PART), tokens.split(PART), strict=True):
            total.index_add_(0, y.flatten(), x.flatten(0, -2).double())
        count = torch.bincount(tokens.flatten(), minlength=vocabulary).double()
        return cls(count, total, second_moment(features) if second is None else second)

    @property
    def mean(self) -> Tensor:
        """Mean of the features, `(F,)`."""
        return self.total.sum(dim=0) / self.count.sum()

    @property
    def covariance(self) -> Tensor:
        """Covariance of the features over all examples, `(F, F)`."""
        return self.second / self.count.sum() - torch.outer(self.mean, self.mean)

    def log_share(self) -> Tensor:
        """Log of each token's share of the examples, `(V,)`, none of them zero."""
        smoothed = self.count + SMOOTHING
        return (smoothed / smoothed.sum()).log()


def second_moment(features: Tensor) -> Tensor:
    """Sum of the outer products of `(N, ..., F)` features, `(F, F)` in float64."""
    width = features.shape[-1]
    second = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for part in features.split(PART):
        x = part.flatten(0, -2).double()
        second += x.T @ x
    return second


def token_means(moments: TokenMoments, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Mean features of each token, `(V, F)`, and the covariance about them, `(F, F)`."""
    E, n, m = embedding.double(), moments.count, moments.mean
    N = n.sum()
    offsets = E - n @ E / N
    spread = offsets.T @ (n[:, None] * offsets) / N
    cross = offsets.T @ (moments.total - n[:, None] * m) / N
    guessed = m + offsets @ torch.linalg.solve(add_ridge(spread, RIDGE), cross)
    means = (moments.total + PRIOR * guessed) / (n + PRIOR)[:, None]
    mixed = moments.total.T @ means
    within = (moments.second - mixed - mixed.T + means.T @ (n[:, None] * means)) / N
    floor = TINY * moments.second.diagonal().mean() / N
    return means, within + floor * torch.eye(len(m), dtype=m.dtype, device=m.device)


def gaussian(moments: TokenMoments, embedding: Tensor) -> Classifier:
    """The Gaussian classifier, every token held equally likely beforehand."""
    (means, within), center = token_means(moments, embedding), moments.mean
    offsets = means - center
    weight = torch.linalg.solve(add_ridge(within, SHRINK), offsets.T)
    bias = -0.5 * (offsets * weight.T).sum(dim=1)
    return Classifier(center.float(), weight.float(), bias.float())


def calibrated(classify: Classifier, log_share: Tensor, x: Tensor, y: Tensor) -> Classifier:
    """Logits `factor * score + log share`, with the factor that predicts some examples best.

    By Newton's method, as the loss is convex in the factor.

    Args:
        classify: scores in any unit.
        log_share: of each token beforehand, `(V,)`.
        x: features of examples that the classifier was not fitted on, `(N, F)`.
        y: their tokens, `(N,)`.
    """
    scores = classify(x).double()
    scores = scores - scores.mean(dim=1, keepdim=True)
    unit = float(scores.std().clamp(min=1e-30))
    scores, factor = scores / unit, 1.0
    of_truth = scores.gather(1, y[:, None]).mean()
    for _ in range(FACTOR_STEPS):
        p = (factor * scores + log_share).softmax(dim=1)
        expected = (p * scores).sum(dim=1)
        slope = expected.mean() - of_truth
        curve = (p * scores.square()).sum(dim=1).mean() - expected.square().mean()
        moved = factor - float(slope / curve.clamp(min=1e-12))
        factor = min(max(moved, factor / 3), 3 * factor)
    factor /= unit
    return Classifier(classify.center, factor * classify.weight, factor * classify.bias + log_share)


def add_ridge(matrix: Tensor, fraction: float) -> Tensor:
    """The matrix `(F, F)` with a fraction of its diagonal's mean added to the diagonal."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return matrix + fraction * matrix.diagonal().mean() * eye
