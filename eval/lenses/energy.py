"""How much of a stream lies where logits are read from: the span of the output embedding.

With more tokens than features and no feature unread, the span is all there is (less the direction
of the mean under a LayerNorm), and every share of it is 1. What can differ then is where in the
span a vector lies: in the few directions that most logits read, or along the tokens' own
directions, which is the token energy of Wendler et al. ("Do Llamas Work in English?", 2402.10588).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arch import LanguageModel
from eval.lenses.readout import readers


@dataclass(frozen=True)
class TokenSpace:
    """The directions that logits read.

    Attributes:
        basis: of the stream's features, orthonormal, `(D, D)`; the columns most read come first.
        strength: how much each is read: singular values of the readers, `(D,)`.
        rank: how many are read at all: singular values above max(V, D) eps times the largest, eps
            that of the weights' precision.
        cosines: `U^T U / V` for readers U of length 1, `(D, D)`.
    """

    basis: Tensor
    strength: Tensor
    rank: int
    cosines: Tensor

    @classmethod
    def of(cls, model: LanguageModel, centred: bool = False) -> TokenSpace:
        """Of a model's head, with its final norm's weights folded in.

        Args:
            model: whose head.
            centred: whether the readers' mean over the vocabulary is taken away.

        Raises:
            RequestError: a final norm that is not known.
        """
        rows = readers(model)
        precision = torch.finfo(rows.dtype).eps
        rows = rows.double()
        if centred:
            rows = rows - rows.mean(dim=0)
        squares, basis = torch.linalg.eigh(rows.T @ rows)
        strength = squares.clamp(min=0).sqrt().flip(0)
        rank = int((strength > max(rows.shape) * precision * strength[0]).sum())
        units = torch.nn.functional.normalize(rows, dim=-1)
        return cls(basis.flip(1), strength, rank, units.T @ units / len(rows))

    def share(self, x: Tensor, directions: int | None = None) -> Tensor:
        """Squared-norm share of x `(..., D)` inside the span, or its most read directions.

        1 for a vector inside; directions / D is the share of one that points anywhere.
        """
        basis = self.basis[:, : self.rank if directions is None else directions].to(x.dtype)
        return (x @ basis).square().sum(-1) / _squares(x)

    def energy(self, x: Tensor) -> Tensor:
        """Root mean squared cosine of x `(..., D)` to the readers, over their own among them.

        E(x) = sqrt(mean_v cos(x, u_v)^2 / mean_vw cos(u_v, u_w)^2): 1 for a vector that is as near
        to the readers as they are to each other.
        """
        own = self.cosines.square().sum()
        seen = (x @ self.cosines.to(x.dtype) * x).sum(-1) / _squares(x)
        return (seen.clamp(min=0) / own.to(x.dtype)).sqrt()

    def holding(self, share: float) -> int:
        """The fewest directions that hold a share of all squared reading."""
        held = self.strength.square().cumsum(0) / self.strength.square().sum()
        return int((held < share).sum()) + 1


def _squares(x: Tensor) -> Tensor:
    return x.square().sum(-1).clamp(min=torch.finfo(x.dtype).tiny)
