"""Jobs: parts of a question that run at once. Each poses problems, calls a solver, gives rows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from eval import RequestError
from eval.circuit import Circuit, uncertified
from eval.inversion.answer import (
    COLLISIONS,
    Answer,
    is_permuted,
    nearest_rival,
    rank_tally,
    set_recall,
    verdicts,
)
from eval.inversion.guesses import ReadBack, open_readbacks
from eval.inversion.problem import Batch, Measured, Problem, measure_layers, pose
from eval.inversion.questions import GridCell, Question, Site
from eval.inversion.solvers import Solver, Tools
from eval.models import Checkpoint, candidates_at_once, rows_at_once
from eval.rows import Results, Row, row_key
from eval.text import Prompt, held_out_text

SHUFFLED = "shuffled"


@dataclass(frozen=True)
class Job:
    """A task: cells that one call of a solver answers, of one checkpoint and prompt length.

    Attributes:
        prompts: all of the run, so that floors are measured on all of one length at once.
        corpus: whose background text the searches guess from.
        allowed: the tokens that gradient solvers may answer with; None for all.
        directory: of results, where fits are kept; None where they are not.
    """

    checkpoint: Checkpoint
    label: str
    solver: Solver
    prompts: tuple[Prompt, ...]
    corpus: str
    allowed: tuple[int, ...] | None = None
    cells: list[GridCell] = field(default_factory=list)
    directory: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The `settings` field of its rows."""
        return self.solver.record | ({"allowed": list(self.allowed)} if self.allowed else {})

    @property
    def keys(self) -> list[str]:
        """The rows' keys."""
        return [self.key(cell) for cell in self.cells]

    def key(self, cell: GridCell) -> str:
        """The row's key: the question, the model, the method and the source of chance.

        The rest of a run is no part of it: floors are measured, and shuffled targets taken, among
        its prompts of one length, and read-backs fitted on its corpus. Rows that are there stay as
        they are where these change; another directory asks anew.
        """
        return row_key(
            *self.checkpoint.identity,
            cell.site.record,
            str(cell.slice),
            self.label,
            self.solver.name,
            self.settings,
            cell.prompt.tokens,
            cell.prompt.pads,
            cell.seed,
            cell.noise,
            cell.control,
        )

    def run(self, results: Results) -> list[Row]:
        """The rows that are not there yet, one a cell."""
        cells = [cell for cell in self.cells if self.key(cell) not in results.keys]
        shared = self.solver.together == "layers"
        batches = _batches(cells, len(self.cells), shared)
        parts = [replace(self, cells=some, directory=results.directory) for some in batches]
        return [row for part in parts for row in part.rows()]

    def rows(self) -> list[Row]:
        """Answers the cells: a row of each."""
        grouped: dict[Any, list[GridCell]] = {}
        for cell in self.cells:
            grouped.setdefault(cell.target, []).append(cell)
        problems = [self._pose(cells) for cells in grouped.values()]
        cells = [cell for same in grouped.values() for cell in same]
        chance = [_generator(cell.prompt, cell.seed) for cell in cells]
        batch = Batch(tuple(problems), self.allowed)
        truth = torch.tensor([cell.prompt.tokens[: batch.length] for cell in cells])
        truth = truth.to(problems[0].target.device)
        tools = Tools(truth, self._readbacks)
        answers = self.solver.answer(batch, chance, tools)
        rows = []
        for problem, start, end in batch.spans():
            tokens = torch.stack([answer.tokens for answer in answers[start:end]])
            residual, within = problem.residual(tokens.to(problem.target.device))
            _, true_within = problem.residual(truth[start:end])
            for p, row in enumerate(range(start, end)):
                verified = float(residual[p]), bool(within[p]), bool(true_within[p])
                rows.append(self._row(cells[row], answers[row], problem, p, *verified))
        return rows

    def _pose(self, cells: list[GridCell]) -> Problem:
        """The problem of cells that share a target, without the tokens after the last one shown."""
        first = cells[0]
        prompts, measured = self._measure(first.site, len(first.prompt.tokens))
        rows = [prompts.index(cell.prompt) for cell in cells]
        if first.control == SHUFFLED:
            rows = [(row + 1) % len(prompts) for row in rows]
        of_these = measured._replace(outputs=measured.outputs[rows], apart=measured.apart[:, rows])
        truth = torch.tensor([cell.prompt.tokens for cell in cells])
        chance = [_generator(cell.prompt, f"noise {cell.seed}") for cell in cells]
        circuit = self._circuit(first.site)
        problem = pose(circuit, truth, first.slice, of_these, first.noise, chance)
        return problem.shortened() if first.length < problem.length else problem

    def _measure(self, site: Site, length: int) -> tuple[list[Prompt], Measured]:
        """All prompts of one length; of all layers asked for here, measured in the same passes."""
        same = [prompt for prompt in self.prompts if len(prompt.tokens) == length]
        kept: dict[Site, Measured] = self.checkpoint.keep(("measured", tuple(same)), dict)
        if site not in kept:
            sites = dict.fromkeys([site, *(cell.site for cell in self.cells)])
            alike = (site.part, site.without)
            wanted = [s for s in sites if s not in kept and (s.part, s.without) == alike]
            device = self.checkpoint.model.embedding.weight.device
            tokens = torch.tensor([prompt.tokens for prompt in same], device=device)
            results = measure_layers(list(map(self._circuit, wanted)), tokens)
            kept.update(zip(wanted, results, strict=True))
        return same, kept[site]

    def _readbacks(self, circuits: list[Circuit]) -> list[ReadBack]:
        return open_readbacks(self.checkpoint, self.corpus, circuits, self.directory)

    def _circuit(self, site: Site) -> Circuit:
        return self.checkpoint.keep(("circuit", site), lambda: site.circuit(self.checkpoint))

    def _row(
        self,
        cell: GridCell,
        answer: Answer,
        problem: Problem,
        p: int,
        residual: float,
        within: bool,
        true_within: bool,
    ) -> Row:
        checkpoint, prompt = self.checkpoint, cell.prompt
        unproved = uncertified(problem.circuit.model)
        real, shown = min(prompt.real, problem.length), problem.slice.positions(problem.length)
        tokens = list(prompt.tokens[:real])
        assert answer.ranks is not None
        answer.tokens = answer.tokens[:real].cpu()
        seen = [t for t in shown if t < real]
        hidden = [t for t in range(real) if t not in seen]
        rank, named = answer.ranks[:real].tolist(), answer.tokens.tolist()
        floor = problem.floor[p, : len(seen)]
        runner_up = None if answer.runner_up is None else answer.runner_up[: len(seen)].to(floor)
        searched = self.solver.family == "search"
        return {
            "key": self.key(cell),
            "kind": "recovery",
            "checkpoint": checkpoint.provenance,
            "site": cell.site.record,
            "slice": str(cell.slice),
            "length": real,
            "observed": len(shown),
            "hidden": len(hidden),
            "padded": problem.length > real,
            "noise": cell.noise,
            "control": cell.control,
            "method": self.label,
            "family": self.solver.family,
            "settings": self.settings,
            "batch": len(self.cells),
            "candidates_at_once": candidates_at_once(checkpoint.model) if searched else None,
            "prompts": prompt.kind,
            "prompt": prompt.index,
            "seed": cell.seed,
            "text": checkpoint.tokenizer.decode(tokens, skip_special_tokens=False),
            "truth": tokens,
            "found": named,
            "truth_text": checkpoint.pieces(tokens),
            "found_text": checkpoint.pieces(named),
            "rank": rank,
            "self": rank_tally(rank, seen),
            "nonself": rank_tally(rank, hidden),
            "exact": named == tokens,
            "set_recall": set_recall(named, tokens, hidden),
            "permuted": is_permuted(named, tokens, hidden),
            "residual": residual,
            "floor": float(problem.floor[p].norm()),
            **nearest_rival(runner_up, floor),
            "at_floor": within,
            "truth_at_floor": true_within,
            "diverged": answer.diverged,
            "criterion": answer.criterion,
            "certificate": answer.certificate if within and not unproved else None,
            "uncertified": unproved,
            "verdict": verdicts(answer, torch.tensor(tokens), within),
            "collisions": [
                {"position": t, "tokens": checkpoint.pieces(same[:COLLISIONS])}
                for t, same in answer.collisions.items()
                if t < real
            ],
            "steps_to_solve": answer.steps,
            "evaluations": answer.evaluations,
            "seconds": round(answer.seconds, 4),
            "notes": answer.notes | ({"cut": prompt.real - real} if prompt.real > real else {}),
        }


def plan(
    checkpoint: Checkpoint,
    question: Question,
    prompts: list[Prompt],
    corpus: str,
    batch: int | None = None,
    allowed: tuple[int, ...] | None = None,
) -> list[Job]:
    """The work that a question makes.

    Args:
        checkpoint: one of those asked.
        question: the grid.
        prompts: to be recovered.
        corpus: whose background text the searches guess from.
        batch: rows that are answered at once; None: as many as the device's memory bears. A sweep
            takes all layers of a prompt in one pass, so that its batch is of whole prompts, one at
            least.
        allowed: the tokens that gradient solvers may answer with; None for all.

    Raises:
        RequestError: a site that does not exist, a slice that shows nothing, a prompt that stands
            alone and cannot be shuffled, no method that can answer any slice, or a corpus with too
            little text.
    """
    lengths = Counter(len(prompt.tokens) for prompt in prompts)
    batch = batch or rows_at_once(checkpoint.model, max(lengths))
    if any(method.guesses for method in question.methods.values()):
        _ = held_out_text(checkpoint, corpus).background  # none of it is refused here
    for length, count in lengths.items():
        if question.shuffled and count < 2:
            raise RequestError(
                f"--controls shuffled: only one prompt of {length} tokens; ask for two or more"
            )
    sites, jobs, refusals = question.sites(checkpoint), [], {}
    # a model to compare with is compared as it is
    controls = (None, SHUFFLED) if question.shuffled and not checkpoint.control else (None,)
    for label, method in question.methods.items():
        groups: dict[Any, list[GridCell]] = {}
        for site, shown, noise, prompt in product(sites, question.slices, question.noise, prompts):
            length = len(prompt.tokens)
            shown.channels(site.circuit(checkpoint).width)
            shown.positions(length)
            if refusal := method.refusal(shown, length, "mask" not in site.without):
                refusals[f"{label} {refusal}"] = None
                continue
            seeds = question.seeds if method.random or noise else question.seeds[:1]
            for seed, control in product(seeds, controls):
                cell = GridCell(site, shown, prompt, seed, noise, control or checkpoint.control)
                alike = {
                    "batch": (control,),
                    "layers": (site.part, site.without, *cell.target[1:]),
                    "problem": cell.target,
                }
                groups.setdefault((length, cell.length, alike[method.together]), []).append(cell)
        answers = allowed if method.family == "gradient" else None
        job = Job(checkpoint, label, method, tuple(prompts), corpus, answers)
        for cells in groups.values():
            several = _batches(cells, batch, method.together == "layers")
            jobs += [replace(job, cells=some) for some in several]
    if not jobs:
        raise RequestError(
            f"--slices {' '.join(map(str, question.slices))}: no method asked for fits "
            f"({'; '.join(refusals)})"
        )
    return jobs


def _batches(cells: list[GridCell], batch: int, shared: bool) -> Iterator[list[GridCell]]:
    """Cells in batches; where sites share a pass, each batch has the same sites of its prompts."""
    if not shared:
        yield from (cells[i : i + batch] for i in range(0, len(cells), batch))
        return
    by_prompt: dict[Prompt, list[GridCell]] = {}
    for cell in cells:
        by_prompt.setdefault(cell.prompt, []).append(cell)
    by_sites: dict[tuple[Site, ...], list[list[GridCell]]] = {}
    for group in by_prompt.values():
        by_sites.setdefault(tuple(cell.site for cell in group), []).append(group)
    for sites, groups in by_sites.items():
        step = max(1, batch // len(sites))
        for i in range(0, len(groups), step):
            yield [cell for group in groups[i : i + step] for cell in group]


def _generator(prompt: Prompt, seed: object) -> torch.Generator:
    """Chance that belongs to the prompt and the seed, whatever batch they stand in."""
    return torch.Generator().manual_seed(int(row_key(prompt.tokens, seed), 16) % 2**63)
