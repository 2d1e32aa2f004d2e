"""The spaces of a descent: its variable, the objective that it lowers, and the way to tokens.

* variable: the embeddings themselves, or vectors over the vocabulary times them (`VARIABLES`).
* objective: how far the outputs of a guess are from those shown: `(P, S, C)` outputs and their
  target to a loss per prompt, `(P,)`. Some take settings in their name: `mixed(1.0, 0.01)`.
* decoder: from vectors to scores of the vocabulary at each position (`DECODERS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, huber_loss, normalize

from eval import RequestError

if TYPE_CHECKING:
    from eval.circuit import Circuit

Objective = Callable[[Tensor, Tensor], Tensor]
"""Shown outputs and their target, `(P, S, C)` each, to a loss for each prompt, `(P,)`."""

VARIABLES = {
    "embedding": "the vectors that the model reads (indirect)",
    "vocabulary": "a vector over the vocabulary at each position, times the embedding (direct)",
    "softmax": "the softmax of such a vector, times the embedding",
}


def width(variable: str, vocabulary: Tensor) -> int:
    """Entries of the variable at a position: D or V.

    Raises:
        RequestError: no such variable.
    """
    if variable not in VARIABLES:
        raise RequestError(
            f"variable {variable!r} does not exist; use one of {', '.join(VARIABLES)}"
        )
    return vocabulary.shape[1] if variable == "embedding" else vocabulary.shape[0]


def model_input(variable: str, x: Tensor, vocabulary: Tensor) -> Tensor:
    """The model's input, `(B, T, D)`, of a variable `(B, T, D)` or `(B, T, V)`."""
    if variable == "embedding":
        return x
    return (x.softmax(dim=-1) if variable == "softmax" else x) @ vocabulary


def l1(shown: Tensor, target: Tensor) -> Tensor:
    """Sum of absolute differences over the slice: the published protocol's."""
    return (shown - target).abs().sum(dim=(1, 2))


def l2(shown: Tensor, target: Tensor) -> Tensor:
    """Euclidean distance over the whole slice, not squared."""
    return torch.linalg.vector_norm(shown - target, dim=(1, 2))


def square(shown: Tensor, target: Tensor) -> Tensor:
    """Sum of squared differences over the slice."""
    return (shown - target).square().sum(dim=(1, 2))


def cosine(shown: Tensor, target: Tensor) -> Tensor:
    """1 - cos of the angle between the whole slices, each taken as one vector."""
    return 1 - cosine_similarity(shown.flatten(1), target.flatten(1), dim=-1)


def cosine_positions(shown: Tensor, target: Tensor) -> Tensor:
    """1 - cos at each position, summed."""
    return (1 - cosine_similarity(shown, target, dim=-1)).sum(dim=1)


def relative(shown: Tensor, target: Tensor) -> Tensor:
    """Squared distance at each position in units of its target's length, summed.

    No position drowns the others, and the value by itself says how near a guess is.
    """
    apart = (shown - target) / torch.linalg.vector_norm(target, dim=-1, keepdim=True)
    return apart.square().sum(dim=(1, 2))


def huber(delta: float = 1.0) -> Objective:
    """Huber's loss, quadratic up to `delta` and linear beyond, averaged over the slice."""
    return lambda shown, target: huber_loss(shown, target, reduction="none", delta=delta).mean(
        dim=(1, 2)
    )


def mixed(alpha: float = 1.0, beta: float = 0.01) -> Objective:
    """alpha * `cosine` + beta * `l1`."""
    return lambda shown, target: alpha * cosine(shown, target) + beta * l1(shown, target)


OBJECTIVES: dict[str, Objective] = {
    each.__name__: each for each in (l1, l2, square, cosine, cosine_positions, relative)
}
WITH_SETTINGS: dict[str, tuple[Callable[..., Objective], int]] = {
    "huber": (huber, 1),
    "mixed": (mixed, 2),
}
"""By name, with how many settings each may be given."""


def objective(name: str) -> Objective:
    """An objective by its name, with its settings if it takes any: `huber`, `mixed(1.0, 0.01)`.

    Raises:
        RequestError: an unknown name, or settings that do not fit.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    match = re.fullmatch(r"(\w+)(?:\((.+)\))?", name.replace(" ", ""))
    if match and match[1] in WITH_SETTINGS:
        make, most = WITH_SETTINGS[match[1]]
        settings = match[2].split(",") if match[2] else []
        if len(settings) <= most and all(re.fullmatch(r"\d*\.?\d+", each) for each in settings):
            return make(*map(float, settings))
    raise RequestError(
        f"objective {name!r} does not exist; use one of {', '.join(OBJECTIVES)}, huber(delta), "
        "mixed(alpha, beta)"
    )


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
    """Cosine of the angle between vector and embedding, both after the first block's norm.

    A hidden token is seen through that norm alone, which takes its length (and, for a layer norm,
    its mean) away: these say nothing of the token.
    """
    model = circuit.model
    norm, weight = model.blocks[0].norm_token, model.embedding.weight.detach()
    assert isinstance(norm, torch.nn.Module)
    directions = normalize(norm(model.with_positions(solution.to(weight))).to(solution), dim=-1)
    scores = []
    for t in range(solution.shape[1]):
        tokens = norm(model.with_positions(weight[:, None], t))[:, 0].to(solution)
        scores.append(directions[:, t] @ normalize(tokens, dim=-1).T)
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
    """Scores of all tokens at each position, `(B, T, D) -> (B, T, V)`, by one of `DECODERS`.

    Raises:
        RequestError: an unknown name.
    """
    if name not in DECODERS:
        raise RequestError(f"decoder {name!r} does not exist; use one of {', '.join(DECODERS)}")
    return DECODERS[name](circuit, solution)


def restrict(scores: Tensor, allowed: Iterable[int] | Tensor | None) -> Tensor:
    """Scores `(..., V)` with every token but the allowed ones at minus infinity; None allows all.

    Raises:
        RequestError: no token is allowed, or one outside the vocabulary.
    """
    if allowed is None:
        return scores
    V = scores.shape[-1]
    ids = torch.as_tensor(list(allowed), dtype=torch.long, device=scores.device)
    if not len(ids) or ids.min() < 0 or ids.max() >= V:
        raise RequestError(
            f"a vocabulary restricted to {ids.tolist()[:5]} is none; allow tokens 0 to {V - 1}"
        )
    restricted = torch.full_like(scores, -torch.inf)
    restricted[..., ids] = scores[..., ids]
    return restricted
