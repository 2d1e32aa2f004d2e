"""Tasks of claims and of the curves behind them, which give the ordinary rows of inversion.

A claim has a task for each arm under both protocols. The curves, claim `CURVES`, have one for each
model.

The last row of a task names the rows that answer it. It holds `claim`, `arm`, `protocol`, `entry`
(hash of the question), `criteria` (hash of the criteria that will judge it), `bench` (the version
that asked), `setting` (hash of the models and stories), `of` (how many such tasks make up the
answer), `stand_in` (the model in place of the claim's) and `keys`. Rows that several claims ask for
are computed once.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from arch import ModelConfig
from eval import RequestError
from eval.circuit import uncertified
from eval.claims import BENCH, CURVES
from eval.claims.curves import KINDS, Ask, Plan, Point
from eval.claims.entries import FAIR, PROTOCOLS, Arm, Claim, Protocol
from eval.claims.sources import (
    Missing,
    ModelSource,
    Shelf,
    drawn,
    kind_of,
    seeds_of_one,
    shape_of,
    train_command,
    trained,
)
from eval.inversion.curves import run_jobs
from eval.inversion.questions import LAST, Question, build_question, derive
from eval.inversion.run import SHUFFLED, Job, plan
from eval.lenses.lens import Request, lenses
from eval.lenses.questions import Look
from eval.models import Checkpoint, open_checkpoint
from eval.rows import Results, Row, row_key
from eval.tables import group
from eval.text import Prompt, drawn_prompts, held_out_text, padded, text_prompts


@dataclass(frozen=True)
class ClaimTask:
    """A task whose last row names the rows that answer it; `eval.tasks.Task`."""

    tags: dict[str, Any]  # fields of that row, which are its key
    answer: Callable[[Results], list[str]]  # saves the rows that answer, and returns their keys
    apart: tuple[Any, ...] = ()  # what else its key is made of
    more: dict[str, Any] = field(default_factory=dict)  # further fields of that row
    cost: float = 1.0  # in no unit
    checkpoint = None  # it is opened when it is asked

    @property
    def keys(self) -> list[str]:
        """Of its last row."""
        return [row_key("claim", self.tags, *self.apart)]

    def run(self, results: Results) -> list[Row]:
        """Its last row, when the rows that it names are saved."""
        started = time.monotonic()
        keys = self.answer(results)
        last = self.more | {"keys": keys, "seconds": round(time.monotonic() - started, 3)}
        return [{"key": self.keys[0], "kind": "claim", **self.tags, **last}]


def parts(claim: Claim, shelf: Shelf, corpus: str) -> tuple[list[ClaimTask], list[str]]:
    """The tasks of a claim, and a line for every arm whose models are not here.

    Raises:
        RequestError: weights given by hand that are not the claim's.
    """
    asked, missing = [], []
    for arm, name in product(claim.arms, PROTOCOLS):
        if protocol := arm.protocol(name):
            try:
                sources = shelf.sources(claim, arm.models, protocol.seeds, protocol.first)
            except Missing as lack:
                missing.append(str(lack))
                continue
            asked += [
                _Part(claim, arm, name, protocol, source, corpus, index, len(sources)).task
                for index, source in enumerate(sources)
            ]
    return asked, list(dict.fromkeys(missing))


@dataclass(frozen=True)
class _Part:
    """One arm under one protocol, of one of its models, which has its share of the prompts.

    Controls stand beside the first model.
    """

    claim: Claim
    arm: Arm
    name: str  # of the protocol
    protocol: Protocol
    source: ModelSource
    corpus: str
    index: int  # of the model, from 0
    of: int  # how many models the arm is asked of

    @property
    def task(self) -> ClaimTask:
        """The part as a task."""
        stand_in = self.arm.models.stand_in
        tags = {
            "claim": self.claim.number,
            "arm": self.arm.name,
            "protocol": self.name,
            "entry": self.arm.fingerprint,
            "bench": BENCH,
            "setting": row_key(self.source.kind, self.of, self.corpus),
            "of": self.of,
            **({"stand_in": stand_in} if stand_in else {}),
        }
        more = {"criteria": self.claim.frozen}
        return ClaimTask(tags, self.answer, (self.source.name, self.index), more)

    def answer(self, results: Results) -> list[str]:
        """Asks it, and returns the keys of the rows that answer."""
        checkpoint = self.source.open()
        prompts = self._prompts(checkpoint)
        if self.arm.lens:
            tokens = 20_000 if self.name == FAIR else 4_000
            request = Request(tuple(prompts), self.arm.words, self.corpus, tokens=tokens)
            rows = Look(lenses()[self.arm.lens], checkpoint, request).run(results)
            results.append(rows)
            return [row["key"] for row in rows]
        if reason := uncertified(checkpoint.model):
            _note(f"{checkpoint.path}: {reason}; for certificates: --precision float32")
        keys, allowed = [], None
        if self.arm.allowed and self.name != FAIR:
            ids = checkpoint.tokenizer.encode(self.arm.allowed, add_special_tokens=False).ids
            allowed = tuple(sorted(set(ids)))
        for model, question, several in self._questions(checkpoint, prompts):
            for job in plan(model, question, several, self.corpus, allowed=allowed):
                keys += job.keys
                results.append(job.run(results))
        return keys

    def _questions(
        self, checkpoint: Checkpoint, prompts: list[Prompt]
    ) -> Iterator[tuple[Checkpoint, Question, list[Prompt]]]:
        """As the protocol says, then padded, then of its controls."""
        arm, protocol, fair = self.arm, self.protocol, self.name == FAIR
        asked = {
            "methods": protocol.methods,
            "slices": [arm.slice],
            "layers": _layers(arm.layer, checkpoint.config.n_layers),
            "parts": [arm.part],
            "without": [sorted(set(arm.without) - ({"mask"} if fair else set()))],
        }
        question = build_question(asked, f"claim {self.claim.number}")
        room = min(protocol.pad_to, checkpoint.config.context)
        longer = padded(prompts, checkpoint.tokenizer, room) if room else prompts
        yield checkpoint, question, prompts if fair else longer
        if not fair or self.index:
            return
        descent = _by(question, "descent")
        if room:
            yield checkpoint, descent, longer
        if SHUFFLED in protocol.controls:
            yield checkpoint, replace(_by(question, "adam"), shuffled=True), prompts
        for control in protocol.controls:
            if control != SHUFFLED and "source" not in checkpoint.meta:
                yield derive(checkpoint, control), descent, prompts

    def _prompts(self, checkpoint: Checkpoint) -> list[Prompt]:
        """The protocol's texts, or of its other prompts the share of this model."""
        protocol, context = self.protocol, checkpoint.config.context
        if not protocol.text:
            length = min(protocol.length, context)
            text = held_out_text(checkpoint, self.corpus)
            kind, count, skip = protocol.kind, protocol.count, protocol.skip
            with too_few_named(f"claim {self.claim.number}, {count} prompts after {skip}"):
                return drawn_prompts(kind, text, count, length, skip)[self.index :: self.of]
        prompts = text_prompts(list(protocol.text), checkpoint.tokenizer)
        longest = max(prompt.real for prompt in prompts)
        if longest > context:
            raise RequestError(
                f"{checkpoint.path}: a prompt has {longest} tokens, its context is {context}; "
                "the claim cannot be asked of it"
            )
        return prompts


@contextmanager
def too_few_named(asked: str) -> Iterator[None]:
    """Has errors about too few prompts name what is asked, and no flags that claims lack.

    Raises:
        RequestError: the corpus has too few prompts.
    """
    try:
        yield
    except RequestError as error:
        if not str(error).startswith("--count"):
            raise
        counted = str(error).partition(": ")[2].partition("; ")[0]
        raise RequestError(f"{asked}: {counted}; give a --corpus of more stories") from None


@cache
def _note(line: str) -> None:
    """Says a line once."""
    print(line, file=sys.stderr)


def _layers(layer: Any, depth: int) -> Any:
    """Layers that the model has: of a shallower one the last."""
    if isinstance(layer, str):
        return layer
    if isinstance(layer, list):
        return [[one for one in layer if one <= depth]]
    return [layer] if layer <= depth else LAST


def _by(question: Question, name: str) -> Question:
    """The question by the methods of one solver, or by the first where there is none of it."""
    methods = question.methods.items()
    chosen = {label: method for label, method in methods if method.name == name}
    return replace(question, methods=chosen or dict([*methods][:1]))


def curve_tasks(
    curves: Plan,
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
    for name in curves.architectures:
        lacking: dict[int, ModelConfig] = {}
        for (_, _, step), points in sizes.items():
            config = curves.config(name, points[0], tokenizer.get_vocab_size())
            paths: Sequence[Path | None] = [None] * curves.seeds
            if step:
                wanted = kind_of(config), shape_of(config)
                alike = seeds_of_one(one for one, size in there if size == wanted)
                paths = [one.path for one in alike if one.step == step][: curves.seeds]
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
                skip = seed * curves.stories["apart"]
                several.append(_curve_task(name, model, make, asked, skip, corpus))
        if lacking:
            missing.append(_lack(name, lacking, models))
    return several, missing


def _curve_task(
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
            jobs += plan(checkpoint, question, stories, corpus)
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
