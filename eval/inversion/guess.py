"""Chance: uniformly random tokens, the control that every figure is compared with."""

import torch

from eval.inversion.answer import Answer
from eval.inversion.lexicon import Lexicon
from eval.inversion.problem import Problem


def chance(problem: Problem, lexicon: Lexicon, chance: list[torch.Generator]) -> list[Answer]:
    """Answers without looking."""
    V = len(problem.circuit.vocabulary)
    answers = []
    for p, generator in enumerate(chance):
        scores = torch.rand(problem.length, V, generator=generator)
        answers.append(problem.ranked(p, Answer(scores.argmax(dim=-1), scores)))
    return answers
