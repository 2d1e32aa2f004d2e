"""What the solvers share: one loop, which rows leave once solved, and each row's own chance."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch

Chance = list[torch.Generator]
"""A source of chance for each row, so that no row depends on its batch."""
PerRow = float | Sequence[float]
"""A setting of all rows, or one for each."""


class Solver(ABC):
    """One way to descend, for all rows at once.

    Every tensor held as an attribute has a row for each problem, in the batch's order: `keep` goes
    by that.

    Args:
        batch: the problems.
        chance: the source of each row's chance.
    """

    spent = 0  # tokens that each row sent through the circuit before its first step

    def __init__(self, batch: Batch, chance: Chance) -> None:
        self.batch, self.chance = batch, chance

    @abstractmethod
    def step(self, i: int) -> int:
        """Takes step i, counted from 0; returns the tokens each row sent through the circuit."""

    @abstractmethod
    def scores(self) -> Tensor:
        """How well each token fits each position now, `(B, T, V)`; higher is better."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with some of the rows only, given by ascending number."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])
        self.chance = [self.chance[row] for row in rows.tolist()]
        self.batch = self.batch.of(rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows B, tokens T, features D."""
        return self.batch.size, self.batch.length, self.batch.circuit.vocabulary.shape[1]


def drive(solver: Solver, steps: int, check: int) -> list[Answer]:
    """Steps until every row is solved, or the steps are used up.

    Args:
        solver: as it is before its first step.
        steps: the most that any row takes.
        check: after every so many, rows whose tokens explain what is shown leave with them.
    """
    T = solver.batch.length
    rows = list(range(solver.batch.size))  # the numbers, in the whole batch, of those at work
    evaluations, seconds = [solver.spent] * len(rows), [0.0] * len(rows)
    answers: dict[int, Answer] = {}
    for step in range(1, steps + 1):
        started = time.perf_counter()
        spent, left = solver.step(step - 1), list(range(len(rows)))
        if step % check == 0 or step == steps:
            spent += T
            scores = solver.scores()
            tokens = scores.argmax(dim=-1)
            solved = solver.batch.solved(tokens).tolist()
            for row, done in enumerate(solved):
                if done or step == steps:
                    answer = solver.batch.ranked(row, Answer(tokens[row], scores[row]))
                    if done:
                        answer.certificate, answer.steps = "residual", step
                    answers[rows[row]] = answer
            left = [row for row in left if not solved[row]]
        share = (time.perf_counter() - started) / len(rows)
        for row in rows:
            evaluations[row] += spent
            seconds[row] += share
        if not left or step == steps:
            break
        if len(left) < len(rows):
            solver.keep(torch.tensor(left, device=solver.batch.circuit.vocabulary.device))
            rows = [rows[row] for row in left]
    for row, answer in answers.items():
        answer.evaluations, answer.seconds = evaluations[row], seconds[row]
    return [answers[row] for row in sorted(answers)]


def with_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Losses `(B,)` at x, whose first axis they share, and the gradient of each in its own row."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        losses = loss(x)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), gradient


def per_row(setting: PerRow, like: Tensor) -> Tensor:
    """A setting as `(B,)`, with axes of one to fit `like`, `(B, ...)`."""
    values = torch.as_tensor(setting, dtype=like.dtype, device=like.device)
    return values.expand(len(like)).reshape(-1, *(1 for _ in like.shape[1:]))


def normal(chance: Chance, shape: Sequence[int], like: Tensor) -> Tensor:
    """N(0, 1), `(B, *shape)`."""
    return torch.stack([torch.randn(*shape, generator=each) for each in chance]).to(like)


def random_tokens(chance: Chance, shape: Sequence[int], vocabulary: Tensor) -> Tensor:
    """Uniformly random tokens, `(B, *shape)`."""
    drawn = [torch.randint(len(vocabulary), tuple(shape), generator=each) for each in chance]
    return torch.stack(drawn).to(vocabulary.device)
