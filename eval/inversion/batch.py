"""Many problems of one model in one batch, for solvers that treat them all alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eval.circuit import Circuit, run_together
from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.inversion.answer import Answer
    from eval.inversion.problem import Problem
    from eval.inversion.spaces import Objective


@dataclass(frozen=True)
class Batch:
    """B rows of one model and length T: the prompts of all problems, in the problems' order.

    The problems may differ in layer, slice, noise and prompts, so that prompts x seeds x layers x
    settings run as one. Problems whose circuits differ in nothing but the layer share one pass.

    Raises:
        RequestError: different models or lengths.
    """

    problems: tuple[Problem, ...]

    def __post_init__(self) -> None:
        """Checks that one embedding serves all."""
        first = self.problems[0]
        for problem in self.problems:
            if problem.circuit.model is not first.circuit.model or problem.length != first.length:
                raise RequestError("a batch is of one model and one length")

    @property
    def size(self) -> int:
        """Number of rows B."""
        return sum(len(problem.target) for problem in self.problems)

    @property
    def length(self) -> int:
        """Tokens T of each row."""
        return self.problems[0].length

    @property
    def circuit(self) -> Circuit:
        """Any one of the circuits, for the embedding, its scale and its pseudo-inverse."""
        return self.problems[0].circuit

    def ranked(self, row: int, answer: Answer) -> Answer:
        """As `Problem.ranked`, of the batch's row."""
        for problem in self.problems:
            if row < len(problem.target):
                return problem.ranked(row, answer)
            row -= len(problem.target)
        raise IndexError(row)

    def keeping_scores(self) -> Batch:
        """As `Problem.keeping_scores`, of all problems."""
        return Batch(tuple(problem.keeping_scores() for problem in self.problems))

    def losses(self, embeddings: Tensor, objective: Objective) -> Tensor:
        """The objective of each row, `(B, T, D) -> (B,)`; rows do not touch each other."""
        shown = zip(self.problems, self._outputs(embeddings), strict=True)
        return torch.cat([objective(p.slice.select(o), p.target) for p, o in shown])

    @torch.no_grad()
    def solved(self, tokens: Tensor) -> Tensor:
        """Which rows of `(B, T)` tokens explain what is shown, within the limit, `(B,)`."""
        outputs = self._outputs(self.circuit.embed(tokens))
        return torch.cat(
            [
                (problem.distances(output) <= problem.limit).all(dim=-1)
                for problem, output in zip(self.problems, outputs, strict=True)
            ]
        )

    def of(self, rows: Tensor) -> Batch:
        """Some of the rows, given by ascending number `(b,)`."""
        problems, start = [], 0
        for problem in self.problems:
            end = start + len(problem.target)
            chosen = rows[(rows >= start) & (rows < end)] - start
            if len(chosen):
                problems.append(problem.of(chosen))
            start = end
        return Batch(tuple(problems))

    def _outputs(self, embeddings: Tensor) -> list[Tensor]:
        """Each problem's whole outputs, `(P, T, width)`."""
        parts = embeddings.split([len(problem.target) for problem in self.problems])
        families: dict[tuple[str, frozenset[str]], list[int]] = {}
        for i, problem in enumerate(self.problems):
            families.setdefault((problem.circuit.part, problem.circuit.without), []).append(i)
        outputs: dict[int, Tensor] = {}
        for family in families.values():
            family.sort(key=lambda i: self.problems[i].circuit.depth)
            together = run_together(
                [self.problems[i].circuit for i in family],
                [len(parts[i]) for i in family],
                torch.cat([parts[i] for i in family]),
            )
            outputs.update(zip(family, together, strict=True))
        return [outputs[i] for i in range(len(self.problems))]
