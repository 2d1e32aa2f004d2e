"""Asks a claim: each arm under both protocols, as tasks that give the bench's ordinary rows.

The last row of a task says which rows answer it: `keys`, with `claim`, `arm`, `protocol`, `entry`
(what was asked, as a hash), `criteria` (by which it is to be judged, as a hash), `bench` (the
version that asked), `setting` (of which models and stories, as a hash), `of` (how many such tasks
make up the answer) and `stand_in` (who was asked in place of the claim's model). What several
claims ask is answered once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from eval.circuit import uncertified
from eval.claims import BENCH
from eval.claims.entries import FAIR, PROTOCOLS, Arm, Claim, Protocol
from eval.claims.sources import Missing, ModelSource, Shelf
from eval.errors import RequestError
from eval.inversion.controls import derive
from eval.inversion.questions import LAST, Question, build_question
from eval.inversion.run import SHUFFLED, plan
from eval.inversion.solvers import Solver
from eval.lenses.lens import Request, lenses
from eval.lenses.questions import Look
from eval.models import Checkpoint
from eval.rows import Results, Row, row_key
from eval.text import Prompt, drawn_prompts, held_out_text, padded, text_prompts


@dataclass(frozen=True)
class Part:
    """One arm under one protocol, of one of its models, which has its share of the prompts.

    Controls stand beside the first model.

    Attributes:
        claim: whose arm it is.
        arm: what is asked.
        name: of the protocol.
        source: of the model.
        corpus: where stories come from.
        index: of the model, from 0.
        of: how many models the arm is asked of.
    """

    claim: Claim
    arm: Arm
    name: str
    source: ModelSource
    corpus: str
    index: int = 0
    of: int = 1
    checkpoint = None  # it is opened when it is asked
    cost = 1.0

    @property
    def protocol(self) -> Protocol:
        """How it is asked."""
        protocol = self.arm.protocol(self.name)
        assert protocol
        return protocol

    @property
    def tags(self) -> dict[str, Any]:
        """Says what is asked, of which bench, models and stories."""
        return {
            "claim": self.claim.number,
            "arm": self.arm.name,
            "protocol": self.name,
            "entry": self.arm.fingerprint,
            "bench": BENCH,
            "setting": row_key(self.source.kind, self.of, self.corpus),
            "of": self.of,
        } | ({"stand_in": self.stand_in} if self.stand_in else {})

    @property
    def stand_in(self) -> str:
        """Who is asked in place of the claim's own model."""
        return self.arm.models.stand_in

    @property
    def keys(self) -> list[str]:
        """Of the row that says which rows answer it."""
        return [row_key("claim", self.tags, self.source.name, self.index)]

    def run(self, results: Results) -> list[Row]:
        """Asks it: the bench's rows are saved as they come, the row that names them is the last."""
        started = time.monotonic()
        checkpoint = self.source.open()
        if reason := not self.arm.lens and uncertified(checkpoint.model):
            _note(f"{checkpoint.path}: {reason}; for certificates: --precision float32")
        answers = (_look if self.arm.lens else _invert)(self, checkpoint, results)
        (key,) = self.keys
        seconds = round(time.monotonic() - started, 3)
        last = {"criteria": self.claim.frozen, "keys": answers, "seconds": seconds}
        return [{"key": key, "kind": "claim", **self.tags, **last}]


def parts(claim: Claim, shelf: Shelf, corpus: str) -> tuple[list[Part], list[str]]:
    """What there is to ask, and a line for every arm whose models are not here.

    Raises:
        RequestError: weights given by hand that are not the claim's.
    """
    asked, missing = [], []
    for arm in claim.arms:
        for name in PROTOCOLS:
            if protocol := arm.protocol(name):
                try:
                    sources = shelf.sources(claim, arm.models, protocol.seeds, protocol.first)
                except Missing as lack:
                    missing.append(str(lack))
                    continue
                asked += [
                    Part(claim, arm, name, source, corpus, index, len(sources))
                    for index, source in enumerate(sources)
                ]
    return asked, list(dict.fromkeys(missing))


def _look(part: Part, checkpoint: Checkpoint, results: Results) -> list[str]:
    prompts = _prompts(part, checkpoint)
    tokens = 20_000 if part.name == FAIR else 4_000
    request = Request(tuple(prompts), part.arm.words, part.corpus, tokens=tokens)
    rows = Look(lenses()[part.arm.lens], checkpoint, request).run(results)
    results.append(rows)
    return [row["key"] for row in rows]


def _invert(part: Part, checkpoint: Checkpoint, results: Results) -> list[str]:
    keys = []
    prompts = _prompts(part, checkpoint)
    for models, question, several in questions(part, checkpoint, prompts):
        allowed = _allowed(part, models)
        for job in plan(models, question, several, part.corpus, allowed=allowed):
            keys += job.keys
            results.append(job.run(results))
    return keys


@cache
def _note(line: str) -> None:
    """Says a line once."""
    print(line, file=sys.stderr)


def questions(
    part: Part, checkpoint: Checkpoint, prompts: list[Prompt]
) -> Iterator[tuple[Checkpoint, Question, list[Prompt]]]:
    """The questions of one part: as the protocol says, then padded, then of its controls."""
    arm, protocol = part.arm, part.protocol
    without = set(arm.without) - ({"mask"} if part.name == FAIR else set())
    asked = {
        "methods": protocol.methods,
        "slices": [arm.slice],
        "layers": _layers(arm.layer, checkpoint),
        "parts": [arm.part],
        "without": [sorted(without)],
    }
    question = build_question(asked, f"claim {part.claim.number}")
    methods = question.methods
    context = checkpoint.config.context
    room = min(protocol.pad_to, context)
    longer = padded(prompts, checkpoint.tokenizer, room) if room else prompts
    if part.name != FAIR:
        yield checkpoint, question, longer
        return
    yield checkpoint, question, prompts
    if part.index:
        return
    descent = replace(question, methods=_only(methods, "descent"))
    if room:
        yield checkpoint, descent, longer
    if SHUFFLED in protocol.controls:
        yield checkpoint, replace(question, methods=_only(methods, "adam"), shuffled=True), prompts
    for control in protocol.controls:
        if control != SHUFFLED and "source" not in checkpoint.meta:
            yield derive(checkpoint, control), descent, prompts


def _prompts(part: Part, checkpoint: Checkpoint) -> list[Prompt]:
    """A part's prompts: the protocol's texts, or of its others the share of this model."""
    protocol, context = part.protocol, checkpoint.config.context
    if not protocol.text:
        length = min(protocol.length, context)
        text = held_out_text(checkpoint, part.corpus)
        several = drawn_prompts(protocol.kind, text, protocol.count, length, protocol.skip)
        return several[part.index :: part.of]
    prompts = text_prompts(list(protocol.text), checkpoint.tokenizer)
    longest = max(prompt.real for prompt in prompts)
    if longest > context:
        raise RequestError(
            f"{checkpoint.path}: a prompt has {longest} tokens, its context is {context}; "
            "the claim cannot be asked of it"
        )
    return prompts


def _layers(layer: Any, checkpoint: Checkpoint) -> Any:
    """Layers that the model has: of a shallower one the last."""
    if isinstance(layer, str):
        return layer
    depth = checkpoint.config.n_layers
    if isinstance(layer, list):
        return [[one for one in layer if one <= depth]]
    return [layer] if layer <= depth else LAST


def _allowed(part: Part, checkpoint: Checkpoint) -> tuple[int, ...] | None:
    if not part.arm.allowed or part.name == FAIR:
        return None
    ids = checkpoint.tokenizer.encode(part.arm.allowed, add_special_tokens=False).ids
    return tuple(sorted(set(ids)))


def _only(methods: dict[str, Solver], name: str) -> dict[str, Solver]:
    """Those of one solver, or the first where none is."""
    chosen = {label: method for label, method in methods.items() if method.name == name}
    return chosen or dict(list(methods.items())[:1])
