"""What a solver says of one prompt."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

COLLISIONS = 16
"""Tokens that an answer names, at most, where several lie within the limit."""


@dataclass
class Answer:
    """A solver's tokens for one prompt, and how sure it can be of each.

    Attributes:
        tokens: the tokens found, `(T,)`.
        scores: how well each token of the vocabulary fits each position, `(T, V)`; higher is
            better. `(T, 0)` once the ranks are known: see `Problem.ranked`.
        ranks: how many tokens were held likelier than the true one at each position, `(T,)`, 0
            where it was found; None where nobody asks.
        runner_up: distance of the second-best token at each position shown, `(S,)`; None for
            methods that do not try all tokens.
        collisions: positions at which several tokens lie within the limit, with those tokens.
        diverged: whether scores are not finite: then the answer and the ranks say nothing.
        criterion: for the published protocol, whether its own test of convergence passed.
        certificate: what proves the answer: "residual" (its outputs are those shown, to rounding),
            "screened" (and every other choice was tried, or ruled out by less than that: in
            bfloat16, or by a bound that was measured), or "enumerated" (and every other choice was
            tried in full precision); None for nothing.
        steps: steps until solved, for a method that takes steps; None if it was not.
        evaluations: tokens sent through the circuit; a gradient step sends each of them thrice.
        seconds: time taken, a batch's time shared evenly.
        notes: further figures of the method, by name.
    """

    tokens: Tensor
    scores: Tensor
    ranks: Tensor | None = None
    runner_up: Tensor | None = None
    collisions: dict[int, list[int]] = field(default_factory=dict)
    diverged: bool = False
    criterion: bool | None = None
    certificate: str | None = None
    steps: int | None = None
    evaluations: int = 0
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
