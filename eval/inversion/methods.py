"""The solvers by name: what each needs to be shown, its settings, and how it is called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eval.inversion.alternating import alternating
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient import adam, descent
from eval.inversion.problem import Problem
from eval.inversion.sweep import sweep

Generators = list[torch.Generator]


@dataclass(frozen=True)
class Method:
    """A solver.

    Attributes:
        solve: answers a problem, given each prompt's source of chance; the truth is there for the
            published criterion alone.
        settings: its keyword arguments, recorded in every row.
        random: whether another seed can give another answer.
        fits: whether it can work with k hidden leading tokens (None: another kind of slice).
        needs: the same in words.
        cost: tokens it is likely to send through the circuit for one prompt, given the vocabulary,
            the length and the hidden tokens; for the time-left estimate alone.
    """

    solve: Callable[..., list[Answer]]
    settings: dict[str, Any]
    random: bool
    fits: Callable[[int | None], bool]
    needs: str
    cost: Callable[[int, int, int], float]


def methods(steps: int, rate: float, adam_steps: int, starts: int) -> dict[str, Method]:
    """All solvers with their settings.

    Args:
        steps: of descent.
        rate: first rate of descent.
        adam_steps: of scale-matched Adam.
        starts: random starts of the alternating search.
    """

    def run_descent(problem: Problem, truth: Tensor, chance: Generators, **settings: Any) -> Any:
        return descent(Batch((problem,)), chance, truth, **settings)

    def run_adam(problem: Problem, truth: Tensor, chance: Generators, **settings: Any) -> Any:
        return adam(Batch((problem,)), chance, **settings)

    def run_sweep(problem: Problem, truth: Tensor, chance: Generators) -> Any:
        return sweep(problem)

    def run_alternating(
        problem: Problem, truth: Tensor, chance: Generators, **settings: Any
    ) -> Any:
        return alternating(problem, chance, **settings)

    return {
        "descent": Method(
            run_descent,
            {"steps": steps, "rate": rate},
            random=True,
            fits=lambda k: True,
            needs="any slice",
            cost=lambda V, T, k: 3 * steps * T,
        ),
        "adam": Method(
            run_adam,
            {"steps": adam_steps, "rate": 0.2},
            random=True,
            fits=lambda k: True,
            needs="any slice",
            cost=lambda V, T, k: 3 * adam_steps * T,
        ),
        "sweep": Method(
            run_sweep,
            {},
            random=False,
            fits=lambda k: k == 0,
            needs="every position shown, as in [:, 0:, :]",
            cost=lambda V, T, k: V * T,
        ),
        "alternating": Method(
            run_alternating,
            {"starts": starts},
            random=True,
            fits=lambda k: bool(k),
            needs="the first k positions hidden, as in [:, 3:, :]",
            cost=lambda V, T, k: V * (T + 12 * k),
        ),
    }
