"""An answer held against what was captured: outputs, how far these may lie, how far they do."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.captured.arithmetic import EXACT
from eval.captured.captured import Captured
from eval.captured.certainty.rivals import EXACT_RIVALS, LAST, Beside, choose_rivals
from eval.inversion.problem import Problem
from eval.sites.rounding import Tolerance, capture, capture_beside

BESIDE = 1 << 24  # numbers of rivals' outputs that are kept, at most


@dataclass(frozen=True)
class Verified:
    """An answer beside what was captured.

    Attributes:
        tokens: the answer, `(B, T)`.
        outputs: of its tokens, `(B, T, width)`, at the site that was searched.
        rounding: how far each of these numbers may move, a lower precision's change among it.
        tolerance: of the distances shown, `(B, S)`, whose spread is that of nearly all numbers.
        residual: their distance from what was captured, `(B, S)`.
        beside: rivals that were run on the way, if they are few and all positions shown.
    """

    tokens: Tensor
    outputs: Tensor
    rounding: Tensor
    tolerance: Tolerance
    residual: Tensor
    beside: Beside | None = None


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        problem: as it was asked last.
        verified: the answer.
        proofs: of each prompt the certificate that its answer may have.
        evaluations: tokens sent through the model for each prompt.
    """

    problem: Problem
    verified: Verified
    proofs: list[str]
    evaluations: list[int]


def verify(captured: Captured, problem: Problem, tokens: Tensor) -> Verified:
    """Holds the outputs of `(B, T)` tokens against what was captured."""
    circuit, beside = problem.circuit, None
    if _runs_beside(captured, problem):
        rivals = choose_rivals(problem, tokens)
        own, rounding, outputs = capture_beside(circuit, tokens, rivals)
        beside = Beside(rivals, outputs)
    else:
        ((own, rounding),) = capture([circuit], tokens)
    changed, select = captured.arithmetic.change(circuit, tokens, own), problem.slice.select
    floor, change = select(rounding).norm(dim=-1), select(changed).norm(dim=-1)
    tolerance = Tolerance(floor, captured.spread, change)
    residual = problem.distances(own)
    return Verified(tokens, own, torch.maximum(rounding, changed), tolerance, residual, beside)


def _runs_beside(captured: Captured, problem: Problem) -> bool:
    """Whether the rivals of an answer are few, and decided by each position's own output."""
    exact = captured.arithmetic.name == captured.stored.format == EXACT
    shown = len(captured.positions) == captured.length and problem.circuit is captured.circuit
    numbers = captured.stored.values.numel() * (EXACT_RIVALS + LAST)
    return exact and shown and numbers <= BESIDE
