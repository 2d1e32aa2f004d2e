"""What exact search and batching are worth, as ratios of ways that give the same answer.

    python -m scripts.bench.inversion --out docs/benchmarks

    python -m scripts.bench.inversion --models runs/flat/models/step-001000 \\
        runs/llama/models/step-001000 --corpus data/tinystories

All ways of a ratio run in turns in one process; of several turns the fastest counts. Without
--models, untrained models of --d-model and --layers are asked for random tokens.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel, ModelConfig
from eval import RequestError
from eval.inversion.guesses import ReadBack, fit_readbacks
from eval.inversion.problem import Problem, pose
from eval.inversion.solvers.alternating.search import alternating
from eval.inversion.solvers.descent import descent
from eval.inversion.solvers.sweep import sweep
from eval.models.checkpoint import open_checkpoint
from eval.models.memory import candidates_at_once
from eval.models.text import drawn_prompts, held_out_text
from eval.sites.circuit import Circuit
from eval.sites.rounding import capture
from eval.sites.slices import Slice
from scripts.bench import shared as bench
from tokenizer import CorpusError

STEPS = 20  # of descent; each costs the same


class Subject(NamedTuple):
    """A model and the tokens that are recovered from it."""

    name: str
    model: LanguageModel
    tokens: Tensor
    text: Tensor


def main(words: list[str] | None = None) -> int:
    """Measures and prints the page, and saves it where asked; the exit code."""
    parser = bench.parser(__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=[], help="model directories")
    add("--corpus", default="toy", help="stories, where --models are given (%(default)s)")
    add("--d-model", type=bench.natural, default=128, help="width (%(default)s)")
    add("--layers", type=bench.natural, default=4, help="blocks (%(default)s)")
    add("--turns", type=bench.natural, default=3, help="of which the fastest counts (%(default)s)")
    add("--prompts", type=bench.natural, default=16, help="for the search of hidden tokens")
    options = bench.parse(parser, words)
    with torch.no_grad():
        return bench.run("inversion", options, measure, RequestError, CorpusError)


def measure(options: argparse.Namespace) -> bench.Pages:
    """The page anew after each question, with what is not answered yet."""
    subjects = _subjects(options)
    start = (
        f"# Inversion\n\n`{options.command}`\n\n"
        f"{bench.hardware(options)}, float32. Last layer; the fastest of "
        f"{options.turns} turns; ratios of seconds.\n\n"
    )
    rows: list[list[str]] = []
    for name, question in QUESTIONS.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append([name, *(question(subject, options) for subject in subjects)])
        start_and_table = start + bench.table(["", *(subject.name for subject in subjects)], rows)
        remaining = "; ".join([*QUESTIONS][len(rows) :])
        yield start_and_table + (f"\nNot measured: {remaining}.\n" if remaining else ""), []


def _problem(subject: Subject, prompts: int, length: int, hidden: int = 0) -> Problem:
    """The problem of a subject, whose read-backs are fitted anew for each call."""
    circuit = Circuit(subject.model, len(subject.model.blocks))

    def readbacks(circuits: list[Circuit]) -> list[ReadBack]:
        fits = fit_readbacks(circuits, subject.text)
        return [ReadBack(c.vocabulary, fit) for c, fit in zip(circuits, fits, strict=True)]

    ((outputs, rounding),) = capture([circuit], subject.tokens[:prompts, :length])
    return replace(pose(circuit, outputs, rounding, Slice(hidden)), readbacks=readbacks)


def _generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(p) for p in range(count)]


def batched(subject: Subject, options: argparse.Namespace) -> str:
    """The published protocol on 64 problems at once, over one after the other."""
    problem = _problem(subject, 64, 16)

    def together() -> None:
        descent(problem, _generators(64), steps=STEPS)

    def one_by_one() -> None:  # eight of them: the others cost the same
        for p in range(8):
            descent(problem.of([p]), _generators(1), steps=STEPS)

    fast, slow = _fastest([together, one_by_one], options)
    return f"{8 * slow / fast:.1f}"


def products(subject: Subject, options: argparse.Namespace) -> str:
    """The exhaustive sweep, over the bare matrix products of the same shapes."""
    problem, modules = _problem(subject, 1, 8), subject.model.blocks.modules()
    weights = [module.weight.T for module in modules if isinstance(module, torch.nn.Linear)]
    V, at_once = len(problem.vocabulary), candidates_at_once(subject.model)
    inputs = {w.shape[0]: torch.randn(at_once, w.shape[0]).to(w) for w in weights}
    rounds = problem.length * -(-V // at_once)

    def bare() -> None:
        for _ in range(rounds):
            for w in weights:
                torch.mm(inputs[w.shape[0]], w)

    swept, product = _fastest([lambda: sweep(problem, []), bare], options)
    return f"{swept / product:.2f}"


def cached(subject: Subject, options: argparse.Namespace) -> str:
    """One full pass per candidate over the cached sweep, at 32 tokens."""
    problem, tokens = _problem(subject, 1, 32), subject.tokens[:1, :32].clone()

    def one_each() -> None:  # a few candidates at the last position: the others cost the same
        for candidate in range(8):
            tokens[0, -1] = candidate
            problem.circuit.of_tokens(tokens)

    swept, passes = _fastest([lambda: sweep(problem, []), one_each], options)
    return f"{passes / 8 * len(problem.vocabulary) * 32 / swept:.0f}"


def hidden(subject: Subject, options: argparse.Namespace) -> str:
    """Seconds for three hidden tokens of 24, nothing given, of prompts searched together."""
    tokens = subject.tokens[: options.prompts, :24]
    problem, started = _problem(subject, len(tokens), 24, hidden=3), time.perf_counter()
    answers = alternating(problem, _generators(len(tokens)))
    seconds = (time.perf_counter() - started) / len(tokens)
    right = sum(a.tokens.equal(t) for a, t in zip(answers, tokens, strict=True))
    evaluations = statistics.median(answer.evaluations for answer in answers)
    return (
        f"{seconds:.2f} a prompt of {len(answers)} together, "
        f"{evaluations:,.0f} tokens run, {right} of {len(tokens)} exact"
    )


QUESTIONS: dict[str, Callable[[Subject, argparse.Namespace], str]] = {
    "published descent, 64 problems of 16 tokens: one by one / batched": batched,
    "exhaustive sweep / bare matrix products": products,
    "one full pass a candidate / cached sweep, 32 tokens": cached,
    "three hidden tokens of 24, nothing given, seconds": hidden,
}


def _subjects(options: argparse.Namespace) -> list[Subject]:
    device = torch.device(options.device)
    subjects = []
    for path in options.models:
        checkpoint = open_checkpoint(path, device)
        stories, about = held_out_text(checkpoint, options.corpus), checkpoint.provenance
        prompts = drawn_prompts("story", stories, 64, 32)
        tokens = torch.tensor([prompt.tokens for prompt in prompts], device=device)
        name = f"{about['name']}, step {about['step']}"
        subjects.append(Subject(name, checkpoint.model, tokens, stories.background.to(device)))
    if subjects:
        return subjects
    sizes = {"context": 128, "d_model": options.d_model, "n_layers": options.layers}
    llama = {"channel_mixer": "swiglu", "d_ff": options.d_model * 11 // 4, "norm": "rmsnorm"}
    configs = {
        "flat": ModelConfig(mixers=("flat",), **sizes),
        "Llama-style": ModelConfig(mixers=("attention(heads=4)",), **sizes, **llama),
    }
    for name, config in configs.items():
        torch.manual_seed(0)
        model = LanguageModel(config).to(device).eval().requires_grad_(False)
        tokens = torch.randint(config.vocab_size, (64, 32), device=device)
        text = torch.randint(config.vocab_size, (8, 32), device=device)
        subjects.append(Subject(f"{name}, untrained", model, tokens, text))
    return subjects


def _fastest(ways: list[Callable[[], object]], options: argparse.Namespace) -> list[float]:
    """Seconds of each way: the fastest of several turns, after one that does not count."""

    def timer(way: Callable[[], object]) -> float:
        started = time.perf_counter()
        way()
        if options.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    timers = {number: partial(timer, way) for number, way in enumerate(ways)}
    readings = bench.in_turns(timers, options.turns + 1, shuffle=False)
    return [min(taken[1:]) for taken in readings.values()]


if __name__ == "__main__":
    sys.exit(main())
