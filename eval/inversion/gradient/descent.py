"""The published protocol: plain descent from N(0, 1) at a falling rate, for all rows at once."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.gradient.loop import Rows, drive, normal, with_gradient
from eval.inversion.problem import Batch
from eval.inversion.solvers import Chance, solver
from eval.inversion.spaces import OBJECTIVES, by_pseudo_inverse, model_input, width
from eval.rows import finite_or_none

SHIFT = 0.05  # the criterion compares with an input shifted by this much noise


@solver(
    "gradient",
    random=True,
    title="gradient descent (the published protocol)",
)
def descent(
    batch: Batch,
    chance: Chance,
    truth: Tensor,
    *,
    steps: int = 500,
    rate: float = 0.02,
    objective: str = "l1",
    variable: str = "embedding",
    sequential: bool = False,
) -> list[Answer]:
    """Walks downhill from random vectors, then takes each vector's nearest token.

    The reference's protocol to the letter (Badger, 2409.01482, and its published code). Start
    N(0, 1); loss the L1 distance summed over the slice; plain gradient steps at a rate that falls
    linearly to a tenth; tokens by the embedding's pseudo-inverse, or by the largest entry of a
    vector over the vocabulary. Converged means nearer to the target than the outputs of the true
    embeddings shifted by 0.05 N(0, 1): recorded, not used. Every row takes every step.

    Args:
        batch: any slices.
        chance: the source of each row's start, and then of its shift.
        truth: the tokens, `(B, T)`, which only that criterion looks at.
        steps: N; 500 in the reference.
        rate: the first rate; 0.02 in the reference's mixer code.
        objective: that is lowered.
        variable: that is descended on.
        sequential: token by token, left to right, each in N steps from its own output alone, the
            tokens before it as they were found; a hidden token stays at its start.
    """
    circuit, loss, T = batch.circuit, OBJECTIVES[objective], batch.length
    W = circuit.vocabulary
    x = normal(chance, (T, width(variable, W)), W)
    true = circuit.embed(truth)
    with torch.no_grad():
        bar = batch.losses(true + SHIFT * normal(chance, true.shape[1:], true), loss)

    def losses(batch: Batch, x: Tensor) -> Tensor:
        return batch.losses(model_input(variable, x, W), loss)

    def move(part: Batch, x: Tensor, i: int) -> Tensor:
        falling = (rate * (steps - i) + rate / 10 * i) / steps
        return falling * with_gradient(lambda x: losses(part, x), x)[1]

    def descend(rows: Rows) -> Iterator[None]:  # no row leaves before the last step
        rows.scores = lambda: by_pseudo_inverse(circuit, x) if variable == "embedding" else x
        for turn in range(T) if sequential else (None,):
            turns = None if turn is None else _only(batch, turn)
            for i in range(steps):
                if turn is None:
                    x.sub_(move(batch, x, i))
                    rows.spent += 3 * T
                elif turns is not None:
                    which, part = turns
                    x[which, turn] -= move(part, x[which, : part.length], i)[:, turn]
                    rows.spent += 3 * part.length
                yield

    total = steps * (T if sequential else 1)
    answers = drive(batch, chance, descend, total, check=total)
    with torch.no_grad():
        reached = losses(batch, x)
    passed = (reached < bar).tolist()
    for answer, value, met in zip(answers, reached.tolist(), passed, strict=True):
        answer.criterion, answer.steps = met, None
        answer.notes["loss"] = finite_or_none(value)
        answer.diverged |= not math.isfinite(value)
    return answers


def _only(batch: Batch, t: int) -> tuple[Tensor, Batch] | None:
    """The rows that show position t, and they with nothing else shown; None if none does."""
    causal = all(problem.circuit.causal for problem in batch.problems)
    rows, problems = [], []
    for problem, start, end in batch.spans():
        shown = problem.slice.positions(problem.length)
        if t in shown:
            at = slice(shown.index(t), shown.index(t) + 1)
            rows.extend(range(start, end))
            problems.append(problem.showing(at, t + 1 if causal else None))
    if not problems:
        return None
    return torch.tensor(rows, device=batch.circuit.vocabulary.device), Batch(tuple(problems))
