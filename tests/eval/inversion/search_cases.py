"""What tests of solvers stand on: random prompts, guesses of two kinds, changed models."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.lexicon import Lexicon
from eval.inversion.problem import Batch, Problem
from eval.inversion.readback import ReadBack, fit_readbacks

MIXERS = ["flat", "attention(heads=2, kv_heads=1)", "attention+flat"]


def chance(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 * seed + i) for i in range(count)]


def prompts(count: int = 3, length: int = 8, vocab: int = 400, seed: int = 7) -> Tensor:
    return torch.randint(vocab, (count, length), generator=torch.Generator().manual_seed(seed))


def lexicon(circuit: Circuit) -> Lexicon:
    return Lexicon(circuit, prompts(8, 32, len(circuit.vocabulary), seed=8))


def readbacks(circuits: list[Circuit], text: Tensor | None = None) -> list[ReadBack]:
    text = prompts(32, 32, len(circuits[0].vocabulary), seed=2) if text is None else text
    fits = fit_readbacks(circuits, text)
    return [ReadBack(c.vocabulary, fit) for c, fit in zip(circuits, fits, strict=True)]


def readback(circuit: Circuit) -> ReadBack:
    return readbacks([circuit])[0]


def useless(circuit: Circuit) -> Lexicon:
    """Guesses from a background of a single token, over and over."""
    return Lexicon(circuit, torch.full((8, 32), 5))


def misread(circuit: Circuit) -> ReadBack:
    """A read-back whose slopes are drawn at random."""
    fit = readback(circuit)
    for name in ("slopes", "first.slopes"):
        fit.tensors[name] = torch.randn_like(fit.tensors[name])
    return fit


def solve(
    solver: Callable[..., list[Answer]],
    problems: Problem | list[Problem],
    guesses: Lexicon | ReadBack | None = None,
    generators: list[torch.Generator] | None = None,
    **settings: Any,
) -> list[Answer]:
    """A solver's answers to problems, with what it guesses from and chance if it needs them."""
    problems = problems if isinstance(problems, list) else [problems]
    if isinstance(guesses, ReadBack):
        settings["readback"] = lambda circuits: [guesses]
    elif guesses is not None:
        settings["lexicon"] = lambda circuit: guesses
    return solver(Batch(tuple(problems)), generators or [], **settings)


def found(answers: list[Answer]) -> Tensor:
    return torch.stack([answer.tokens for answer in answers])


def sharpened(model: LanguageModel, factor: float = 4.0) -> LanguageModel:
    """With weights as large as training makes them, so that blocks do more than pass on."""
    for parameter in model.blocks.parameters():
        parameter.mul_(factor)
    return model


def with_twins(model: LanguageModel, one: int, other: int) -> LanguageModel:
    model.embedding.weight[other] = model.embedding.weight[one]
    return model
