"""The lexicon of a circuit: each token's typical output, learnt once and used for every guess.

Each token's mean output after a few prefixes of ordinary text is its entry. The scatter of outputs
about their entries is the metric in which a target is compared with them (a nearest-centroid
classifier with pooled covariance: linear discriminant analysis). At the first position there is no
prefix, so its entries are exact. An entry is a guess, never an answer: solvers verify.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.models import candidates_at_once

LENGTHS = (1, 2, 4, 8, 16)  # of the prefixes; together five sweeps of one position
RIDGE = 1e-4  # of the mean variance, added to the scatter before it is inverted


@dataclass(frozen=True)
class Lexicon:
    """Guesses tokens from outputs of one circuit.

    Attributes:
        circuit: a causal circuit.
        background: `(N, M)` tokens of ordinary text, N >= 5, M >= 16 or the context; none of it is
            ever the answer.
    """

    circuit: Circuit
    background: Tensor

    @cached_property
    def first(self) -> Tensor:
        """Every token's output at the first position, `(V, width)`: exact."""
        return _outputs(self.circuit, None)

    @cached_property
    def learnt(self) -> tuple[Tensor, Tensor]:
        """Every token's mean output after some text, `(V, width)`, and the scatter about it.

        The scatter is the covariance of outputs once a prefix's own shift is out. The outputs
        behind both, `(prefixes, V, width)`, are let go.
        """
        room = self.circuit.model.config.context - 1
        rows = self.background[: len(LENGTHS)]
        prefixes = [rows[i : i + 1, : min(n, room)] for i, n in enumerate(LENGTHS)]
        samples = torch.stack([_outputs(self.circuit, p) for p in prefixes if p.shape[1]])
        entries = samples.mean(dim=0)
        shift = samples.mean(dim=1, keepdim=True) - entries.mean(dim=0)
        apart = (samples - shift - entries).flatten(0, 1)
        return entries, apart.T @ apart / len(apart)

    def metric(self, low: int, high: int | None) -> Tensor:
        """Inverse scatter of the channels low ... high."""
        entries, scatter = self.learnt[0][:, low:high], self.learnt[1][low:high, low:high]
        ridge = RIDGE * entries.var() + torch.finfo(scatter.dtype).tiny
        return torch.linalg.inv(scatter + ridge * torch.eye(len(scatter)).to(scatter))


class Reader:
    """A lexicon as seen through some channels: the distances of targets from all entries."""

    def __init__(self, lexicon: Lexicon, low: int, high: int | None) -> None:
        self.lexicon, self.low, self.high = lexicon, low, high
        self.entries = lexicon.learnt[0][:, low:high]
        self._weighted = self.entries @ lexicon.metric(low, high)
        self._lengths = (self._weighted * self.entries).sum(dim=-1)

    def distances(self, target: Tensor) -> Tensor:
        """Of `(..., C)` targets from each entry, up to a constant of the target: `(..., V)`."""
        return self._lengths - 2 * target @ self._weighted.T

    def first(self, target: Tensor) -> Tensor:
        """Distance of first positions' targets, `(P, C)`, from each token's output: `(P, V)`."""
        return torch.cdist(target, self.lexicon.first[:, self.low : self.high])

    def again(self, target: Tensor, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Distances from targets when the outputs of guesses are known, `(..., V)`.

        A guess's output lacks as much as the true token's entry has more than the guess's.
        """
        return self.distances(self.entries[tokens] + target - outputs)


def _outputs(circuit: Circuit, prefix: Tensor | None) -> Tensor:
    state = None if prefix is None else circuit.prefix(prefix)
    parts = circuit.vocabulary.split(candidates_at_once(circuit.model))
    return torch.cat([circuit.step(tokens[:, None], state)[:, 0] for tokens in parts])
