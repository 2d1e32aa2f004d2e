"""The control that answers by chance."""

import torch

from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver


@solver("control", random=True)
def chance(problem: Problem, generators: Generators) -> list[Answer]:
    """Random tokens, without looking: the control that every figure is compared with."""
    V = len(problem.vocabulary)
    drawn = [torch.rand(problem.length, V, generator=generator) for generator in generators]
    return [Answer(scores.argmax(dim=-1), scores) for scores in drawn]
