"""The curves behind the claims: the points that are asked, read from `curves.yaml`, as tasks.

A curve varies one thing of the base point. A point that several curves share is one point. The last
row of a task says which rows answer it, as of a claim, whose number is `CURVES`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from tokenizers import Tokenizer

from arch import ModelConfig
from eval import RequestError
from eval.claims import BENCH, CURVES
from eval.claims.ask import ClaimTask, too_few_named
from eval.claims.entries import FAIR
from eval.claims.sources import drawn, kind_of, seeds_of_one, shape_of, train_command, trained
from eval.inversion.curves import run_jobs
from eval.inversion.questions import Question
from eval.inversion.run import Job
from eval.inversion.run import plan as plan_jobs
from eval.inversion.solvers import Solver, parse_solvers
from eval.models import Checkpoint, open_checkpoint
from eval.recovery import Slice
from eval.rows import Results, row_key
from eval.tables import group
from eval.text import drawn_prompts, held_out_text

FILE = Path(__file__).parent / "curves.yaml"
BASE = "base"
BEFORE, AFTER = "before", "after"
KINDS = SELF, NONSELF = "self", "nonself"
"""Every position shown, and the first one hidden."""
FAMILIES = PUBLISHED, TUNED, SEARCH = "published descent", "tuned gradient", "search"

Methods = dict[str, dict[str, Solver]]
"""Solvers by kind of token and label."""


@dataclass(frozen=True)
class Point:
    """What is asked of one architecture."""

    width: int
    depth: int
    layer: int  # whose output is shown
    step: int  # of training
    channels: int  # so many of the output's are shown
    length: int  # tokens of a prompt
    noise: float  # of what is shown, over its root mean square

    @property
    def state(self) -> str:
        """Before or after training."""
        return AFTER if self.step else BEFORE

    def at(self, axis: str, value: Any) -> Point:
        """The point with another value on an axis; its layer stays the last, its channels all."""
        if axis == BASE:
            return self
        if axis == "observed":
            return replace(self, length=value + 1)
        beside = {"width": "channels", "depth": "layer"}.get(axis, axis)
        return replace(self, **{axis: value, beside: value})

    def on(self, axis: str, kind: str) -> float | int | None:
        """Its place on an axis, of `observed` the shown positions; None of the base."""
        if axis == "observed":
            return self.length - (kind == NONSELF)
        return getattr(self, axis, None)

    def shown(self, kind: str) -> Slice:
        """The slice."""
        high = None if self.channels == self.width else self.channels
        return Slice(start=int(kind == NONSELF), high=high)


class Ask(NamedTuple):
    """How a point is asked: by which methods, about how many stories of each model."""

    methods: Methods
    stories: int


class Axis(NamedTuple):
    """The values of one thing, and how they are asked."""

    values: tuple[Any, ...]
    steps: tuple[int, ...]  # of training, at each of which every value is asked
    methods: Methods
    unasked: dict[Any, list[str]]  # methods that a value is not asked by


@dataclass(frozen=True)
class Plan:
    """The points of all curves, and how they are asked."""

    architectures: dict[str, dict[str, Any]]  # fields of a `ModelConfig`
    base: Point  # that all axes share, before training
    context: int
    seeds: int
    axes: dict[str, Axis]  # `BASE` is the first, on which there is the base alone
    stories: dict[str, int]  # per model, at `base` and off it (`axes`); seeds begin `apart`

    def curve(self, name: str) -> list[Point]:
        """The points of an axis, at each of its steps."""
        axis = self.axes[name]
        asked = product(axis.steps, axis.values)
        points = [self.base.at("step", step).at(name, value) for step, value in asked]
        return list(dict.fromkeys(points))

    def points(self, axes: list[str] | None = None) -> dict[Point, Ask]:
        """Every point of some axes, the base first; all axes when nothing is said.

        Raises:
            RequestError: there is no such axis.
        """
        asks: dict[Point, Ask] = {}
        for name in (BASE, *(axes or self.axes)):
            if name not in self.axes:
                known = ", ".join(self.axes)
                raise RequestError(f"--axis {name}: there is no such axis; use one of {known}")
            axis = self.axes[name]
            for point in self.curve(name):
                unasked = axis.unasked.get(point.on(name, NONSELF), [])
                methods = {
                    kind: {name: method for name, method in named.items() if name not in unasked}
                    for kind, named in axis.methods.items()
                }
                asks.setdefault(point, Ask(methods, self.stories.get(name, self.stories["axes"])))
        return asks

    def config(self, architecture: str, point: Point, vocabulary: int) -> ModelConfig:
        """A model's configuration."""
        given = dict(self.architectures[architecture])
        if "d_ff" in given:
            given["d_ff"] = given["d_ff"] * point.width // self.base.width
        size = {"d_model": point.width, "n_layers": point.depth, "context": self.context}
        return ModelConfig(vocab_size=vocabulary, **size, **given)


@lru_cache(maxsize=1)
def plan() -> Plan:
    """What is asked, as the file says."""
    return read_plan(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def read_plan(data: dict[str, Any]) -> Plan:
    """The content of such a file.

    Raises:
        RequestError: a method or a setting that does not exist.
    """
    base = dict(data["base"])
    context = base.pop("context")
    axes = {}
    for name, entry in ({BASE: {"values": [0], "steps": data["steps"]}} | data["axes"]).items():
        named = data["methods"] | entry.get("methods", {})
        methods = {kind: parse_solvers(solvers) for kind, solvers in named.items()}
        steps, unasked = tuple(entry.get("steps", (0,))), entry.get("unasked", {})
        axes[name] = Axis(tuple(entry["values"]), steps, methods, unasked)
    point = Point(layer=base["depth"], step=0, channels=base["width"], **base)
    return Plan(data["architectures"], point, context, data["seeds"], axes, data["stories"])


def family(method: Solver) -> str:
    """What a method is drawn as."""
    if method.name == "descent":
        return PUBLISHED
    return TUNED if method.family == "gradient" else SEARCH


def tasks(
    plan: Plan,
    asks: dict[Point, Ask],
    models: Path | None,
    corpus: str,
    tokenizer: Tokenizer,
    device: torch.device,
) -> tuple[list[ClaimTask], list[str]]:
    """A task for each model, and a line for each architecture without its trained models."""
    there = [(one, (kind_of(one.config), shape_of(one.config)))
             for one in trained(models) if one.config]  # fmt: skip
    sizes = group(asks, lambda point: (point.width, point.depth, point.step))
    several, missing = [], []
    for name in plan.architectures:
        lacking: dict[int, ModelConfig] = {}
        for (_, _, step), points in sizes.items():
            config = plan.config(name, points[0], tokenizer.get_vocab_size())
            paths: Sequence[Path | None] = [None] * plan.seeds
            if step:
                wanted = kind_of(config), shape_of(config)
                alike = seeds_of_one(one for one, size in there if size == wanted)
                paths = [one.path for one in alike if one.step == step][: plan.seeds]
            if not paths:
                lacking[step] = config
            asked = {point: asks[point] for point in points}
            for seed, path in enumerate(paths):
                size = f"d{config.d_model}-n{config.n_layers}"
                make = (
                    partial(open_checkpoint, path, device) if path else
                    partial(drawn, f"{name}-{size}-s{seed}", config, seed, tokenizer, device)
                )  # fmt: skip
                model = row_key(str(path) if path else config.to_json(), seed)
                skip = seed * plan.stories["apart"]
                several.append(_task(name, model, make, asked, skip, corpus))
        if lacking:
            missing.append(_lack(name, lacking, models))
    return several, missing


def _task(
    architecture: str,
    model: str,
    make: Callable[[], Checkpoint],
    asks: dict[Point, Ask],
    skip: int,
    corpus: str,
) -> ClaimTask:
    """All that is asked of one model, from the story `skip` on, as a task of the claim `CURVES`."""
    asked = [
        (point, kind, label, method.name, method.record, ask.stories)
        for point, ask in asks.items()
        for kind in KINDS
        for label, method in ask.methods[kind].items()
    ]
    tags = {
        "claim": CURVES,
        "arm": architecture,
        "protocol": FAIR,
        "entry": row_key(asked),
        "bench": BENCH,
        "setting": row_key(model, skip, corpus),
        "of": 1,
    }

    def answer(results: Results) -> list[str]:
        checkpoint = make()
        text = held_out_text(checkpoint, corpus)
        most: dict[int, int] = defaultdict(int)  # stories of each length
        for point, ask in asks.items():
            most[point.length] = max(ask.stories, most[point.length])
        with too_few_named("curves"):
            prompts = {n: drawn_prompts("story", text, count, n, skip)
                       for n, count in most.items()}  # fmt: skip
        jobs: list[Job] = []
        for (point, ask), kind in product(asks.items(), KINDS):
            shown, noise = (point.shown(kind),), (point.noise,)
            question = Question(ask.methods[kind], shown, (point.layer,), noise=noise)
            stories = prompts[point.length][: ask.stories]
            jobs += plan_jobs(checkpoint, question, stories, corpus)
        run_jobs(jobs, results)
        return list(dict.fromkeys(key for job in jobs for key in job.keys))

    work = sum(point.width * point.depth * ask.stories for point, ask in asks.items())
    return ClaimTask(tags, answer, cost=float(work))


def _lack(name: str, lacking: dict[int, ModelConfig], models: Path | None) -> str:
    config = next(iter(lacking.values()))
    where = f"none under {models}" if models else "no --models given"
    recipe = "llama" if config.channel_mixer == "swiglu" else "flat"
    size = config.mixers, config.d_model, config.n_layers
    steps = f" --save_steps '{json.dumps(sorted(lacking))}' --trainer.max_steps {max(lacking)}"
    more = f" --model.context {config.context}{steps}"
    fix = train_command(f"{recipe}-small", f"{name}-s0", *size, more)
    after = ", ".join(map(str, sorted(lacking)))
    return f"{name} after {after} steps: {where}; left out. {fix}"
