"""The spaces of a descent: its variable, the objective that it lowers, and the way to tokens.

* variable: the embeddings themselves, or vectors over the vocabulary times them (`VARIABLES`).
* objective: how far the outputs of a guess are from those shown: `(P, S, C)` outputs and their
  target to a loss per prompt, `(P,)`.
* decoder: from `(B, T, D)` vectors to scores of the vocabulary at each position, `(B, T, V)`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, huber_loss, normalize

from eval.sites.circuit import Circuit

Objective = Callable[[Tensor, Tensor], Tensor]
"""Shown outputs and their target, `(P, S, C)` each, to a loss for each prompt, `(P,)`."""

VARIABLES = {
    "embedding": "the vectors that the model reads (indirect)",
    "vocabulary": "a vector over the vocabulary at each position, times the embedding (direct)",
    "softmax": "the softmax of such a vector, times the embedding",
}


def width(variable: str, vocabulary: Tensor) -> int:
    """Entries of the variable at a position: D or V."""
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


def cosine(shown: Tensor, target: Tensor) -> Tensor:
    """1 - cos of the angle between the whole slices, each taken as one vector."""
    return 1 - cosine_similarity(shown.flatten(1), target.flatten(1), dim=-1)


def relative(shown: Tensor, target: Tensor) -> Tensor:
    """Squared distance at each position in units of its target's length, summed.

    No position drowns the others, and the value by itself says how near a guess is.
    """
    differences = (shown - target) / torch.linalg.vector_norm(target, dim=-1, keepdim=True)
    return differences.square().sum(dim=(1, 2))


def huber(shown: Tensor, target: Tensor) -> Tensor:
    """Huber's loss, quadratic up to 1 and linear beyond, averaged over the slice."""
    return huber_loss(shown, target, reduction="none").mean(dim=(1, 2))


def mixed(shown: Tensor, target: Tensor) -> Tensor:
    """`cosine` + 0.01 * `l1`."""
    return cosine(shown, target) + 0.01 * l1(shown, target)


OBJECTIVES: dict[str, Objective] = {
    **{objective.__name__: objective for objective in (l1, l2, cosine, relative)},
    "mixed(1.0, 0.01)": mixed,
}


def by_pseudo_inverse(circuit: Circuit, solution: Tensor) -> Tensor:
    """The reference's decoding: vectors times the embedding's pseudo-inverse."""
    return solution @ circuit.pseudo_inverse


def by_distance(circuit: Circuit, solution: Tensor) -> Tensor:
    """Minus the Euclidean distance from each token's embedding.

    Both are taken from the embeddings' mean: products of long vectors would round short distances.
    """
    mean, centred = circuit.centred_vocabulary
    return -torch.cdist(solution.flatten(0, 1) - mean, centred).unflatten(0, solution.shape[:2])


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


def restrict(scores: Tensor, allowed: Sequence[int] | None) -> Tensor:
    """Scores `(..., V)`, at minus infinity all but those of allowed tokens; None allows all."""
    if allowed is None:
        return scores
    ids = torch.tensor(allowed, device=scores.device)
    restricted = torch.full_like(scores, -torch.inf)
    restricted[..., ids] = scores[..., ids]
    return restricted
