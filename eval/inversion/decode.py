"""From continuous solutions to tokens: scores of the vocabulary at each position."""

import torch
from torch import Tensor

from eval.circuit import Circuit


def by_pseudo_inverse(circuit: Circuit, solution: Tensor) -> Tensor:
    """The reference's decoding: `(B, T, D)` vectors times the embedding's pseudo-inverse."""
    return solution @ circuit.pseudo_inverse


def by_distance(circuit: Circuit, solution: Tensor) -> Tensor:
    """Minus the Euclidean distance from each token's embedding, `(B, T, D) -> (B, T, V)`."""
    return -torch.cdist(solution, circuit.vocabulary[None])
