"""Runs every combination of layer, slice, method, prompt and seed on checkpoints, as rows."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from eval.checkpoints import Checkpoint
from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.answer import Answer
from eval.inversion.methods import Method
from eval.inversion.metrics import ranks, tally, verdicts
from eval.inversion.problem import Measured, Problem, measure, pose
from eval.inversion.slices import Slice
from eval.prompts import Prompt
from eval.results import Row, row_key

Site = tuple[Path, int, tuple[Prompt, ...]]
"""A model directory, a layer and the prompts that are looked at together."""


@dataclass(frozen=True)
class Question:
    """What is asked of every checkpoint.

    Attributes:
        layers: block outputs to look at, from 0 (the embedding); None for every block's.
        slices: what is shown.
        methods: solvers by name.
        seeds: one answer per seed for solvers that draw at random.
    """

    layers: list[int] | None
    slices: list[Slice]
    methods: dict[str, Method]
    seeds: list[int]


@dataclass(frozen=True)
class Task:
    """Rows that are computed together: prompts of one length, one site, slice, method and seed."""

    checkpoint: Checkpoint
    layer: int
    slice: Slice
    name: str
    method: Method
    seed: int
    prompts: list[Prompt]

    def key(self, prompt: Prompt) -> str:
        """The row's key: everything that its content depends on."""
        about = self.checkpoint.provenance
        return row_key(
            *(about[field] for field in ("name", "step", "weights_sha256")),
            self.layer,
            str(self.slice),
            self.name,
            self.method.settings,
            prompt.tokens,
            self.seed,
        )

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        config, length = self.checkpoint.config, len(self.prompts[0].tokens)
        hidden = self.slice.hidden_prefix(length) or 0
        each = self.method.cost(config.vocab_size, length, hidden)
        return each * len(self.prompts) * (1 + self.layer)


def plan(
    checkpoint: Checkpoint, question: Question, prompts: list[Prompt], done: set[str]
) -> list[Task]:
    """The work that a question makes, less the rows that are there already.

    Raises:
        RequestError: a layer out of range, or nothing left because no method fits any slice.
    """
    depth = checkpoint.config.n_layers
    layers = range(1, depth + 1) if question.layers is None else question.layers
    for layer in layers:
        if not 0 <= layer <= depth:
            raise RequestError(
                f"--layers {layer}: {checkpoint.path} has layers 0 (the embedding) to {depth}"
            )
    tasks = [
        Task(checkpoint, layer, shown, name, method, seed, same_length)
        for layer in layers
        for shown in question.slices
        for name, method in question.methods.items()
        for seed in (question.seeds if method.random else question.seeds[:1])
        for same_length in _by_length(prompts)
        if method.fits(shown.hidden_prefix(len(same_length[0].tokens)))
    ]
    if not tasks:
        needs = "; ".join(f"{name} needs {m.needs}" for name, m in question.methods.items())
        raise RequestError(
            f"--slices {' '.join(map(str, question.slices))}: no method asked for fits ({needs})"
        )
    pending = []
    for task in tasks:
        left = [prompt for prompt in task.prompts if task.key(prompt) not in done]
        if left:
            pending.append(replace(task, prompts=left))

    return pending


def run(task: Task, known: dict[Site, Measured] | None = None) -> list[Row]:
    """Answers a task: one row per prompt.

    Args:
        task: the task.
        known: what was measured at a site before; this task's site is added.
    """
    device = task.checkpoint.model.embedding.weight.device
    truth = torch.tensor([prompt.tokens for prompt in task.prompts], device=device)
    circuit, known = Circuit(task.checkpoint.model, task.layer), {} if known is None else known
    site = (task.checkpoint.path, task.layer, tuple(task.prompts))
    if site not in known:
        known[site] = measure(circuit, truth)
    problem = pose(circuit, truth, task.slice, known[site])
    chance = [_generator(prompt, task.seed) for prompt in task.prompts]
    answers = task.method.solve(problem, truth, chance, **task.method.settings)
    residual, at_floor = problem.residual(torch.stack([answer.tokens for answer in answers]))
    return [
        _row(task, problem, prompt, answer, p, float(residual[p]), bool(at_floor[p]))
        for p, (prompt, answer) in enumerate(zip(task.prompts, answers, strict=True))
    ]


def run_all(tasks: Iterable[Task], save: Callable[[list[Row]], None]) -> Iterator[list[Row]]:
    """Runs tasks one after the other, each one's rows saved before the next begins."""
    known: dict[Site, Measured] = {}
    for task in tasks:
        if not any(site[:2] == (task.checkpoint.path, task.layer) for site in known):
            known.clear()  # tasks come layer by layer: what is behind is not needed again
        rows = run(task, known)
        save(rows)
        yield rows


def _row(
    task: Task,
    problem: Problem,
    prompt: Prompt,
    answer: Answer,
    p: int,
    residual: float,
    at_floor: bool,
) -> Row:
    truth = torch.tensor(prompt.tokens)
    answer.tokens, answer.scores = answer.tokens.cpu(), answer.scores.cpu()
    shown = set(task.slice.positions(problem.length))
    rank = ranks(answer, truth)
    found = answer.tokens.tolist()
    checkpoint = task.checkpoint
    return {
        "key": task.key(prompt),
        "checkpoint": checkpoint.provenance,
        "site": {"layer": task.layer, "part": "block"},
        "slice": str(task.slice),
        "length": problem.length,
        "observed": len(shown),
        "hidden": problem.length - len(shown),
        "method": task.name,
        "settings": task.method.settings,
        "prompts": prompt.kind,
        "prompt": prompt.index,
        "seed": task.seed,
        "text": checkpoint.tokenizer.decode(list(prompt.tokens), skip_special_tokens=False),
        "truth": list(prompt.tokens),
        "found": found,
        "truth_text": checkpoint.pieces(list(prompt.tokens)),
        "found_text": checkpoint.pieces(found),
        "rank": rank,
        "self": tally(rank, [t for t in range(problem.length) if t in shown]),
        "nonself": tally(rank, [t for t in range(problem.length) if t not in shown]),
        "exact": found == list(prompt.tokens),
        "residual": residual,
        "floor": float(problem.floor[p].norm()),
        "margin": None if answer.runner_up is None else float(answer.runner_up.min()),
        "at_floor": at_floor,
        "criterion": answer.criterion,
        "verdict": verdicts(answer, truth, at_floor),
        "collisions": [
            {"position": t, "tokens": checkpoint.pieces(tokens)}
            for t, tokens in answer.collisions.items()
        ],
        "evaluations": answer.evaluations,
        "seconds": round(answer.seconds, 4),
    }


def _generator(prompt: Prompt, seed: int) -> torch.Generator:
    """Chance that belongs to the prompt and the seed, whatever batch they stand in."""
    return torch.Generator().manual_seed(int(row_key(prompt.tokens, seed), 16) % 2**63)


def _by_length(prompts: list[Prompt]) -> list[list[Prompt]]:
    def length(prompt: Prompt) -> int:
        return len(prompt.tokens)

    return [list(group) for _, group in groupby(sorted(prompts, key=length), key=length)]
