"""The published protocol: plain gradient descent from N(0, 1) at a falling rate."""

from torch import Tensor

from eval.inversion.gradient.descend import descend, normal, with_gradient
from eval.inversion.gradient.objectives import OBJECTIVES, by_pseudo_inverse, model_input, width
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver


@solver("gradient", random=True, title="gradient descent (the published protocol)")
def descent(
    problem: Problem,
    generators: Generators,
    *,
    steps: int = 500,
    rate: float = 0.02,
    objective: str = "l1",
    variable: str = "embedding",
    sequential: bool = False,
) -> list[Answer]:
    """Walks downhill from random vectors, then takes each vector's nearest token.

    The published protocol, unchanged (Badger, 2409.01482, and its code). The start is N(0, 1), the
    loss the L1 distance summed over the slice. Plain gradient steps have a rate that falls linearly
    to a tenth. Tokens are read by the embedding's pseudo-inverse, or by the largest entry of a
    vector over the vocabulary. Every row takes every step; scoring tells whether a row arrived, as
    the protocol's own test needs the truth.

    Args:
        problem: of any slice.
        generators: of each row's start.
        steps: number of steps; 500 in the published code.
        rate: the first rate; 0.02 in the published code for mixers.
        objective: the loss that is minimised.
        variable: what the gradient moves.
        sequential: recover token by token, left to right, each in `steps` steps from its own output
            alone, with the tokens before it as found; a hidden token stays at its start.
    """
    loss, T, W = OBJECTIVES[objective], problem.length, problem.vocabulary
    x = normal(generators, (T, width(variable, W)), W)

    def read(x: Tensor) -> Tensor:
        return model_input(variable, x, W)

    def move(part: Problem, x: Tensor, i: int) -> Tensor:
        falling = (rate * (steps - i) + rate / 10 * i) / steps
        return falling * with_gradient(lambda x: loss(part.shown(read(x)), part.target), x)[1]

    def step(i: int) -> int:
        if not sequential:
            x.sub_(move(problem, x, i))
            return 3 * T
        turn = i // steps
        if turn not in problem.positions:
            return 0
        at = problem.positions.index(turn)
        part = problem.showing(slice(at, at + 1), turn + 1 if problem.circuit.causal else None)
        x[:, turn] -= move(part, x[:, : part.length], i % steps)[:, turn]
        return 3 * part.length

    def scores() -> Tensor:
        return by_pseudo_inverse(problem.circuit, x) if variable == "embedding" else x

    total = steps * (T if sequential else 1)
    answers = descend(problem, step, scores, total, check=total)
    for answer, vectors in zip(answers, read(x), strict=True):
        answer.vectors, answer.steps = vectors.clone(), None
    return answers
