"""The lexicon of a circuit: each token's typical output, learnt once and used for every guess.

The whole vocabulary is run after a few prefixes of ordinary text. A token's mean output over those
prefixes is its entry; how outputs scatter around their entries is the metric in which a target is
compared with them (a nearest-centroid classifier with pooled covariance: linear discriminant
analysis). At the first position there is no prefix, so its entries are exact. An entry is a guess,
never an answer: solvers verify.
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

    Args:
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

    @property
    def entries(self) -> Tensor:
        """Every token's mean output after some text, `(V, width)`."""
        return self._learnt[0]

    @property
    def scatter(self) -> Tensor:
        """Covariance of outputs around the entries once a prefix's own shift is out, square."""
        return self._learnt[1]

    def metric(self, low: int, high: int | None) -> Tensor:
        """Inverse scatter of the channels low ... high."""
        scatter = self.scatter[low:high, low:high]
        ridge = RIDGE * self.entries[:, low:high].var() + torch.finfo(scatter.dtype).tiny
        return torch.linalg.inv(scatter + ridge * torch.eye(len(scatter)).to(scatter))

    @cached_property
    def _learnt(self) -> tuple[Tensor, Tensor]:
        """Entries and scatter; the outputs behind them, `(prefixes, V, width)`, are let go."""
        room = self.circuit.model.config.context - 1
        rows = self.background[: len(LENGTHS)]
        prefixes = [rows[i : i + 1, : min(n, room)] for i, n in enumerate(LENGTHS)]
        samples = torch.stack([_outputs(self.circuit, p) for p in prefixes if p.shape[1]])
        entries = samples.mean(dim=0)
        shift = samples.mean(dim=1, keepdim=True) - entries.mean(dim=0)
        apart = (samples - shift - entries).flatten(0, 1)
        return entries, apart.T @ apart / len(apart)


@dataclass(frozen=True)
class Reader:
    """A lexicon as seen through some channels: the distance of targets from all entries."""

    lexicon: Lexicon
    low: int
    high: int | None

    @cached_property
    def entries(self) -> Tensor:
        """The entries' shown channels, `(V, C)`."""
        return self.lexicon.entries[:, self.low : self.high]

    @cached_property
    def _weighted(self) -> Tensor:
        return self.entries @ self.lexicon.metric(self.low, self.high)

    @cached_property
    def _lengths(self) -> Tensor:
        return (self._weighted * self.entries).sum(dim=-1)

    def distances(self, target: Tensor) -> Tensor:
        """Of `(..., C)` targets from each entry, up to a constant of the target: `(..., V)`."""
        return self._lengths - 2 * target @ self._weighted.T

    def first(self, target: Tensor) -> Tensor:
        """Distance of first positions' targets, `(P, C)`, from what each token gives: `(P, V)`."""
        outputs = self.lexicon.first[:, self.low : self.high]
        return torch.cdist(target, outputs)

    def again(self, target: Tensor, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Distances from targets when the outputs of guesses are known, `(..., V)`.

        What a guess's output lacks is what the true token's entry has more than the guess's.
        """
        return self.distances(self.entries[tokens] + target - outputs)


def _outputs(circuit: Circuit, prefix: Tensor | None) -> Tensor:
    state = None if prefix is None else circuit.prefix(prefix)
    parts = circuit.vocabulary.split(candidates_at_once(circuit.model))
    return torch.cat([circuit.step(tokens[:, None], state)[:, 0] for tokens in parts])
