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
from eval.claims import BENCH
from eval.claims.curves import CURVES, KINDS, Ask, Plan, Point
from eval.claims.entries import FAIR
from eval.claims.sources import drawn
from eval.claims.trained import Trained, kind_of, seeds_of_one, shape_of, trained
from eval.inversion.questions import Question
from eval.inversion.run import Job
from eval.inversion.run import plan as plan_jobs
from eval.models import Checkpoint, open_checkpoint, rows_at_once
from eval.rows import Results, Row, row_key
from eval.text import held_out_text, story_prompts


@dataclass(frozen=True)
class Task:
    """One model, and all that is asked of it.

    Its last row says which rows answer it, as of a claim, whose number is `CURVES`.

    Attributes:
        path: of a trained model; None for one that is drawn from its seed.
        skip: stories before the first that it is asked.
        corpus: where stories come from.
        tokenizer: of models that are drawn.
        device: where the model runs.
    """

    architecture: str
    config: ModelConfig
    seed: int
    skip: int
    path: Path | None
    asks: dict[Point, Ask]
    corpus: str
    tokenizer: Tokenizer
    device: torch.device
    checkpoint = None  # it is opened when it is asked

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        work = sum(point.depth * ask.stories for point, ask in self.asks.items())
        return float(self.config.d_model * work)

    @property
    def tags(self) -> dict[str, Any]:
        """As those of a claim's task."""
        asked = [
            (point, kind, label, method.name, method.record, ask.stories)
            for point, ask in self.asks.items()
            for kind in KINDS
            for label, method in ask.methods[kind].items()
        ]
        model = row_key(str(self.path) if self.path else self.config.to_json(), self.seed)
        return {
            "claim": CURVES,
            "arm": self.architecture,
            "protocol": FAIR,
            "entry": row_key(asked),
            "bench": BENCH,
            "setting": row_key(model, self.skip, self.corpus),
            "of": 1,
        }

    @property
    def keys(self) -> list[str]:
        """Of the row that says which rows answer it."""
        return [row_key("claim", self.tags)]

    def run(self, results: Results) -> list[Row]:
        """Asks it: the bench's rows are saved as they come, the row that names them is the last."""
        checkpoint = self._open()
        longest: dict[int, int] = {}
        for point, ask in self.asks.items():
            longest[point.length] = max(ask.stories, longest.get(point.length, 0))
        text = held_out_text(checkpoint, self.corpus)
        prompts = {
            length: story_prompts(text, count, length, self.skip)
            for length, count in longest.items()
        }
        jobs = []
        for point, ask in self.asks.items():
            for kind in KINDS:
                question = Question(
                    ask.methods[kind], (point.shown(kind),), (point.layer,), noise=(point.noise,)
                )
                stories = prompts[point.length][: ask.stories]
                jobs += plan_jobs(checkpoint, question, stories, self.corpus)
        keys = list(dict.fromkeys(key for job in jobs for key in job.keys))
        for job in batches(jobs):
            results.append(job.run(results))
        (key,) = self.keys
        return [{"key": key, "kind": "claim", **self.tags, "keys": keys}]

    def _open(self) -> Checkpoint:
        if self.path:
            return open_checkpoint(self.path, self.device)
        name = f"{self.architecture}-d{self.config.d_model}-n{self.config.n_layers}-s{self.seed}"
        return drawn(name, self.config, self.seed, self.tokenizer, self.device)


def tasks(
    plan: Plan,
    asks: dict[Point, Ask],
    models: Path | None,
    corpus: str,
    tokenizer: Tokenizer,
    device: torch.device,
) -> tuple[list[Task], list[str]]:
    """What there is to ask, and a line for each architecture whose trained models are not here."""
    there: dict[tuple[Any, ...], list[Trained]] = {}
    for one in trained(models) if models else []:
        there.setdefault((kind_of(one.config), shape_of(one.config)), []).append(one)
    several, missing = [], []
    for name in plan.architectures:
        lacking: dict[int, ModelConfig] = {}
        kinds: dict[tuple[int, int, int], dict[Point, Ask]] = {}
        for point, ask in asks.items():
            kinds.setdefault((point.width, point.depth, point.step), {})[point] = ask
        for (_, _, step), points in kinds.items():
            config = plan.config(name, next(iter(points)), tokenizer.get_vocab_size())
            paths: list[Any] = [None] * plan.seeds
            if step:
                alike = seeds_of_one(there.get((kind_of(config), shape_of(config)), []))
                paths = [one.path for one in alike if one.step == step][: plan.seeds]
                if not paths:
                    lacking[step] = config
            several += [
                Task(name, config, seed, seed * plan.stories["apart"], path, points,
                     corpus, tokenizer, device)
                for seed, path in enumerate(paths)
            ]  # fmt: skip
        if lacking:
            missing.append(_lack(name, lacking, models))
    return several, missing


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
        prompts = max((job.prompts for job in own), key=len)
        batch = rows_at_once(own[0].checkpoint.model, len(cells[0].prompt.tokens))
        for i in range(0, len(cells), batch):
            yield replace(own[0], prompts=prompts, cells=cells[i : i + batch])


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
