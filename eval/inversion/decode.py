"""From continuous solutions to tokens: scores of the vocabulary at each position."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eval.circuit import Circuit
from eval.errors import RequestError


def by_pseudo_inverse(circuit: Circuit, solution: Tensor) -> Tensor:
    """The reference's decoding: vectors times the embedding's pseudo-inverse."""
    return solution @ circuit.pseudo_inverse


def by_dot(circuit: Circuit, solution: Tensor) -> Tensor:
    """Inner product with each token's embedding."""
    return solution @ circuit.vocabulary.T


def by_cosine(circuit: Circuit, solution: Tensor) -> Tensor:
    """Cosine of the angle to each token's embedding."""
    return normalize(solution, dim=-1) @ normalize(circuit.vocabulary, dim=-1).T


def by_distance(circuit: Circuit, solution: Tensor) -> Tensor:
    """Minus the Euclidean distance from each token's embedding."""
    return -torch.cdist(solution.flatten(0, 1), circuit.vocabulary).unflatten(0, solution.shape[:2])


@torch.no_grad()
def by_normed_direction(circuit: Circuit, solution: Tensor) -> Tensor:
    """Cosine of the angle between what the first block's norm makes of vector and embedding.

    A hidden token is seen through that norm alone, which takes its length (and, for a layer norm,
    its mean) away: what the norm removes says nothing of the token.
    """
    model = circuit.model
    norm, weight = model.blocks[0].norm_token, model.embedding.weight.detach()
    assert isinstance(norm, torch.nn.Module)
    found = normalize(norm(model.with_positions(solution.to(weight))).to(solution), dim=-1)
    scores = []
    for t in range(solution.shape[1]):
        tokens = norm(model.with_positions(weight[:, None], t))[:, 0].to(solution)
        scores.append(found[:, t] @ normalize(tokens, dim=-1).T)
    return torch.stack(scores, dim=1)


DECODERS: dict[str, Callable[[Circuit, Tensor], Tensor]] = {
    "pinv": by_pseudo_inverse,
    "dot": by_dot,
    "cosine": by_cosine,
    "euclid": by_distance,
    "normed": by_normed_direction,
}
"""`(B, T, D)` vectors to `(B, T, V)` scores, higher for better, by name."""


def decode(circuit: Circuit, solution: Tensor, name: str = "euclid") -> Tensor:
    """Scores of all tokens at each position, `(B, T, D) -> (B, T, V)`; higher is better.

    Args:
        circuit: whose embedding is decoded.
        solution: vectors at the embedding's place.
        name: one of `DECODERS`.

    Raises:
        RequestError: an unknown name.
    """
    if name not in DECODERS:
        raise RequestError(f"decoder {name!r} does not exist; use one of {', '.join(DECODERS)}")
    return DECODERS[name](circuit, solution)


def restrict(scores: Tensor, allowed: Iterable[int] | Tensor) -> Tensor:
    """Scores `(..., V)` with every token but the allowed ones at minus infinity.

    Raises:
        RequestError: no token is allowed, or one outside the vocabulary.
    """
    V = scores.shape[-1]
    ids = torch.as_tensor(list(allowed), dtype=torch.long, device=scores.device)
    if not len(ids) or ids.min() < 0 or ids.max() >= V:
        raise RequestError(
            f"a vocabulary restricted to {ids.tolist()[:5]} is none; allow tokens 0 to {V - 1}"
        )
    restricted = torch.full_like(scores, -torch.inf)
    restricted[..., ids] = scores[..., ids]
    return restricted
