"""Objectives: how far the outputs of a guess are from what is shown.

An objective turns shown outputs and their target, `(P, S, C)` each, into a loss per prompt, `(P,)`.
Some take settings in their name: `mixed(1.0, 0.01)`.
"""

import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from eval.errors import RequestError
from eval.inversion.batch import Objective


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
    return 1 - functional.cosine_similarity(shown.flatten(1), target.flatten(1), dim=-1)


def cosine_positions(shown: Tensor, target: Tensor) -> Tensor:
    """1 - cos at each position, summed."""
    return (1 - functional.cosine_similarity(shown, target, dim=-1)).sum(dim=1)


def relative(shown: Tensor, target: Tensor) -> Tensor:
    """Squared distance at each position in units of its target's length, summed.

    So that no position drowns the others, and the value says by itself how near a guess is.
    """
    return residuals(shown, target).square().sum(dim=1)


def residuals(shown: Tensor, target: Tensor) -> Tensor:
    """The differences whose sum of squares is `relative`, `(P, S * C)`."""
    return ((shown - target) / torch.linalg.vector_norm(target, dim=-1, keepdim=True)).flatten(1)


def huber(delta: float = 1.0) -> Objective:
    """Huber's loss, quadratic up to `delta` and linear beyond, averaged over the slice."""

    def loss(shown: Tensor, target: Tensor) -> Tensor:
        each = functional.huber_loss(shown, target, reduction="none", delta=delta)
        return each.mean(dim=(1, 2))

    return loss


def mixed(alpha: float = 1.0, beta: float = 0.01) -> Objective:
    """alpha * `cosine` + beta * `l1`."""

    def loss(shown: Tensor, target: Tensor) -> Tensor:
        return alpha * cosine(shown, target) + beta * l1(shown, target)

    return loss


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
