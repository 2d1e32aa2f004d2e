"""The loop of gradient solvers, which rows leave once solved; each row's chance; Adam.

    @gradient(steps=500, title="name on pages")
    def name(rows, *, rate: float = 0.1):
        '''Its description on pages.'''
        x = normal(rows.chance, ...)
        rows.scores = lambda: by_distance(rows.circuit, x)
        while True:
            _, slope = with_gradient(rows.losses, x)
            x = x - rate * slope
            rows.spent += 3 * rows.length
            yield
            (x,) = rows.kept(x)

A solver is a generator of steps; `drive` takes them.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.problem import Batch
from eval.inversion.solvers import Chance, Solve, solver
from eval.inversion.spaces import Objective, relative, restrict
from eval.tasks import SoFar, tell

CHECK = 25  # steps after which rows that are solved leave
EPSILON = 1e-8  # keeps a step of Adam finite where the gradient has been none
KEYWORD = inspect.Parameter.KEYWORD_ONLY
STEPS = "the most that a row takes."
"""The help of the setting that gradient solvers share."""


class Rows:
    """The rows that are still at work, as a solver sees them between two steps.

    Attributes:
        batch, chance: their problems; a source of chance for each.
        scores: how well each token fits each position now, `() -> (B, T, V)`; higher is better. The
            solver sets it before its first step.
        spent: tokens that each row sent through the circuit since the last step; the solver adds.
        steps: the most that each takes.
        objective: that `losses` takes; the solver may set another.
        circuit, vocabulary, length: of the batch; the embedding is `(V, D)`.
    """

    scores: Callable[[], Tensor]

    def __init__(self, batch: Batch, chance: Chance, steps: int) -> None:
        self.batch, self.chance, self.spent = batch, chance, 0
        self.steps = steps
        self.objective: Objective = relative
        self.circuit, self.length = batch.circuit, batch.length
        self.vocabulary = self.circuit.vocabulary
        self._staying: Tensor | None = None

    def losses(self, embeddings: Tensor) -> Tensor:
        """The objective of each row, `(B, T, D) -> (B,)`."""
        return self.batch.losses(embeddings, self.objective)

    def kept(self, *state: Any) -> tuple[Any, ...]:
        """A solver's state, tensors `(B, ...)` or alike, less the rows that left last.

        Alike is anything that gives its part for `[rows]`.
        """
        return state if self._staying is None else tuple(each[self._staying] for each in state)

    def leave(self, staying: list[int] | None) -> None:
        """Goes on with some rows only, given by ascending number; with all for None."""
        self._staying = None
        if staying is not None:
            self._staying = torch.tensor(staying, device=self.vocabulary.device)
            self.chance = [self.chance[row] for row in staying]
            self.batch = self.batch.of(self._staying)


@torch.no_grad()
def drive(
    batch: Batch,
    chance: Chance,
    descend: Callable[[Rows], Iterator[None]],
    steps: int,
    check: int,
) -> list[Answer]:
    """Steps until every row is solved, or the steps are used up.

    Args:
        batch: the problems, and the tokens that answers may hold.
        chance: a source of chance for each row.
        descend: a generator that yields after each step, and then drops from its state the rows
            that left (`Rows.kept`).
        steps: the most that any row takes.
        check: after every so many, rows whose tokens explain the target leave.
    """
    answers = [Answer(torch.empty(0), torch.empty(0)) for _ in range(batch.size)]
    working = answers
    rows = Rows(batch, chance, steps)
    taking = descend(rows)
    for step in range(1, steps + 1):
        started = time.perf_counter()
        next(taking)
        tell(SoFar())
        solved = [False] * len(working)
        if step % check == 0 or step == steps:
            rows.spent += batch.length
            scores = rows.scores()
            tokens = restrict(scores, batch.allowed).argmax(dim=-1)
            tell(SoFar(tokens))
            solved = rows.batch.solved(tokens).tolist()
            for row, answer in enumerate(working):
                if (
                    solved[row] or step == steps
                ):  # clones: else each answer holds the batch's scores
                    answer.tokens, answer.scores = tokens[row].clone(), scores[row].clone()
                if solved[row]:
                    answer.certificate, answer.steps = "residual", step
        share = (time.perf_counter() - started) / len(working)
        for answer in working:
            answer.evaluations += rows.spent
            answer.seconds += share
        rows.spent = 0
        if all(solved):
            break
        staying = [row for row, done in enumerate(solved) if not done]
        rows.leave(staying if any(solved) else None)
        working = [working[row] for row in staying]
    return answers


def gradient(*, steps: int, **about: Any) -> Callable[[Callable[..., Iterator[None]]], Solve]:
    """Enters a generator of steps among the solvers, as one of the family "gradient".

    It is called with `Rows`. Its keyword-only arguments are settings. So is `steps`.

    Args:
        steps: the most that a row takes.
        about: further arguments of `solver`.

    Raises:
        RequestError: another solver has the name.
    """

    def enter(descend: Callable[..., Iterator[None]]) -> Solve:
        @wraps(descend)
        def solve(batch: Batch, chance: Chance, **settings: Any) -> list[Answer]:
            most = settings.pop("steps", steps)
            return drive(batch, chance, partial(descend, **settings), most, CHECK)

        parameters = inspect.signature(descend).parameters.values()
        settings = {"steps": steps} | {p.name: p.default for p in parameters if p.kind is KEYWORD}
        asked = [inspect.Parameter(n, KEYWORD, default=value) for n, value in settings.items()]
        solve.__signature__ = inspect.Signature(asked)  # pyright: ignore[reportAttributeAccessIssue]
        solve.__doc__ = f"{inspect.cleandoc(descend.__doc__ or '')}\n    steps: {STEPS}"
        return solver("gradient", **about)(solve)

    return enter


@dataclass
class Moments:
    """Adam's two averages of a gradient `(B, ...)` (Kingma & Ba, 1412.6980).

    Attributes:
        mean, square: the averages, `(B, ...)`.
        first, second: their decay.
        corrected: whether they are corrected for their start at zero.
        taken: steps so far.
    """

    mean: Tensor
    square: Tensor
    first: float = 0.9
    second: float = 0.999
    corrected: bool = True
    taken: int = 0

    def direction(self, gradient: Tensor) -> Tensor:
        """The step for a rate of 1, of entries about 1, to be subtracted."""
        self.taken += 1
        self.mean = self.mean.lerp(gradient, 1 - self.first)
        self.square = self.square.lerp(gradient.square(), 1 - self.second)
        mean, square = self.mean, self.square
        if self.corrected:
            mean = mean / (1 - self.first**self.taken)
            square = square / (1 - self.second**self.taken)
        return mean / (square.sqrt() + EPSILON)

    def __getitem__(self, rows: Tensor) -> "Moments":
        return replace(self, mean=self.mean[rows], square=self.square[rows])


def moments(like: Tensor, **settings: Any) -> Moments:
    """Moments at zero, for a variable `(B, ...)`."""
    return Moments(torch.zeros_like(like), torch.zeros_like(like), **settings)


def with_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Losses `(B,)` at x, whose first axis they share, and the gradient of each in its own row."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        losses = loss(x)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), gradient


def normal(chance: Chance, shape: Sequence[int], like: Tensor) -> Tensor:
    """N(0, 1), `(B, *shape)`."""
    return torch.stack([torch.randn(*shape, generator=each) for each in chance]).to(like)


def random_tokens(chance: Chance, shape: Sequence[int], vocabulary: Tensor) -> Tensor:
    """Uniformly random tokens, `(B, *shape)`."""
    drawn = [torch.randint(len(vocabulary), tuple(shape), generator=each) for each in chance]
    return torch.stack(drawn).to(vocabulary.device)
