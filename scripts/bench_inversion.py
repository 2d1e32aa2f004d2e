"""What exact search and batching are worth, as ratios of ways that give the same answer.

    python -m scripts.bench_inversion --out docs/benchmarks

    python -m scripts.bench_inversion --models runs/flat/models/step-001000 \\
        runs/llama/models/step-001000 --corpus data/tinystories

All ways of a ratio run in turns in one process; of several turns the fastest counts. Without
--models, untrained models of --d-model and --layers are asked for random tokens.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel, ModelConfig
from eval.circuit import Circuit
from eval.inversion.guesses import ReadBack, fit_readbacks
from eval.inversion.problem import Problem, capture, pose
from eval.inversion.solvers.alternating import alternating
from eval.inversion.solvers.descent import descent
from eval.inversion.solvers.propose import propose
from eval.inversion.solvers.sweep import sweep
from eval.models import candidates_at_once, open_checkpoint
from eval.slices import Slice
from eval.text import drawn_prompts, held_out_text
from scripts import pages
from tokenizer import CorpusError

STEPS = 20  # of descent; each costs the same


class Subject(NamedTuple):
    """A model and the tokens that are recovered from it."""

    name: str
    model: LanguageModel
    tokens: Tensor
    text: Tensor


FLAGS = {
    **pages.DEVICE,
    **pages.THREADS,
    "--models": ("model directories", []),
    "--corpus": ("stories, where --models are given", "toy"),
    "--d-model": ("width", 128),
    "--layers": ("blocks", 4),
    "--turns": ("of which the fastest counts", 3),
    "--prompts": ("for the search of hidden tokens", 16),
    "--memory": (argparse.SUPPRESS, False),
}


def main(words: list[str] | None = None) -> int:
    """Measures and prints the page, and saves it where asked; the exit code."""
    with torch.no_grad():
        return pages.run("inversion", __doc__, FLAGS, measure, words, CorpusError)


def measure(options: argparse.Namespace) -> pages.Pages:
    """The page anew after each question, with what is not answered yet; at last the whole one."""
    subjects = _subjects(options)
    if options.memory:
        yield _peak(subjects[0], options.device), []
        return
    start = (
        f"# Inversion\n\n`{options.command}`\n\n"
        f"{pages.hardware(options.device, options.threads)}, float32. Last layer; the fastest of "
        f"{options.turns} turns; ratios of seconds.\n\n"
    )
    rows: list[list[str]] = []
    for name, question in QUESTIONS.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append([name, *(question(subject, options) for subject in subjects)])
        start_and_table = start + pages.table(["", *(subject.name for subject in subjects)], rows)
        remaining = "; ".join([*list(QUESTIONS)[len(rows) :], "memory"])
        yield f"{start_and_table}\nNot measured: {remaining}.\n", []
    print("memory ...", file=sys.stderr, flush=True)
    peak = pages.elsewhere("inversion", options, "--memory", "--d-model", 512, "--layers", 8)
    about = (
        "Peak memory of a process that recovers a prompt of 24 tokens at d = 512, n = 8, V = 4096, "
        "by sweep, by propose and verify, and with three hidden"
    )
    yield f"{start_and_table}\n{about}: {peak}.\n", []


def _problem(subject: Subject, prompts: int, length: int, hidden: int = 0) -> Problem:
    """Its read-backs are fitted anew for each call."""
    circuit = Circuit(subject.model, len(subject.model.blocks))

    def readbacks(several: list[Circuit]) -> list[ReadBack]:
        fits = fit_readbacks(several, subject.text)
        return [ReadBack(c.vocabulary, fit) for c, fit in zip(several, fits, strict=True)]

    ((outputs, rounding),) = capture([circuit], subject.tokens[:prompts, :length])
    return pose(circuit, outputs, rounding, Slice(hidden), readbacks=readbacks)


def _chance(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(p) for p in range(count)]


def batched(subject: Subject, options: argparse.Namespace) -> str:
    """The published protocol on 64 problems at once, over one after the other."""
    problem, truth = _problem(subject, 64, 16), subject.tokens[:64, :16]

    def together() -> None:
        descent(problem, _chance(64), steps=STEPS)

    def one_by_one() -> None:  # eight of them: the others cost the same
        for p in range(8):
            descent(problem.of([p]), _chance(1), steps=STEPS)

    def restated() -> None:
        for p in range(8):
            _published(subject.model, truth[p : p + 1], STEPS)

    fast, slow, plain = _fastest([together, one_by_one, restated], options)
    return f"{8 * slow / fast:.1f} (over a plain restatement {8 * plain / fast:.1f})"


def agreement(subject: Subject, options: argparse.Namespace) -> str:
    """Positions at which the batched protocol and a plain restatement of it decode the same."""
    truth = subject.tokens[:8, :16]
    answers = descent(_problem(subject, 8, 16), _chance(8), steps=200)
    inverse, same = torch.linalg.pinv(subject.model.embedding.weight), 0
    for p, (answer, chance) in enumerate(zip(answers, _chance(8), strict=True)):
        start = torch.randn(16, inverse.shape[0], generator=chance)
        x = _published(subject.model, truth[p : p + 1], 200, start[None].to(inverse))
        same += int(((x @ inverse)[0].argmax(dim=-1) == answer.tokens).sum())
    return f"{same} of {truth.numel()}"


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
    answers = alternating(problem, _chance(len(tokens)))
    seconds = (time.perf_counter() - started) / len(tokens)
    right = sum(a.tokens.equal(t) for a, t in zip(answers, tokens, strict=True))
    evaluations = statistics.median(answer.evaluations for answer in answers)
    return (
        f"{seconds:.2f} a prompt of {len(answers)} together, "
        f"{evaluations:,.0f} tokens run, {right} of {len(tokens)} exact"
    )


QUESTIONS: dict[str, Callable[[Subject, argparse.Namespace], str]] = {
    "published descent, 200 steps: tokens that a plain restatement decodes alike": agreement,
    "published descent, 64 problems of 16 tokens: one by one / batched": batched,
    "exhaustive sweep / bare matrix products": products,
    "one full pass a candidate / cached sweep, 32 tokens": cached,
    "three hidden tokens of 24, nothing given, seconds": hidden,
}


def _subjects(options: argparse.Namespace) -> list[Subject]:
    device = torch.device(options.device)
    subjects = []
    for path in options.models or ():
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


def _published(
    model: LanguageModel, tokens: Tensor, steps: int, start: Tensor | None = None
) -> Tensor:
    """The protocol as one would write it down: one prompt, gradients by `backward`."""
    rate = 0.02
    with torch.enable_grad():
        layer, e = len(model.blocks), model.embed(tokens)
        target, x = model.hidden(e, layer), torch.randn_like(e) if start is None else start
        for i in range(steps):
            x = x.detach().requires_grad_()
            torch.sum(torch.abs(model.hidden(x, layer) - target)).backward()
            assert x.grad is not None
            x = x - (rate * (steps - i) + rate / 10 * i) / steps * x.grad
    return x.detach()


def _fastest(ways: list[Callable[[], object]], options: argparse.Namespace) -> list[float]:
    """Seconds of each way: the fastest of several turns, after one that does not count."""
    best = [float("inf")] * len(ways)
    for turn in range(options.turns + 1):
        for i, way in enumerate(ways):
            started = time.perf_counter()
            way()
            if options.device != "cpu":
                torch.cuda.synchronize()
            if turn:
                best[i] = min(best[i], time.perf_counter() - started)
    return best


def _peak(subject: Subject, device: str) -> str:
    sweep(_problem(subject, 1, 24), [])
    list(propose([_problem(subject, 1, 24)], []))
    alternating(_problem(subject, 1, 24, hidden=3), _chance(1), starts=2)
    if device != "cpu":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB of the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"


if __name__ == "__main__":
    sys.exit(main())
