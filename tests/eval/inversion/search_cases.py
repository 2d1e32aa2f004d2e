"""What tests of solvers stand on: random prompts, guesses of two kinds, changed models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from eval.inversion.guesses import ReadBack, fit_readbacks
from eval.inversion.problem import Problem, pose
from eval.inversion.solver import Answer, ask_solver, solvers
from eval.sites.circuit import Circuit
from eval.sites.rounding import capture
from eval.sites.slices import Slice

MIXERS = ["flat", "attention(heads=2, kv_heads=1)", "attention+flat"]
TEXTS = ["Zinc melts at 419 C.", "A map of Lima, 1902?"]
"""Of 20 bytes each."""
SHORT = [text[:12] for text in TEXTS]
"""The first 12 bytes of each."""
QUICK: dict[str, dict[str, Any]] = {
    "adam": {"steps": 150},
    "decoder": {"steps": 50, "budget": 1 << 16},
    "descent": {"steps": 300, "rate": 0.1},
    "gcg": {"steps": 100},
    "pez": {"steps": 200},
    "soda": {"steps": 300},
}
"""Settings with which solvers that fit or descend recover shown tokens of small models."""


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 * seed + i) for i in range(count)]


def prompts(count: int = 3, length: int = 8, vocab: int = 400, seed: int = 7) -> Tensor:
    return torch.randint(vocab, (count, length), generator=torch.Generator().manual_seed(seed))


def posed(
    model: LanguageModel, truth: Tensor, shown: str = "[:, :, :]", *site: Any, noise: float = 0.0
) -> Problem:
    """The problem of some tokens, at the second layer if no site is given."""
    place: tuple[Any, ...] = site or (2,)
    circuit = Circuit(model, *place)
    ((outputs, rounding),) = capture([circuit], truth)
    return pose(circuit, outputs, rounding, Slice.parse(shown), noise, generators(len(truth)))


def readback(circuit: Circuit) -> ReadBack:
    (fit,) = fit_readbacks([circuit], prompts(32, 32, len(circuit.vocabulary), seed=2))
    return ReadBack(circuit.vocabulary, fit)


def misread(circuit: Circuit) -> ReadBack:
    """A read-back whose slopes are drawn at random."""
    fit = readback(circuit)
    for name in ("slopes", "first.slopes"):
        fit.tensors[name] = torch.randn_like(fit.tensors[name])
    return fit


def solve(
    name: str,
    problems: Problem | list[Problem],
    guesses: Callable[[Circuit], ReadBack] | None = None,
    **settings: Any,
) -> list[Answer]:
    """A solver's verified answers, with its scores; it guesses well if no guesses are given."""
    several = problems if isinstance(problems, list) else [problems]
    if len(several) > 1 and not solvers()[name].layers:
        return [each for one in several for each in solve(name, one, guesses, **settings)]
    asked, raw = solvers()[name].configured(settings), []

    def function(*words: Any, **given: Any) -> list[Answer]:
        raw.extend(asked.function(*words, **given))
        return raw

    def readbacks(circuits: list[Circuit]) -> list[ReadBack]:
        return [(guesses or readback)(circuit) for circuit in circuits]

    known = [replace(problem, readbacks=readbacks) for problem in several]
    parts = ask_solver(replace(asked, function=function), known, generators(len(known[0].target)))
    answers = [each for part in parts for each in part]
    for each, found in zip(answers, raw, strict=True):
        each.scores = found.scores
    return answers


def tokens_of(answers: list[Answer]) -> Tensor:
    return torch.stack([answer.tokens for answer in answers])


def sharpened(model: LanguageModel, factor: float = 4.0) -> LanguageModel:
    """With weights as large as training makes them, so that blocks do more than pass on."""
    for parameter in model.blocks.parameters():
        parameter.mul_(factor)
    return model


def with_twins(model: LanguageModel, one: int, other: int) -> LanguageModel:
    model.embedding.weight[other] = model.embedding.weight[one]
    return model
