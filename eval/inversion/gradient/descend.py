"""What gradient solvers share: the loop, starts and rates in the embedding's own scale.

    x = scaled_start(problem, generators)
    optimizer = torch.optim.Adam([x], lr=0.2 * problem.circuit.scale)

    def step(i):
        _, x.grad = with_gradient(lambda x: relative(problem.shown(x), problem.target), x)
        optimizer.step()
        return 3 * problem.length

    answers = descend(problem, step, lambda: by_distance(problem.circuit, x), steps)

Rows do not touch each other: their losses are summed, so that each one's gradient is its own.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eval.inversion.gradient.objectives import restrict
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer
from eval.rows.progress import Progress, report_progress

CHECK = 25  # steps after which rows are looked at: those that are solved are frozen


@torch.no_grad()
def descend(
    problem: Problem,
    step: Callable[[int], int],
    scores: Callable[[], Tensor],
    steps: int,
    check: int | None = None,
) -> list[Answer]:
    """Takes steps until every row is solved, or the steps are used up.

    A row is solved once its best tokens lie within the limit; its answer is that of the first look
    that finds it so.

    Args:
        problem: of P rows.
        step: takes the i-th step of all rows; returns the tokens that each sent through the model.
        scores: how well each token fits each position now, `(P, T, V)`; higher is better.
        steps: the most that a row takes.
        check: after how many steps the rows are looked at, each time; None for 25.
    """
    answers: dict[int, Answer] = {}
    spent, rows = 0, range(len(problem.target))
    for i in range(1, steps + 1):
        spent += step(i - 1)
        report_progress(Progress())
        if i % (check or CHECK) and i != steps:
            continue
        spent += problem.length
        now = scores()
        tokens = restrict(now, problem.allowed).argmax(dim=-1)
        report_progress(Progress(tokens))
        solved = problem.residual(tokens)[1].tolist()
        for row in rows:
            if row not in answers and (solved[row] or i == steps):
                own = tokens[row].clone(), now[row].clone()  # else each holds all rows' scores
                took = i if solved[row] else None
                answers[row] = Answer(*own, steps=took, evaluations=spent)
        if len(answers) == len(rows):
            break
    return [answers[row] for row in rows]


def with_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Losses `(P,)` at x, whose first axis they share, and the gradient of each in its own row."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        losses = loss(x)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), gradient


def normal(generators: Generators, shape: Sequence[int], like: Tensor) -> Tensor:
    """N(0, 1), `(P, *shape)`."""
    return torch.stack([torch.randn(*shape, generator=g) for g in generators]).to(like)


def random_tokens(generators: Generators, shape: Sequence[int], vocabulary: Tensor) -> Tensor:
    """Uniformly random tokens, `(P, *shape)`."""
    drawn = [torch.randint(len(vocabulary), tuple(shape), generator=g) for g in generators]
    return torch.stack(drawn).to(vocabulary.device)


def scaled_start(problem: Problem, generators: Generators) -> Tensor:
    """Noise that is spread like the model's embeddings, `(P, T, D)`."""
    W = problem.vocabulary
    noise = normal(generators, (problem.length, W.shape[1]), W)
    return noise * problem.circuit.scale + W.mean(dim=0)
