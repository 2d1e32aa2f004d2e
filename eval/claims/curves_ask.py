"""Asks the points of the curves: a model at a time, its rows into a results directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from arch import ModelConfig
from eval.checkpoints import Checkpoint, open_checkpoint
from eval.claims import BENCH
from eval.claims.curves import KINDS, Ask, Plan, Point
from eval.claims.sources import drawn
from eval.claims.trained import Trained, kind_of, seeds_of_one, shape_of, trained
from eval.inversion.questions import Job, Question
from eval.inversion.questions import plan as plan_jobs
from eval.inversion.run import Runner
from eval.results import Results, row_key
from eval.text import Prompt, held_out_text, story_prompts

BATCH = 64  # rows that a gradient solver treats at once


@dataclass(frozen=True)
class Task:
    """One model, and all that is asked of it.

    Attributes:
        path: of a trained model; None for one that is drawn from its seed.
        skip: stories before the first that it is asked.
    """

    architecture: str
    config: ModelConfig
    seed: int
    skip: int
    path: Path | None
    asks: dict[Point, Ask]

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        work = sum(point.depth * ask.stories for point, ask in self.asks.items())
        return float(self.config.d_model * work)

    def open(self, tokenizer: Tokenizer, device: torch.device) -> Checkpoint:
        """The model."""
        if self.path:
            return open_checkpoint(self.path, device)
        name = f"{self.architecture}-d{self.config.d_model}-n{self.config.n_layers}-s{self.seed}"
        return drawn(name, self.config, self.seed, tokenizer, device)


def tasks(
    plan: Plan, asks: dict[Point, Ask], vocabulary: int, models: Path | None
) -> tuple[list[Task], list[str]]:
    """What there is to ask, and a line for each architecture whose trained models are not here."""
    there = _there(models)
    found, missing = [], []
    for name in plan.architectures:
        lacking: dict[int, ModelConfig] = {}
        kinds: dict[tuple[int, int, int], dict[Point, Ask]] = {}
        for point, ask in asks.items():
            kinds.setdefault((point.width, point.depth, point.step), {})[point] = ask
        for (_, _, step), own in kinds.items():
            config = plan.config(name, next(iter(own)), vocabulary)
            paths: list[Any] = [None] * plan.seeds
            if step:
                alike = there.get((kind_of(config), shape_of(config)), [])
                paths = [one.path for one in alike if one.step == step][: plan.seeds]
                if not paths:
                    lacking[step] = config
            apart = plan.stories["apart"]
            found += [Task(name, config, i, i * apart, path, own) for i, path in enumerate(paths)]
        if lacking:
            missing.append(_lack(name, lacking, models))
    return found, missing


class Asker:
    """Asks tasks, one after the other; what is in the results already is not asked again.

    Args:
        results: where rows go.
        corpus: where stories come from.
        tokenizer: of models that are drawn.
        device: where models run.
    """

    def __init__(
        self, results: Results, corpus: str, tokenizer: Tokenizer, device: torch.device
    ) -> None:
        self.results, self.corpus = results, corpus
        self.tokenizer, self.device = tokenizer, device

    def ask(self, task: Task) -> None:
        """Asks one task."""
        checkpoint = task.open(self.tokenizer, self.device)
        prompts = self._prompts(task, checkpoint)
        tags: dict[str, dict[str, Any]] = {}
        jobs = list(batches(self._jobs(task, checkpoint, prompts, tags)))
        if not jobs:
            return
        name = checkpoint.provenance["name"]
        every = [prompt for own in prompts.values() for prompt in own]
        text = held_out_text(checkpoint, self.corpus)
        runner = Runner({name: every}, {name: text.background()})
        for job in jobs:
            self.results.append(row | tags[row["key"]] for row in runner.run(job))

    def _prompts(self, task: Task, checkpoint: Checkpoint) -> dict[int, list[Prompt]]:
        """By length; each seed begins further on."""
        longest = {}
        for point, ask in task.asks.items():
            longest[point.length] = max(ask.stories, longest.get(point.length, 0))
        text = held_out_text(checkpoint, self.corpus)
        return {
            length: story_prompts(text, count, length, task.skip)
            for length, count in longest.items()
        }

    def _jobs(
        self,
        task: Task,
        checkpoint: Checkpoint,
        prompts: dict[int, list[Prompt]],
        tags: dict[str, dict[str, Any]],
    ) -> Iterator[Job]:
        """What is not answered yet; the rows' own fields are put into `tags` by the bench's key."""
        for point, ask in task.asks.items():
            about = {
                "axis": ask.axis,
                "x": ask.value,
                "architecture": task.architecture,
                "state": point.state,
                "bench": BENCH,
            }
            for kind in KINDS:
                for label, method in ask.methods[kind].items():
                    question = Question(
                        {label: method}, (point.shown(kind),), (point.layer,), noise=(point.noise,)
                    )
                    own = prompts[point.length][: ask.stories]
                    for job in plan_jobs(checkpoint, question, own, set()):
                        left = []
                        for cell in job.cells:
                            key = row_key("curve", BENCH, job.key(cell))
                            if key not in self.results.keys:
                                tags[job.key(cell)] = {"key": key, "curve": kind, **about}
                                left.append(cell)
                        if left:
                            yield replace(job, cells=left)


def batches(jobs: Iterable[Job]) -> Iterator[Job]:
    """The same work, what a gradient solver can treat at once in one job, whatever is shown."""
    together: dict[str, list[Job]] = {}
    for job in jobs:
        if job.solver.family == "gradient":
            length = len(job.cells[0].prompt.tokens)
            together.setdefault(row_key(job.label, job.settings, length), []).append(job)
        else:
            yield job
    for own in together.values():
        cells = [cell for job in own for cell in job.cells]
        for i in range(0, len(cells), BATCH):
            yield replace(own[0], cells=cells[i : i + BATCH])


def _there(models: Path | None) -> dict[tuple[Any, ...], list[Trained]]:
    """Of each kind and size the steps and seeds of one trained model."""
    found: dict[tuple[Any, ...], list[Trained]] = {}
    for one in trained(models) if models else []:
        found.setdefault((kind_of(one.config), shape_of(one.config)), []).append(one)
    return {key: seeds_of_one(alike) for key, alike in found.items()}


def _lack(name: str, lacking: dict[int, ModelConfig], models: Path | None) -> str:
    config = next(iter(lacking.values()))
    steps = ", ".join(map(str, sorted(lacking)))
    where = f"none under {models}" if models else "no --models given"
    recipe = "llama" if config.channel_mixer == "swiglu" else "flat"
    mixers = json.dumps(list(config.mixers))
    saved = json.dumps(sorted(lacking))
    return (
        f"{name} after {steps} steps: {where}; left out. fix: python -m train fit --config "
        f"{recipe}-small --data DATA --run RUNS/{name}-s0 --model.mixers '{mixers}' "
        f"--model.d_model {config.d_model} --model.n_layers {config.n_layers} --model.context "
        f"{config.context} --save_steps '{saved}' --trainer.max_steps {max(lacking)}, "
        "then --models RUNS"
    )
