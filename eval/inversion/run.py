"""Runs jobs: poses their problems, calls the solver, and makes a row of every answer."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eval.checkpoints import Checkpoint
from eval.circuit import Circuit
from eval.inversion.answer import COLLISIONS, Answer, extras, nearest_rival, tally, verdicts
from eval.inversion.batch import Batch
from eval.inversion.lexicon import Lexicon
from eval.inversion.problem import Measured, Problem, measure, pose
from eval.inversion.questions import Cell, Job, Site
from eval.inversion.solvers import Tools
from eval.results import Row, row_key
from eval.text import Prompt

SHUFFLED = "shuffled"


class Runner:
    """Runs jobs of several checkpoints, keeping what it measured of the present one.

    Args:
        prompts: all prompts, so that floors are measured on all of one length at once.
        background: ordinary text by checkpoint, for the searches' guesses.
    """

    def __init__(
        self,
        prompts: dict[str, list[Prompt]],
        background: dict[str, Tensor],
    ) -> None:
        self._prompts, self._background = prompts, background
        self._now: Checkpoint | None = None
        self._measured: dict[tuple[Site, int], tuple[dict[Prompt, int], Measured]] = {}
        self._circuits: dict[Site, Circuit] = {}  # they hold what is slow to make of a model
        self._lexicons: dict[Circuit, Lexicon] = {}

    def run_all(
        self, jobs: Iterable[Job], save: Callable[[list[Row]], None]
    ) -> Iterator[list[Row]]:
        """Runs jobs one after the other, each one's rows saved before the next begins."""
        for job in jobs:
            rows = self.run(job)
            save(rows)
            yield rows

    def run(self, job: Job) -> list[Row]:
        """Answers a job: one row per cell."""
        if job.checkpoint is not self._now:
            self._now = job.checkpoint
            self._measured.clear()
            self._circuits.clear()
            self._lexicons.clear()
        grouped: dict[Any, list[Cell]] = {}
        for cell in job.cells:
            grouped.setdefault(cell.target, []).append(cell)
        problems = [self._pose(cells) for cells in grouped.values()]
        cells = [cell for own in grouped.values() for cell in own]
        answers = self._solve(job, problems, cells)
        rows = []
        for problem, own in zip(problems, grouped.values(), strict=True):
            mine, answers = answers[: len(own)], answers[len(own) :]
            found = torch.stack([answer.tokens for answer in mine]).to(problem.target.device)
            residual, within = problem.residual(found)
            rows += [
                _row(job, problem, cell, answer, p, float(residual[p]), bool(within[p]))
                for p, (cell, answer) in enumerate(zip(own, mine, strict=True))
            ]
        return rows

    def _solve(self, job: Job, problems: list[Problem], cells: list[Cell]) -> list[Answer]:
        assert self._now
        chance = [_generator(cell.prompt, cell.seed) for cell in cells]
        truth = torch.tensor([cell.prompt.tokens for cell in cells])
        tools = Tools(self._lexicon, truth.to(problems[0].target.device))
        asked = Batch(tuple(replace(problem, allowed=job.allowed) for problem in problems))
        return job.solver.answer(asked, chance, tools)

    def _pose(self, cells: list[Cell]) -> Problem:
        """The problem of cells that share a target."""
        assert self._now
        first = cells[0]
        length = len(first.prompt.tokens)
        numbers, measured = self._measure(first.site, length)
        rows = [numbers[cell.prompt] for cell in cells]
        if first.control == SHUFFLED:
            rows = [(row + 1) % len(numbers) for row in rows]
        own = measured._replace(outputs=measured.outputs[rows], apart=measured.apart[:, rows])
        circuit = self._circuit(first.site)
        truth = torch.tensor([cell.prompt.tokens for cell in cells])
        chance = [_generator(cell.prompt, f"noise {cell.seed}") for cell in cells]
        return pose(circuit, truth, first.slice, own, first.noise, chance, ranked=True)

    def _measure(self, site: Site, length: int) -> tuple[dict[Prompt, int], Measured]:
        assert self._now
        key = (site, length)
        if key not in self._measured:
            name = self._now.provenance["name"]
            same = [p for p in self._prompts[name] if len(p.tokens) == length]
            device = self._now.model.embedding.weight.device
            truth = torch.tensor([prompt.tokens for prompt in same], device=device)
            measured = measure(self._circuit(site), truth)
            self._measured[key] = {p: i for i, p in enumerate(same)}, measured
        return self._measured[key]

    def _lexicon(self, circuit: Circuit) -> Lexicon:
        assert self._now
        if circuit not in self._lexicons:
            background = self._background[self._now.provenance["name"]]
            device = self._now.model.embedding.weight.device
            self._lexicons[circuit] = Lexicon(circuit, background.to(device))
        return self._lexicons[circuit]

    def _circuit(self, site: Site) -> Circuit:
        assert self._now
        if site not in self._circuits:
            self._circuits[site] = site.circuit(self._now)
        return self._circuits[site]


def _row(
    job: Job,
    problem: Problem,
    cell: Cell,
    answer: Answer,
    p: int,
    residual: float,
    within: bool,
) -> Row:
    checkpoint, prompt = job.checkpoint, cell.prompt
    real, shown = prompt.real, cell.slice.positions(problem.length)
    tokens = list(prompt.tokens[:real])
    truth = torch.tensor(tokens)
    assert answer.ranks is not None
    answer.tokens = answer.tokens[:real].cpu()
    seen = {t for t in shown if t < real}
    rank, found = answer.ranks[:real].tolist(), answer.tokens.tolist()
    floor = problem.floor[p, : len(seen)]
    runner_up = None if answer.runner_up is None else answer.runner_up[: len(seen)].to(floor)
    return {
        "key": job.key(cell),
        "checkpoint": checkpoint.provenance,
        "site": cell.site.record,
        "slice": str(cell.slice),
        "length": real,
        "observed": len(shown),
        "hidden": real - len(seen),
        "padded": bool(prompt.pads),
        "noise": cell.noise,
        "control": cell.control,
        "method": job.label,
        "family": job.solver.family,
        "settings": job.settings,
        "prompts": prompt.kind,
        "prompt": prompt.index,
        "seed": cell.seed,
        "text": checkpoint.tokenizer.decode(tokens, skip_special_tokens=False),
        "truth": tokens,
        "found": found,
        "truth_text": checkpoint.pieces(tokens),
        "found_text": checkpoint.pieces(found),
        "rank": rank,
        "self": tally(rank, [t for t in range(real) if t in seen]),
        "nonself": tally(rank, [t for t in range(real) if t not in seen]),
        "exact": found == tokens,
        **extras(found, tokens, seen),
        "residual": residual,
        "floor": float(problem.floor[p].norm()),
        **nearest_rival(runner_up, floor),
        "at_floor": within,
        "diverged": answer.diverged,
        "criterion": answer.criterion,
        "certificate": answer.certificate if within and not problem.circuit.uncertified else None,
        "uncertified": problem.circuit.uncertified,
        "verdict": verdicts(answer, truth, within),
        "collisions": [
            {"position": t, "tokens": checkpoint.pieces(same[:COLLISIONS])}
            for t, same in answer.collisions.items()
            if t < real
        ],
        "steps_to_solve": answer.steps,
        "evaluations": answer.evaluations,
        "seconds": round(answer.seconds, 4),
        "notes": answer.notes,
    }


def _generator(prompt: Prompt, seed: object) -> torch.Generator:
    """Chance that belongs to the prompt and the seed, whatever batch they stand in."""
    return torch.Generator().manual_seed(int(row_key(prompt.tokens, seed), 16) % 2**63)
