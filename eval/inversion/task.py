"""Tasks of inversion: the work that a request makes, and the rows that it gives.

A task is one call of a solver: some prompts of one length, seen at one site through one slice. It
captures the prompts' outputs, asks the solver, scores the answers, and gives a row for each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.inversion.guesses import ReadBack, open_readbacks
from eval.inversion.problem import Problem, ReadBacksOf, pose
from eval.inversion.request import Inversion
from eval.inversion.scoring import (
    is_permuted,
    nearest_rival,
    rank_tally,
    score_answer,
    score_arrivals,
    set_recall,
    verdicts,
)
from eval.inversion.solver import Answer, Solver, ask_solver
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.memory import candidates_at_once, rows_at_once
from eval.models.text import Prompt, held_out_text
from eval.rows.schema import SHUFFLED
from eval.rows.store import Results, Row, finite_or_none, row_key
from eval.sites.circuit import Circuit, uncertified
from eval.sites.rounding import capture
from eval.sites.site import Site
from eval.sites.slices import Slice


class Trial(NamedTuple):
    """One row of a task: prompt, seed of the solver, and whether its target is another prompt's."""

    prompt: Prompt
    seed: int
    shuffled: bool


@dataclass(frozen=True)
class Task:
    """One call of a solver, which gives a row for each site and prompt.

    Attributes:
        sites: one; of a solver that shares passes over layers, several.
        noise: of the targets, in units of their root mean square.
        trials: the rows of the problem.
        prompts: all of the run of that length: floors are measured on all at once, and a shuffled
            target belongs to the next of them.
        corpus: whose background text the searches guess from.
        allowed: the only tokens that answers may hold; None for all.
        part: of a problem's trials, where several processes share them.
    """

    checkpoint: Checkpoint
    solver: Solver
    sites: tuple[Site, ...]
    slice: Slice
    noise: float
    trials: tuple[Trial, ...]
    prompts: tuple[Prompt, ...]
    corpus: str
    allowed: tuple[int, ...] | None = None
    part: int = 0

    @property
    def lot(self) -> "Task":
        """The task without trials; tasks of equal lots are batches, which one process answers."""
        return replace(self, trials=())

    @property
    def settings(self) -> dict[str, Any]:
        """The `settings` field of its rows."""
        return self.solver.record | ({"allowed": list(self.allowed)} if self.allowed else {})

    @property
    def keys(self) -> list[str]:
        """The keys of the task's rows."""
        return [self.key(site, trial) for site in self.sites for trial in self.trials]

    def key(self, site: Site, trial: Trial) -> str:
        """A row's key: the question, the model, the solver and its seed.

        The rest of a run is no part of it: floors are measured, and shuffled targets taken, among
        its prompts of one length, and read-backs fitted on its corpus. Rows that are there stay as
        they are where these change; another directory asks anew.
        """
        return row_key(
            *self.checkpoint.identity,
            site.record,
            str(self.slice),
            self.solver.name,
            self.settings,
            trial.prompt.tokens,
            trial.prompt.pads,
            trial.seed,
            self.noise,
            self._control(trial),
        )

    def _control(self, trial: Trial) -> str | None:
        return SHUFFLED if trial.shuffled else self.checkpoint.control

    def run(self, results: Results) -> list[Row]:
        """The rows that are not there yet."""
        missing = [
            trial
            for trial in self.trials
            if not results.keys.issuperset(self.key(site, trial) for site in self.sites)
        ]
        if not missing:
            return []
        rows = replace(self, trials=tuple(missing)).rows(results.directory)
        return [row for row in rows if row["key"] not in results.keys]

    def rows(self, directory: Path | None = None) -> list[Row]:
        """Asks the solver: a row for each site and prompt.

        Args:
            directory: of results, where fits are kept; None where they are not.
        """

        def readbacks(circuits: list[Circuit]) -> list[ReadBack]:
            return open_readbacks(self.checkpoint, self.corpus, circuits, directory)

        problems = self._pose(readbacks)
        length, device = problems[0].length, problems[0].target.device
        truth = torch.tensor([trial.prompt.tokens[:length] for trial in self.trials], device=device)
        generators = [_generator(trial.prompt, trial.seed) for trial in self.trials]
        rows: list[Row] = []
        answered = ask_solver(
            self.solver, problems, generators, lambda answer, p: score_answer(answer, truth[p])
        )
        for site, problem, answers in zip(self.sites, problems, answered, strict=True):
            arrivals = score_arrivals(self.solver, problem, answers, truth, generators)
            truth_fits = problem.residual(truth)[1].tolist()
            for p, trial in enumerate(self.trials):
                row = self._row(site, trial, problem, p, answers[p], truth_fits[p])
                if arrival := arrivals[p]:
                    row["criterion"] = arrival[0]
                    row["notes"]["loss"] = loss = finite_or_none(arrival[1])
                    row["diverged"] |= loss is None
                rows.append(row)
        return rows

    def _pose(self, readbacks: ReadBacksOf) -> list[Problem]:
        """A problem for each site."""
        targets = [self._target(trial) for trial in self.trials]
        problems = []
        for circuit, (outputs, rounding) in zip(*self._capture(), strict=True):
            generators = [_generator(trial.prompt, f"noise {trial.seed}") for trial in self.trials]
            shown = outputs[targets], rounding[targets], self.slice
            problem = pose(circuit, *shown, self.noise, generators)
            problems.append(replace(problem, allowed=self.allowed, readbacks=readbacks))
        return problems

    def _target(self, trial: Trial) -> int:
        """The number of the prompt whose outputs are the target.

        Of a shuffled trial it is the next prompt that differs up to the last position shown.
        """
        number = self.prompts.index(trial.prompt)
        if not trial.shuffled:
            return number
        seen = [prompt.tokens[: self.slice.stop_of(len(prompt.tokens))] for prompt in self.prompts]
        following = (*range(number + 1, len(seen)), *range(number))
        return next(n for n in following if seen[n] != seen[number])

    def _capture(self) -> tuple[list[Circuit], list[tuple[Tensor, Tensor]]]:
        """The sites' circuits, and what they give for all prompts, kept with the model."""
        checkpoint, device = self.checkpoint, self.checkpoint.model.embedding.weight.device
        circuits = {
            site: checkpoint.keep(("circuit", site), partial(site.circuit, checkpoint))
            for site in self.sites
        }
        captured = checkpoint.keep(("captured", self.prompts), dict)
        if missing := [site for site in circuits if site not in captured]:
            tokens = torch.tensor([prompt.tokens for prompt in self.prompts], device=device)
            outputs = capture([circuits[site] for site in missing], tokens)
            captured.update(zip(missing, outputs, strict=True))
        return list(circuits.values()), [captured[site] for site in circuits]

    def _row(
        self, site: Site, trial: Trial, problem: Problem, p: int, answer: Answer, truth_fits: bool
    ) -> Row:
        checkpoint, prompt = self.checkpoint, trial.prompt
        real, shown = min(prompt.real, problem.length), problem.positions
        tokens = list(prompt.tokens[:real])
        assert answer.ranks is not None
        rank, named = answer.ranks[:real].tolist(), answer.tokens[:real].tolist()
        seen = [t for t in shown if t < real]
        hidden = [t for t in range(real) if t not in seen]
        floor = problem.tolerance.floor[p, : len(seen)]
        judged = ((), False) if trial.shuffled else (answer.collisions, answer.within)
        runner_up = None if answer.runner_up is None else answer.runner_up[: len(seen)].to(floor)
        return {
            "key": self.key(site, trial),
            "kind": "recovery",
            "checkpoint": checkpoint.provenance,
            "site": site.record,
            "slice": str(self.slice),
            "length": real,
            "shown": seen,
            "observed": len(shown),
            "hidden": len(hidden),
            "padded": problem.length > real,
            **self._settings_of(trial),
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
            "residual": answer.residual,
            "floor": float(problem.tolerance.floor[p].norm()),
            **nearest_rival(runner_up, floor),
            "at_floor": answer.within,
            "truth_at_floor": truth_fits,
            "diverged": answer.diverged,
            "criterion": None,
            "certificate": answer.certificate,
            "uncertified": uncertified(problem.circuit.model),
            "verdict": verdicts(named, tokens, *judged),
            "collisions": [
                {"position": t, "tokens": checkpoint.words(same)}
                for t, same in answer.collisions.items()
                if t < real
            ],
            "steps_to_solve": answer.steps,
            "evaluations": answer.evaluations,
            "seconds": round(answer.seconds, 4),
            "notes": answer.notes | ({"cut": prompt.real - real} if prompt.real > real else {}),
        }

    def _settings_of(self, trial: Trial) -> Row:
        """The fields of a row that say how its question was asked."""
        searched = self.solver.family == "search"
        return {
            "noise": self.noise,
            "control": self._control(trial),
            "solver": self.solver.name,
            "family": self.solver.family,
            "settings": self.settings,
            "batch": len(self.sites) * len(self.trials),
            "candidates_at_once": candidates_at_once(self.checkpoint.model) if searched else None,
            "prompts": trial.prompt.kind,
            "corpus": trial.prompt.corpus,
            "prompt": trial.prompt.index,
            "seed": trial.seed,
        }


def plan(
    checkpoint: Checkpoint,
    request: Inversion,
    prompts: list[Prompt],
    corpus: str,
    batch: int | None = None,
    shards: int = 1,
) -> list[Task]:
    """The work that a request makes.

    Args:
        corpus: whose background text the searches guess from.
        batch: rows that are answered at once; None: as many as the device's memory bears. Where
            layers share a pass, a batch is of whole prompts, one at least.
        shards: processes that share the work, whatever batches the memory of each bears.

    Raises:
        RequestError: a site that does not exist, a prompt that stands alone and cannot be shuffled,
            no slice that shows anything and that a solver can answer, or a corpus with too little
            text.
    """
    lengths = Counter(len(prompt.tokens) for prompt in prompts)
    batch = batch or rows_at_once(checkpoint.model, max(lengths))
    if any(solver.guesses for solver in request.configured):
        _ = held_out_text(checkpoint, corpus).background  # none of it is refused here
    if request.shuffled:
        _check_shuffled(prompts, request.shown)
    # a model to compare with is compared as it is
    shuffled = (False, True) if request.shuffled and not checkpoint.control else (False,)
    sites, tasks = request.sites(checkpoint), []
    allowed_tokens = request.allowed_tokens(checkpoint)
    causal = "mask" not in request.without
    for solver, shown, noise, length in product(
        request.configured, request.shown, request.noise, lengths
    ):
        alike = tuple(prompt for prompt in prompts if len(prompt.tokens) == length)
        seeds = request.seeds if solver.random or noise else request.seeds[:1]
        trials = [Trial(*coordinates) for coordinates in product(alike, seeds, shuffled)]
        allowed = allowed_tokens if solver.family == "gradient" else None
        groups = list(_grouped(sites, together=solver.layers))
        parts = -(-shards // len(groups))
        for group, part in product(groups, range(parts)):
            for site in group:
                shown.channels(site.circuit(checkpoint).width)
            if solver.refusal(shown, length, causal):
                continue
            size, own = max(1, batch // len(group)), trials[part::parts]
            about = alike, corpus, allowed, part
            tasks += [
                Task(checkpoint, solver, group, shown, noise, tuple(own[i : i + size]), *about)
                for i in range(0, len(own), size)
            ]
    if not tasks:
        raise RequestError(
            f"--slices {' '.join(map(str, request.shown))}: no solver asked for fits "
            f"({'; '.join(request.refusals(list(lengths)))})"
        )
    return tasks


def _check_shuffled(prompts: list[Prompt], slices: tuple[Slice, ...]) -> None:
    """Refuses prompts of one length that are alike in all that is shown of them."""
    for length, shown in product({len(prompt.tokens): None for prompt in prompts}, slices):
        if not shown.shows(length):
            continue
        stop = shown.stop_of(length)
        if len({prompt.tokens[:stop] for prompt in prompts if len(prompt.tokens) == length}) < 2:
            raise RequestError(
                f"--controls shuffled: no two prompts of {length} tokens differ in what {shown} "
                "shows; ask for two or more"
            )


def _grouped(sites: list[Site], together: bool) -> Iterator[tuple[Site, ...]]:
    """Sites one by one, or those that differ in their layers only together."""
    if not together:
        yield from ((site,) for site in sites)
        return
    for _, group in groupby(sites, lambda site: (site.part, site.without)):
        yield tuple(group)


def _generator(prompt: Prompt, seed: object) -> torch.Generator:
    """A random generator of a prompt and a seed, whatever batch they stand in."""
    return torch.Generator().manual_seed(int(row_key(prompt.tokens, seed), 16) % 2**63)
